# SPDX-License-Identifier: Apache-2.0
"""The way from a tag to environments with its wheel, as far as a command goes it.

Every stage is a step of the command's summary, and reuses what has not changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lmsbuild.base import cache, use
from lmsbuild.base.console import Console, counted
from lmsbuild.base.errors import UsageError
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import make_folder
from lmsbuild.checkout.checkout import is_there, working_path
from lmsbuild.places import device as devices
from lmsbuild.places.device import Device
from lmsbuild.places.environment import Contents, Environment, prepare, with_file
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.sources import patched
from lmsbuild.tags.download import official_wheel
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel import baseline, plugin, pureplugin
from lmsbuild.wheel.overlay import Built, build, planned
from lmsbuild.wheel.plugin import PluginTarget
from lmsbuild.wheel.toolchain import Compiler, processors

if TYPE_CHECKING:
    from lmsbuild.places.container import Inside

# Gives the compiler of a container that can read a tree.
Container = Callable[[Path], contextlib.AbstractContextManager[Compiler]]


@dataclass(frozen=True)
class Prepared:
    """Everything that a program needs to run on the official wheel and on ours."""

    source: Path  # the patched tree
    built: Built | plugin.Built | None  # None where a wheel was given
    stock: Environment | None  # None where only ours was wanted
    lms: Environment
    variables: dict[str, str]  # what the device needs


def container_for(
    target: Target, *, wanted: bool, base_image: str | None, choices: Choices, console: Console
) -> Container | None:
    """The tag's container to compile in when it is `wanted`, which naming an image says too."""
    if not (wanted or base_image):
        return None
    from lmsbuild.places.tagcontainer import compiler  # the engine's client is slow to import

    python = target.python(choices.python)
    return partial(compiler, target, base_image=base_image, python=python, console=console)


def wheel(
    target: Target, choices: Choices, console: Console, output: Path | None = None,
    *, dry_run: bool = False, container: Container | None = None, objects: Path | None = None,
) -> tuple[Path, Built]:  # fmt: skip
    """The patched tree, and the wheel built from it in `output`, compiled in a `container`.

    `objects` as in `overlay.build`. A dry run fetches nothing and builds no image: without a
    checkout, or where a container would be made, it gives the name of the wheel alone.
    """
    python = target.python(choices.python)
    folder = output.absolute() if output else target.work / "wheels"
    place = working_path(target, choices.into)
    if dry_run and not is_there(place):
        console.say(f"would fetch {target.label} to {place} and apply its series")
        return place, planned(target, python, folder)
    if dry_run and container:
        return patched(target, choices, console, dry_run=True), planned(target, python, folder)
    if output is None and not dry_run:
        make_folder(target.work)
        use.hold(target.work)
    path = patched(target, choices, console, dry_run=dry_run)
    with console.step("wheel") as step:
        with container(path) if container else contextlib.nullcontext() as compiler:
            done = build(
                target,
                path,
                python,
                folder,
                console,
                jobs=choices.jobs,
                dry_run=dry_run,
                compiler=compiler,
                objects=objects,
            )
        step.note = "unchanged" if done.reused else f"{counted(done.compiled, 'file')} compiled"
        if done.wheel.is_file() and not dry_run:
            step.size, step.digest = done.wheel.stat().st_size, done.sha256
    return path, done


def plugin_wheel(
    found: PluginTarget, choices: Choices, console: Console, output: Path | None = None,
    *, dry_run: bool = False, container: Container | None = None,
) -> plugin.Built:  # fmt: skip
    """The plug-in for one release, in `output`, compiled in a `container`. Raises UsageError for
    one that nothing is compiled of."""
    if container and not found.plugin.compiled:
        raise UsageError(
            f"--container cannot be used because nothing of {found.plugin.name} is compiled, and "
            "its wheel runs on every system; leave it out"
        )
    if dry_run:
        container = None  # which would be made
    if output is None and not dry_run:
        make_folder(found.target.work)
        use.hold(found.target.work)
    with console.step("plugin") as step:
        folder = output.absolute() if output else found.target.work / "wheels"
        python = found.target.python(choices.python)
        if found.plugin.compiled:
            place = plugin.workplace(found.target)
            if container:
                make_folder(place)
            with container(place) if container else contextlib.nullcontext() as compiler:
                done = plugin.build(
                    found,
                    python,
                    folder,
                    console,
                    choices.jobs,
                    dry_run=dry_run,
                    compiler=compiler,
                )
            step.note = "unchanged" if done.reused else f"{counted(done.compiled, 'file')} compiled"
        else:
            done = pureplugin.build(found, folder, dry_run=dry_run)
            step.note = "unchanged" if done.reused else "made"
        if done.wheel.is_file() and not dry_run:
            step.size, step.digest = done.wheel.stat().st_size, done.sha256
    return done


def plugin_sdist(found: PluginTarget) -> Path:
    """The plug-in's sources, in its folder."""
    of = plugin if found.plugin.compiled else pureplugin
    folder = found.target.work / "wheels"
    make_folder(folder)
    with Lock(folder / ".lock"):
        return plugin.write_sdist(found, of.source_files(found), folder)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to run, and where."""

    target: Target
    choices: Choices
    device: Device
    plugin: PluginTarget | None = None  # instead of the wheel of the series
    prefix: str = ""  # of the names of the environments
    tools: Sequence[str] = ()  # Python packages beside the wheel
    alone: Sequence[str] = ()  # more of them, without what they require
    stock: bool = True  # an environment with the official wheel alone, too
    inside: Inside | None = None  # a container that all of it is made in, and runs in
    wheel: Path | None = None  # that of the series or the plug-in; None: to be built

    @property
    def python(self) -> str:
        return self.target.python(self.choices.python)

    def official(self, console: Console) -> Path:
        return official_wheel(self.target, self.python, console)


def prepared(wanted: Wanted, console: Console) -> Prepared:
    """The wheel or the plug-in, and environments `<prefix>lms` or `<prefix>plugin` with it, and
    `<prefix>stock`."""
    return (_with_plugin if wanted.plugin else _with_series)(wanted, console)


def with_baseline(wanted: Wanted, ready: Prepared, name: str, console: Console) -> Environment:
    """The environment `<prefix><name>`: that of `ready` whose engine chooses as the baseline."""
    target, jobs = wanted.target, wanted.choices.jobs or processors()
    with console.step(f"baseline {name}") as step, cache.scratch() as folder:
        member = baseline.build(
            target, name, ready.source, folder, console, python=wanted.python, jobs=jobs
        )
        file = folder / Path(member).name
        made = with_file(ready.lms, wanted.prefix + name, member, file)
        step.note = "reused" if made.reused else "made"
    return made


def _with_series(wanted: Wanted, console: Console) -> Prepared:
    target, inside = wanted.target, wanted.inside
    built: Built | None = None
    if wanted.wheel:
        source = patched(target, wanted.choices, console)
    elif inside:  # made there, as it would not run with older C libraries
        compiler = contextlib.nullcontext(inside.compiler)
        folder = target.work / "wheels-container"
        source, built = wheel(target, wanted.choices, console, folder, container=lambda _: compiler)
    else:
        source, built = wheel(target, wanted.choices, console)
    ours = wanted.wheel or (built.wheel if built else None)
    assert ours is not None
    wheels: dict[str, tuple[Path, Path | None]] = {"lms": (ours, None)}
    if wanted.stock:
        wheels["stock"] = (wanted.official(console), None)
    return _ready(wanted, wheels, source, built, console)


def _with_plugin(wanted: Wanted, console: Console) -> Prepared:
    """The plug-in lies beside the official wheel; the source is a checkout of the tag, if any."""
    found, inside = wanted.plugin, wanted.inside
    assert found is not None
    built: plugin.Built | None = None
    if wanted.wheel:
        ours, sdist = wanted.wheel, plugin_sdist(found)
    else:
        if inside and found.plugin.compiled:
            compiler = contextlib.nullcontext(inside.compiler)
            folder = found.target.work / "wheels-container"
            built = plugin_wheel(
                found, wanted.choices, console, folder, container=lambda _: compiler
            )
        else:
            built = plugin_wheel(found, wanted.choices, console)
        ours, sdist = built.wheel, built.sdist
    official = wanted.official(console)
    wheels: dict[str, tuple[Path, Path | None]] = {"plugin": (official, ours)}
    if wanted.stock:
        wheels["stock"] = (official, None)
    ready = _ready(wanted, wheels, wanted.target.work / "source", built, console)
    more = {"LMS_SDIST": str(sdist)}
    if not found.release.tested:
        more["TORCH_LMS_FORCE" if found.plugin.compiled else "TFLMS_FORCE"] = "1"
    return replace(ready, variables={**ready.variables, **more})


def _ready(
    wanted: Wanted, wheels: Mapping[str, tuple[Path, Path | None]], source: Path,
    built: Built | plugin.Built | None, console: Console,
) -> Prepared:  # fmt: skip
    """Environments by name with a wheel and one beside it, and the device for them."""
    target, device = wanted.target, wanted.device

    def make(kind: str) -> Environment:
        wheel, beside = wheels[kind]
        contents = Contents(
            wheel=wheel,
            python=wanted.python,
            on_gpu=device.kind == "cuda",
            tools=wanted.tools,
            alone=wanted.alone,
            beside=beside,
        )
        return prepare(target, wanted.prefix + kind, contents, console, wanted.inside)

    # Side by side: pip unpacks a wheel on one processor.
    with console.step("environments") as step, ThreadPoolExecutor(len(wheels)) as pool:
        made = dict(zip(wheels, pool.map(make, wheels), strict=True))
        step.note = "reused" if all(one.reused for one in made.values()) else "made"
    with console.step("device") as step:
        step.note = device.name
        variables = devices.variables(target, device, console)
        if device.simulated:
            for environment in made.values():
                devices.build_simulated(target, environment, console, wanted.choices.jobs)
    stock = made.pop("stock", None)
    (lms,) = made.values()
    return Prepared(source, built, stock, lms, variables)
