# SPDX-License-Identifier: Apache-2.0
"""The containers that a tag needs, with their images built first: its compiler, and its suites."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pip

from lmsbuild.base import cache
from lmsbuild.base.console import Console
from lmsbuild.base.project import cache_dir, make_folder
from lmsbuild.places.container import Inside, running
from lmsbuild.places.docker import connect
from lmsbuild.places.image import build, recipe
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel.toolchain import Compiler


@contextlib.contextmanager
def compiler(
    target: Target, tree: Path, base_image: str | None, python: str, console: Console
) -> Iterator[Compiler]:
    """The compiler of the tag's image, which can read `tree`."""
    with connect() as engine:
        found = recipe(target, "compiler", python, None, base_image)
        image = build(engine, found, [], console)
        with running(engine, image, {tree: "ro", cache_dir(): "ro", _temporary(): "rw"}) as box:
            yield Compiler((box.which(found.image.compilers),), box)


def _temporary() -> Path:
    folder = cache_dir() / "tmp"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def suites(
    target: Target, source: Path, base_image: str | None, python: str, console: Console
) -> Iterator[Inside]:
    """The container of the tag's test image: it compiles the overlay and runs the suites.

    It may write only to the work folder of the tag, to the builds of the simulated device and to
    the cache's temporary folders; `source` is the patched tree.
    """
    pip_folder = Path(pip.__file__).parent
    project = target.project
    make_folder(target.work)
    with connect() as engine:
        found = recipe(target, "test", python, None, base_image)
        image = build(engine, found, [], console)
        folders = {project.root: "ro", source: "ro", target.work: "rw", pip_folder: "ro"}
        folders |= {cache_dir(): "ro", cache.use("simcuda"): "rw", _temporary(): "rw"}
        with running(engine, image, folders) as box:
            runner = str(pip_folder / "__pip-runner__.py")
            compiler = Compiler((box.which(found.image.compilers),), box)
            yield Inside(box, image, compiler, box.which(found.image.pythons), runner)
