# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a synthetic world, and this repository itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from lmsbuild_engine import FOLDER, TOOLS, Engine, base_image
from lmsbuild_engine import engine as running_engine
from lmsbuild_wheels import offer
from lmsbuild_world import REPOSITORY, UPSTREAM, World, enter_world, make_world

from lmsbuild.base.console import Console
from lmsbuild.base.project import Project, find_project

MEMORY = Path("/dev/shm")
OWN = "lmsbuild-tests-"  # folders of runs there
ROOM = 4 << 30  # what all tests together leave there is less


def pytest_configure(config: pytest.Config) -> None:
    """Files of tests lie in memory where there is room: they are many, small and soon gone, and a
    disk makes a third of the processor's time of them."""
    asked = "TMPDIR" in os.environ or config.getoption("basetemp")
    if not asked and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)  # which pytest keeps tidy by itself
        os.environ["TMPDIR"] = tempfile.tempdir = str(_own_folder(config))


def _own_folder(config: pytest.Config) -> Path:
    """What programs that a test kills leave goes with this run, and with the next after a kill of
    the run itself: the lock of its folder is free then."""
    for left in MEMORY.glob(f"{OWN}*.lock"):
        with contextlib.suppress(Timeout), FileLock(left, timeout=0):
            shutil.rmtree(left.with_suffix(""), ignore_errors=True)
            left.unlink(missing_ok=True)
    folder = MEMORY / f"{OWN}{os.getpid()}"
    lock = FileLock(f"{folder}.lock")
    lock.acquire()
    folder.mkdir()

    def end() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()

    config.add_cleanup(end)
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "engine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.container)


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that use the engine take turns: they count its containers."""
    if "engine" not in request.fixturenames:
        yield
        return
    with FileLock(f"{FOLDER}.lock"):
        yield


@pytest.fixture
def console() -> Console:
    return Console(json_mode=True)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world that tests get copies of."""
    folder = tmp_path_factory.mktemp("template")
    make_world(folder, UPSTREAM)
    return folder


@pytest.fixture
def world(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True, symlinks=True)
    return enter_world(tmp_path, monkeypatch)


@pytest.fixture
def official(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The official wheel, where pip finds it."""
    wheel, variables = offer(world)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return wheel


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with running_engine() as found:
        yield found


@pytest.fixture(scope="session")
def debian(engine: Engine) -> str:
    """An image with Python and what upstream's builds need. LMSBUILD_TEST_IMAGE replaces it."""
    return os.environ.get("LMSBUILD_TEST_IMAGE") or base_image(engine, "bookworm", TOOLS)


@pytest.fixture
def real_project(monkeypatch: pytest.MonkeyPatch) -> Project:
    """This repository itself."""
    monkeypatch.setenv("LMSBUILD_ROOT", str(REPOSITORY))
    return find_project()
