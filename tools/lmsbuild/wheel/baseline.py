# SPDX-License-Identifier: Apache-2.0
"""The engine with another choice of victims, for the benchmark to compare with.

A source of lms/baseline is compiled in place of lms/core/victims.cpp, and the one library that has
it linked anew. The result goes into an environment of the benchmark's and into no wheel.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from lmsbuild.base import cache
from lmsbuild.base.console import Console
from lmsbuild.base.errors import ConfigError
from lmsbuild.tags.frameworks import Target
from lmsbuild.tags.runtimefiles import runtime_files
from lmsbuild.wheel.fit import official_libraries
from lmsbuild.wheel.headers import unpack_all
from lmsbuild.wheel.inputs import gather
from lmsbuild.wheel.libraries import compile_all, link_all
from lmsbuild.wheel.toolchain import Compiler, ObjectCache, Roots

_REPLACED = "lms/core/victims.cpp"


def source_of(target: Target, name: str) -> Path:
    """Of the baseline `name`. Raises ConfigError."""
    folder = target.project.root / "lms" / "baseline"
    if not (file := folder / f"{name}.cpp").is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.cpp")))
        raise ConfigError(
            f"{name} cannot be built because there is no such baseline; choose one of {known}"
        )
    return file


def build(
    target: Target, name: str, tree: Path, output: Path, console: Console, *, python: str, jobs: int
) -> str:
    """Put the library with the baseline `name` into the folder `output`, made from the patched
    `tree`, and give its place in the wheel. Raises CompileError, ConfigError or what `gather`
    does."""
    source = source_of(target, name)
    ours = target.project.root / _REPLACED
    replaced = next(path for path, file in runtime_files(target).items() if file == ours)
    overlay = target.tag.overlay
    (library,) = (made for made in overlay.libraries if replaced in made.sources)
    alone = overlay.model_copy(update={"libraries": [library]})
    inputs = gather(target, tree, python, console, Compiler.find())
    fixed = unpack_all(inputs, console)
    with cache.scratch() as folder, ThreadPoolExecutor(1) as background:
        official = background.submit(official_libraries, inputs, console)
        top = Path(replaced).parts[0]  # all that it includes of the tree is there
        shutil.copytree(tree / top, folder / top)
        shutil.copyfile(source, folder / replaced)
        changed = replace(
            inputs,
            tree=folder,
            target=replace(target, tag=target.tag.model_copy(update={"overlay": alone})),
        )
        roots = Roots(folder, fixed)
        compiled = compile_all(
            changed, ObjectCache(inputs.compiler, roots, overlay.prefix), jobs, console
        )
        with console.step(f"linking {library.name}"):
            link_all(changed, roots, compiled, output, official, kept={})
    return library.path
