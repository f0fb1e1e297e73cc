# SPDX-License-Identifier: Apache-2.0
"""The images of a tag: what it is compiled, built whole, run and tested in.

An image is a template of docker/ filled in from tag.toml. What it gets of Python comes from
this machine in the build's context, so that a build needs the network only for a base image and for
packages of the system that the base lacks.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import tarfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, Literal, get_args

import jinja2
from docker.errors import ImageNotFound
from docker.utils import parse_repository_tag
from filelock import Timeout

from lmsbuild.base import cache, log
from lmsbuild.base.console import Console, Task
from lmsbuild.base.errors import (
    BaseImageError,
    ConfigError,
    EngineDiskError,
    LmsbuildError,
    MismatchError,
    UsageError,
)
from lmsbuild.base.hashing import sha256_large_file, sha256_value
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import cache_dir
from lmsbuild.base.settings import offline
from lmsbuild.places.docker import ARCHITECTURES, Engine, failure, machine, translated
from lmsbuild.places.environment import GPU_ONLY, requirements
from lmsbuild.tags.download import hash_memory, wheels_for
from lmsbuild.tags.frameworks import Image, Target, image_name
from lmsbuild.wheel import wheelfile

Kind = Literal["compiler", "build", "runtime", "test"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TEMPLATES = "docker"
RUNTIME_USER = 10001  # of a runtime image; in a range that no distribution gives away
# Labels: of a stage, whose it is; of an image, its name and what it was made of.
STAGE, NAME, KEY = "lmsbuild.stage", "lmsbuild.image", "lmsbuild.key"
_OCI = "org.opencontainers.image"
_KEPT_LINES = 20
_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)$", re.I)


@dataclass(frozen=True)
class Recipe:
    """An image that can be built: for which machine and Python, and on what."""

    target: Target
    kind: Kind
    machine: str  # as `uname -m` says it
    python: str  # X.Y
    image: Image  # names filled in
    base: str

    @property
    def name(self) -> str:
        own = () if self.kind == "compiler" else (self.python, self.target.cuda)
        return image_name(self.target.slug, self.kind, self.machine, *own)

    @property
    def command(self) -> str:
        return f"lmsbuild image {self.target.label} --kind {self.kind} --arch {self.machine}"

    @property
    def labels(self) -> dict[str, str]:
        """What registries and scanners read of the image. A time only where one is given, so that
        the same inputs give the same labels. Raises UsageError for a time that is none."""
        target = self.target
        labels = {
            "title": f"{target.framework_name} {target.tag_name} with Large Model Support: "
            f"{self.kind} image for {self.machine}",
            "version": target.version,
            "revision": target.tag.commit,
            "source": target.framework.url,
            "base.name": self.base,
        }
        if self.kind == "runtime":  # the others have nothing of the framework
            conda = target.framework.conda
            labels["licenses"] = conda.license if conda else "Apache-2.0"
        created = os.environ.get("SOURCE_DATE_EPOCH")
        if created:
            labels["created"] = _time(created)
        return {f"{_OCI}.{name}": value for name, value in labels.items()}

    def render(self, *, with_wheels: bool = True) -> str:
        """The Dockerfile; `with_wheels` when its context has wheels to install."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(self.target.project.root / TEMPLATES),
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,
        )
        return environment.get_template(f"{self.kind}.Dockerfile.j2").render(
            target=self.target, machine=self.machine, python=self.python, image=self.image,
            base=self.base, wheels=with_wheels, stage=f'{STAGE}="{_owner()}"', labels=self.labels,
            user=RUNTIME_USER,
        )  # fmt: skip

    @property
    def requirements(self) -> list[str]:
        return self.image.requirements.get(self.machine, [])


def recipe(
    target: Target, kind: Kind, python: str, arch: str | None = None, base: str | None = None
) -> Recipe:
    """How the image of this kind is built. Raises ConfigError where tag.toml has none."""
    arch = arch or machine()
    image = target.tag.images.get(kind)
    if image is None or not (base or arch in image.base):
        known = ", ".join(f"{k} for {' and '.join(v.base)}" for k, v in target.tag.images.items())
        raise ConfigError(
            f"there is no {kind} image of {target.label} for {arch} because {target.file} has "
            f"{known or 'no images'}; add it to `images`"
            + ("" if image is None else ", or give --base-image")
        )
    values = {"python": python, "nodot": python.replace(".", ""), "cuda": target.cuda}
    filled = Image.model_validate(_filled(image.model_dump(), values))
    return Recipe(target, kind, arch, python, filled, base or filled.base[arch])


def _owner() -> str:
    """Tells the stages of this user on this machine from those of others at the same engine."""
    return sha256_value([socket.gethostname(), os.getuid()])[:16]


def _time(seconds: str) -> str:
    try:
        return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"SOURCE_DATE_EPOCH={seconds} cannot be used because it is no number of seconds since "
            "1970; correct it, or leave it out"
        ) from error


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with {name} replaced by what it is in `values`; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), text)


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    """`value` with {name} replaced in every text of it."""
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return [_filled(item, values) for item in value]


# What goes into the context ----------------------------------------------------------------------


def runtime_wheels(found: Recipe, wheel: Path, *, light: bool, console: Console) -> list[Path]:
    """The framework's wheel and what it requires; `light`: but for what only a GPU has a use for.

    Raises as `check_wheel`.
    """
    check_wheel(wheel, found)
    wanted = [*requirements(wheel, found.python, found.machine), *found.target.tag.pins]
    wanted = [text for text in wanted if not (light and text.startswith(GPU_ONLY))]
    title = f"what {wheel.name} requires on {found.machine}"
    label = found.target.label
    return [
        wheel,
        *wheels_for(wanted, found.python, found.machine, title, console, tag=label),
    ]


def check_wheel(wheel: Path, found: Recipe) -> None:
    """Raise WheelError for a damaged `wheel`, MismatchError for one of another tag, machine or
    Python than this image's."""
    target = found.target
    project, version = target.wheel.project, target.version
    why = wheelfile.why_not(wheel, project, version, found.python, found.machine)
    if not why:
        return
    raise MismatchError(
        f"{wheel.name} cannot go into the {found.kind} image because {why}; give another with "
        "--wheel"
    )


# Building ----------------------------------------------------------------------------------------


def build(engine: Engine, found: Recipe, wheels: Iterable[Path], console: Console) -> str:
    """The id of the image, built or as it was. Raises what `engine.failure` makes.

    Killed, it leaves no container: the engine ends a build whose client is gone. What it leaves of
    stages the next build goes on with, and removes when it is done; where the engine's disk is
    full nothing is left.
    """
    with _alone(console):
        _have_base(engine, found, console)
        files = list(wheels)
        text = found.render(with_wheels=bool(files))
        key = sha256_value(
            [
                text, engine.client.images.get(found.base).id,
                [[file.name, sha256_large_file(file, hash_memory())] for file in files],
            ]
        )  # fmt: skip
        image = _existing(engine, found, key)
        if image is None:
            try:
                image = _build(engine, found, (text, files), key, console)
            except EngineDiskError:  # of which the stages have a part
                with contextlib.suppress(LmsbuildError):
                    prune(engine, found)
                raise
        with console.task("removing what the build left"):
            prune(engine, found)
    _check_architecture(image, found)
    return str(image.id)


@contextlib.contextmanager
def _alone(console: Console) -> Iterator[None]:
    """One build of this user at a time: another's stages are not to be removed under it."""
    lock = Lock(cache_dir() / ".images.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        with console.task("waiting for another image to be built"):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _existing(engine: Engine, found: Recipe, key: str) -> Any:
    with contextlib.suppress(ImageNotFound):
        image = engine.client.images.get(found.name)
        if image.labels.get(KEY) == key:
            return image
    return None


def _build(
    engine: Engine, found: Recipe, contents: tuple[str, list[Path]], key: str, console: Console
) -> Any:
    text, files = contents
    with cache.scratch() as folder, (folder / "context.tar").open("w+b") as context:
        log.note(text)
        _write_context(context, text, files)
        native = found.machine == machine()
        with (
            console.step(f"building the {found.kind} image on {found.base}") as step,
            translated(f"the {found.kind} image was not built"),
        ):
            lines = engine.client.api.build(
                fileobj=context, custom_context=True, rm=True, forcerm=True, decode=True,
                tag=found.name, network_mode="none" if offline() else None,
                labels={STAGE: "", NAME: found.name, KEY: key},
                platform=None if native else f"linux/{ARCHITECTURES[found.machine]}",
            )  # fmt: skip
            _follow_build(lines, found, step, console)
            image = engine.client.images.get(found.name)
            step.digest = image.id.removeprefix("sha256:")
            step.size = image.attrs["Size"]
    return image


def prune(engine: Engine, found: Recipe) -> None:
    """Remove what builds of this user left: stages, and images that lost the name of `found`. What
    others made, and what is used, stays."""
    for label in (f"{STAGE}={_owner()}", f"{NAME}={found.name}"):
        with translated("the stages of the image were not removed"):
            engine.client.images.prune(filters={"dangling": True, "label": label})


def _write_context(context: IO[bytes], text: str, wheels: Iterable[Path]) -> None:
    """Without times and owners: the engine reuses layers of equal contents."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = 0
        info.mode = 0o644
        return info

    with tarfile.open(fileobj=context, mode="w") as archive:
        data = text.encode()
        info = plain(tarfile.TarInfo("Dockerfile"))
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
        for wheel in wheels:
            archive.add(wheel, f"wheels/{wheel.name}", filter=plain)
    context.seek(0)


def _have_base(engine: Engine, found: Recipe, console: Console) -> None:
    """The base image is here, for the right architecture: pulled if need be."""
    with contextlib.suppress(ImageNotFound):
        _check_architecture(engine.client.images.get(found.base), found)
        return
    cache.require_network(f"the image {found.base}", found.command)
    repository, tag = parse_repository_tag(found.base)
    what = f"the {found.kind} image was not built"
    with console.step(f"pulling {found.base}") as step, translated(what, found.base):
        sizes: dict[str, tuple[int, int]] = {}
        for line in engine.client.api.pull(
            repository, tag or "latest", stream=True, decode=True,
            platform=f"linux/{ARCHITECTURES.get(found.machine, found.machine)}",
        ):  # fmt: skip
            if "error" in line:
                log.note(str(line))
                raise failure(what, str(line["error"]), found.base)
            detail = line.get("progressDetail") or {}
            if line.get("status") == "Downloading" and "total" in detail:
                sizes[line["id"]] = (detail["current"], detail["total"])
                step.update(sum(s[0] for s in sizes.values()), sum(s[1] for s in sizes.values()))
            elif line.get("status"):
                log.note(f"{line.get('id', '')} {line['status']}".strip())
    _check_architecture(engine.client.images.get(found.base), found)


def _check_architecture(image: Any, found: Recipe) -> None:
    wanted, is_for = ARCHITECTURES.get(found.machine, found.machine), image.attrs["Architecture"]
    if is_for != wanted:
        raise BaseImageError(
            f"the {found.kind} image was not built because {found.base} is for {is_for}, not "
            f"{wanted}; give one for {wanted} with --base-image",
            image=found.base,
        )


def _follow_build(
    lines: Iterable[Mapping[str, Any]], found: Recipe, step: Task, console: Console
) -> None:
    """Log what the engine says as it says it; raise for its error, after its last lines."""
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    doing = ""
    for line in lines:
        said = str(line.get("stream") or line.get("status") or line.get("error") or "").strip()
        if said:
            log.note(said)
        begun = _STEP.match(said)
        if begun:
            doing = begun[3]
            last.clear()
            step.update(int(begun[1]) - 1, int(begun[2]))
        if "error" in line:
            output = "\n".join(last)
            if output:
                console.warn(f"the last lines of the step that failed ({doing[:60]}):\n{output}")
            what = f"the {found.kind} image on {found.base} was not built"
            raise failure(what, said.splitlines()[-1] if said else "nothing", found.base, output)
        if said and not begun:
            last.extend(said.splitlines())
