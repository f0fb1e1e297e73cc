# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a synthetic world, and this repository itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmsbuild_engine import TOOLS, Engine, base_image
from lmsbuild_engine import engine as running_engine
from lmsbuild_wheels import offer
from lmsbuild_world import REPOSITORY, RUNTIME, TOML, UPSTREAM, ZERO, World, hook_files, write

from lmsbuild.console import Console
from lmsbuild.git import Git
from lmsbuild.project import Project, find_project
from lmsbuild.refresh import refresh


@pytest.fixture
def console() -> Console:
    return Console(json_mode=True)


def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("GIT_", "LMSBUILD_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world that tests get copies of."""
    folder = tmp_path_factory.mktemp("template")
    upstream = folder / "upstream"
    upstream.mkdir()
    git = Git(upstream)
    git.run("init", "-q")
    built = World(Project(folder / "project"), upstream, folder)
    built.commit(upstream, UPSTREAM, "Release 1.0")
    git.run("tag", "-a", "v1.0", "-m", "1.0")
    text = TOML.format(url="@URL@", commit=git.head(), zero=ZERO)
    write(built.project.root, {**RUNTIME, "patches/frameworks.toml": text})
    shutil.copytree(REPOSITORY / "docker", built.project.root / "docker")
    # The series is made the way a developer makes it: runtime from lms/, hooks from commits.
    refresh(built.target, None)
    develop = built.clone("develop")
    runtime = next(built.target.runtime_patches.glob("*.patch"))
    Git(develop).run("am", "-q", "--keep-cr", str(runtime))
    for message, files in hook_files().items():
        built.commit(develop, files, message)
    refresh(built.target, develop)
    shutil.rmtree(develop)
    return folder


@pytest.fixture
def world(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True, symlinks=True)
    built = World(Project(tmp_path / "project"), tmp_path / "upstream", tmp_path)
    toml = built.project.frameworks_file
    toml.write_text(toml.read_text().replace("@URL@", built.upstream.as_uri()))
    _clean_environment(monkeypatch)
    monkeypatch.setenv("LMSBUILD_ROOT", str(built.project.root))
    monkeypatch.setenv("LMSBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LMSBUILD_WORK", str(tmp_path / "work"))
    monkeypatch.chdir(tmp_path)
    return built


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
