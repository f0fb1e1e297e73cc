# SPDX-License-Identifier: Apache-2.0
"""Headers and link libraries of wheels, unpacked in the cache."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lmsbuild.base import cache, log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import WheelError
from lmsbuild.base.hashing import sha256_file, sha256_value
from lmsbuild.tags.download import header_wheel
from lmsbuild.tags.frameworks import HeaderWheel, Target
from lmsbuild.tags.words import DATA
from lmsbuild.wheel import wheelfile
from lmsbuild.wheel.inputs import Inputs
from lmsbuild.wheel.toolchain import Roots
from lmsbuild.wheel.wheelfile import WheelName

MADE = "made"  # the root of headers that are made of others


def include_folders(inputs: Inputs) -> list[str]:
    """Folders below the roots `tree` and `wheel` that headers are looked for in, in order."""
    listed = [*inputs.target.tag.overlay.include, *inputs.target.variant.include]
    return [name.replace(DATA, WheelName.of(inputs.wheel).data) for name in listed]


def unpack_all(inputs: Inputs, console: Console) -> dict[str, Path]:
    overlay = inputs.target.tag.overlay
    wanted = [i.removeprefix("wheel:") for i in include_folders(inputs) if i.startswith("wheel:")]
    linked = tuple(f"lib{name}.so" for library in overlay.libraries for name in library.link)

    def of_official(member: str) -> bool:
        return any(member.startswith(f"{folder}/") for folder in wanted) or (
            _is_library(member.rsplit("/", 1)[-1], linked)
        )

    target = inputs.target
    digest = target.wheel.sha256[inputs.python]
    members = [member for member in wheelfile.names(inputs.wheel) if of_official(member)]
    roots = {"wheel": unpack(inputs.wheel, digest, members, target, console)}
    for header in target.variant.headers:
        wheel = inputs.headers[header.project]
        roots[header.project] = unpack_headers(header, wheel, target, console)
    if overlay.generated.headers:
        roots[MADE] = _make_headers(inputs, Roots(inputs.tree, roots), console)
    return roots


def _make_headers(inputs: Inputs, roots: Roots, console: Console) -> Path:
    """A folder with the headers that are made of others."""
    made = inputs.target.tag.overlay.generated.headers
    programs = {sha256_file(roots.resolve(program)) for program, *_ in made.values()}

    def fill(folder: Path) -> None:
        for name, (program, *of) in made.items():
            out = folder / name
            out.parent.mkdir(parents=True, exist_ok=True)
            files = [str(roots.resolve(file)) for file in of]
            done = log.run([sys.executable, str(roots.resolve(program)), str(out), *files])
            if done.returncode != 0 or not out.is_file():
                raise WheelError(
                    f"{name} cannot be made because {program} says "
                    f"{done.stderr.strip() or 'nothing'}; correct `generated.headers` in tag.toml"
                )

    name = sha256_value([roots.fixed["wheel"].name, sorted(programs), made])[:16]
    return cache.keep("headers", name, "generated headers", fill, console, tag=inputs.target.label)


def _is_library(name: str, linked: tuple[str, ...]) -> bool:
    """Also with its version, as a wheel brings what it has bundled."""
    return any(name == library or name.startswith(f"{library}.") for library in linked)


def unpack_headers(header: HeaderWheel, wheel: Path, target: Target, console: Console) -> Path:
    """A folder with the headers and link libraries of a header wheel."""
    below = re.compile(rf"{re.escape(header.root)}/(include|lib)/")
    wanted = [name for name in wheelfile.names(wheel) if below.match(name)]
    return unpack(wheel, header.sha256, wanted, target, console)


def header_folders(target: Target, console: Console) -> list[Path]:
    """The CUDA include folders of a tag, downloaded and unpacked if need be."""
    return [
        unpack_headers(header, header_wheel(header, target, console), target, console)
        / header.root
        / "include"
        for header in target.variant.headers
    ]


def unpack(wheel: Path, digest: str, members: list[str], target: Target, console: Console) -> Path:
    """A folder with these members of the wheel with this hash."""

    def fill(folder: Path) -> None:
        folder.mkdir()
        wheelfile.extract(wheel, members, folder)

    name = sha256_value([digest, members])[:16]
    title = f"headers of {wheel.name}"
    return cache.keep("headers", name, title, fill, console, tag=target.label)
