# SPDX-License-Identifier: Apache-2.0
"""The way from a tag to its conda packages: wheel, package, and where its tests are run."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmsbuild.base import log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import CompileError, UsageError
from lmsbuild.base.project import Project
from lmsbuild.conda.condapackage import CondaPackage, known_subdir
from lmsbuild.conda.dependencies import table
from lmsbuild.conda.make import Made, make
from lmsbuild.conda.plan import (
    MACHINES,
    TESTED,
    Plan,
    check_wheel,
    companion_plan,
    framework_plan,
    own_plan,
    plugin_plan,
)
from lmsbuild.conda.rattler import run_tests
from lmsbuild.conda.testchannel import TestChannel, wheel_requirements
from lmsbuild.places import device as devices
from lmsbuild.places.environment import Environment, interpreter, packages_for
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.pipeline import container_for, plugin_wheel, wheel
from lmsbuild.tags.download import companion_wheel
from lmsbuild.tags.frameworks import Target, resolve
from lmsbuild.wheel import wheelfile
from lmsbuild.wheel.plugin import resolve as resolve_plugin
from lmsbuild.wheel.toolchain import Compiler
from lmsbuild.wheel.wheelfile import WheelName

OWN = "lmsbuild"


def running_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is wanted: the package of `tag`, or with `plugin` the plug-in for that release."""

    tag: str
    arch: str
    plugin: bool = False
    wheel: Path | None = None  # None: to be built
    test: str = "auto"  # or channel, or none
    channels: tuple[str, ...] = ()
    in_container: bool = False  # compile the wheel in the tag's container
    base_image: str | None = None
    test_channel: Path | None = None  # where a TEST channel is to be made and kept
    companions: bool = False  # the packages of what goes beside the tag's


@dataclass(frozen=True)
class Done:
    made: list[Made] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)  # file names, of a dry run


def build(
    project: Project, order: Order, choices: Choices, console: Console, output: Path | None,
    *, dry_run: bool = False,
) -> Done:  # fmt: skip
    """Make the packages. Raises UsageError, MismatchError, and as the steps do."""
    known_subdir(order.arch)
    if order.companions:
        return _companions(project, order, choices, console, output, dry_run=dry_run)
    if order.test == "channel" and not order.channels:
        raise UsageError(
            "the recipe's tests cannot run because --test channel takes a channel; name one with "
            "--channel"
        )
    target, plan, file = _plan(project, order, choices)
    native = MACHINES.get(plan.subdir, Compiler.find().machine) == Compiler.find().machine
    if (order.in_container or order.base_image) and (order.wheel or target is None):
        raise UsageError(
            "--container cannot be used here because only the wheels of a tag and of a plug-in are "
            "built in one; leave it out"
        )
    if not native and order.wheel is None:
        raise UsageError(
            f"no package for {plan.subdir} can be made because no wheel of it can be built on this "
            "machine; give one with --wheel"
        )
    kept = order.test_channel
    if kept and (order.channels or not native):
        raise UsageError(
            "--test-channel cannot be used here because no TEST channel is made with --channel or "
            "for another platform; leave it out"
        )
    if kept and kept.exists():
        raise UsageError(
            f"{kept} cannot become a TEST channel because it is there already; name a new folder"
        )
    if dry_run:
        return Done(planned=plan.files)
    if file is None:
        file = _wheel(project, order, choices, target, console)
    folder = (output or (target.work if target else project.work / OWN) / "conda").absolute()
    cuda = target.cuda if target and target.cuda[:1].isdigit() else ""

    def tests(package: CondaPackage, console: Console) -> None:
        if order.channels:
            run_tests(package, order.channels, cuda, console)
            return
        with tempfile.TemporaryDirectory() as place:
            channel = Path(place) / "channel"
            beside(project, target, plan, file, package.depends, place=channel, console=console)
            run_tests(package, [str(channel)], cuda, console)

    there = order.channels or plan.subdir in TESTED  # what the tests need besides
    wanted = tests if order.test != "none" and native and there else None
    made = make(plan, file, project, folder, console, tests=wanted)
    if kept:
        with console.step(f"TEST channel {kept}"):
            beside(
                project, target, plan, file, made[0].package.depends, place=kept, console=console
            )
    return Done(made)


def _companions(
    project: Project, order: Order, choices: Choices, console: Console, output: Path | None,
    *, dry_run: bool,
) -> Done:  # fmt: skip
    """The packages of the official wheels that go beside the tag's; their tests would need it."""
    if order.plugin or order.wheel or order.in_container or order.base_image or order.test_channel:
        raise UsageError(
            "--companions cannot go with other options than --python, --cuda and --output because "
            "its packages are official wheels as they are; leave the others out"
        )
    target = resolve(project, order.tag).for_cuda(choices.cuda)
    python = target.python(choices.python)
    found = [(one, digest) for one in target.tag.companions if (digest := one.digest(python))]
    if not found:
        raise UsageError(
            f"no companions of {target.label} for Python {python} are packaged because "
            f"{target.file} has none; leave --companions out, or add them"
        )
    plans = [companion_plan(target, one, python, order.arch) for one, _ in found]
    if dry_run:
        return Done(planned=[file for plan in plans for file in plan.files])
    folder = (output or target.work / "conda").absolute()
    made: list[Made] = []
    for (one, digest), plan in zip(found, plans, strict=True):
        wheel = companion_wheel(target, one, digest, python, console)
        if WheelName.of(wheel).platform != "any":
            check_wheel(wheel, plan, one.project, one.version)
        made += make(plan, wheel, project, folder, console)
    return Done(made)


def _plan(
    project: Project, order: Order, choices: Choices
) -> tuple[Target | None, Plan, Path | None]:
    if order.tag == OWN:
        return None, own_plan(project), order.wheel
    if order.plugin:
        found = resolve_plugin(project, order.tag)
        plan = plugin_plan(found, found.target.python(choices.python), order.arch)
        if order.wheel:
            check_wheel(order.wheel, plan, found.plugin.name, found.version)
        return found.target, plan, order.wheel
    target = resolve(project, order.tag).for_cuda(choices.cuda)
    plan = framework_plan(target, target.python(choices.python), order.arch)
    if order.wheel:
        check_wheel(order.wheel, plan, target.wheel.project, target.version)
    return target, plan, order.wheel


def _wheel(
    project: Project, order: Order, choices: Choices, target: Target | None, console: Console
) -> Path:
    if target is None:
        return _own_wheel(project, console)
    container = container_for(
        target,
        wanted=order.in_container,
        base_image=order.base_image,
        choices=choices,
        console=console,
    )
    if order.plugin:
        found = resolve_plugin(project, order.tag)
        return plugin_wheel(found, choices, console, container=container).wheel
    return wheel(target, choices, console, container=container)[1].wheel


def _own_wheel(project: Project, console: Console) -> Path:
    """The wheel of lmsbuild from this checkout."""
    if project.installed:
        raise UsageError(
            "lmsbuild cannot package itself because its source is not here; run it in a checkout "
            "of the project, or give its wheel with --wheel"
        )
    folder = project.work / OWN / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    with console.step("wheel of lmsbuild"):
        done = log.run(
            [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
             "--disable-pip-version-check", "--wheel-dir", str(folder), str(project.root)]
        )  # fmt: skip
    if done.returncode != 0:
        raise CompileError(
            "the wheel of lmsbuild was not built because pip says: "
            f"{(done.stderr.strip().splitlines() or ['nothing'])[-1]}; install hatchling",
            output=done.stderr,
        )
    return next(folder.glob("*.whl"))


def beside(
    project: Project, target: Target | None, plan: Plan, wheel: Path,
    depends: Sequence[str], *, place: Path, console: Console,
) -> None:  # fmt: skip
    """Make a TEST channel in `place` that has what `depends` asks for."""
    python = plan.python or running_python()
    known = table(project)
    base = Path(interpreter(python))
    used = target.tag.uses if target else []
    needs = wheel_requirements([*wheelfile.requirements(wheel), *used], python, known)
    wheels = None
    if needs:
        tag = target.label if target else OWN
        wheels = packages_for(base, needs, python, tag, console, command="conda")
    with tempfile.TemporaryDirectory() as folder:
        libraries = _stand_ins(target, wheel, Path(folder), console)
        TestChannel(place, python, base, wheels, known, libraries=libraries).fill(depends, console)


def _stand_ins(target: Target | None, wheel: Path, folder: Path, console: Console) -> Path | None:
    """The simulated device for the libraries in `wheel`, of a framework that runs on it; none for
    a package beside one."""
    if target is None or target.framework.shows.device != "simcuda":
        return None
    if WheelName.of(wheel).project != target.wheel.project:
        return None
    base = Environment(Path(sys.executable).parent.parent, "", reused=True)
    place = folder / "unpacked"
    place.mkdir()
    wheelfile.unpack(wheel, place)
    return devices.build_simulated(target, base, console, torch=place / "torch")
