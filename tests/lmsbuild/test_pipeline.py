# SPDX-License-Identifier: Apache-2.0
"""The commands of rendered pipelines, run as a CI system runs them: of a small framework, in its
containers, and what every change goes through, in a fresh clone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_conda import give_conda
from lmsbuild_engine import Engine
from lmsbuild_wheels import PYTHON
from lmsbuild_world import REPOSITORY, World, write
from ruamel.yaml import YAML
from test_suite import CONFTEST

from lmsbuild.base.project import Project
from lmsbuild.tags import matrix
from lmsbuild.tags.frameworks import load

pytestmark = [pytest.mark.net, pytest.mark.slow]
IMAGES = """
[images.compiler]
base = {{ x86_64 = "{base}" }}
compilers = ["g++"]

[images.runtime]
base = {{ x86_64 = "{base}" }}
pythons = ["python{{python}}"]
"""
RULES = """
[runners.x86_64]
github = ["big"]
gitlab = []
jenkins = "big"
"""
SUITE = """
def test_of_the_wheel_that_is_given():
    import alpha.version
    assert alpha.version.__version__ == "1.0+lms.1"
"""


def filled(script: str, cell: Mapping[str, Any]) -> str:
    """A step's script with the values of its cell, as GitHub puts them there."""
    text = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda m: str(cell[m[1]]), script)
    assert "${{" not in text
    return text


def bash(script: str, folder: Path, **more: str) -> str:
    """What a step says. GitHub's shell ends at the first command that fails."""
    here = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PATH": f"{here}:{os.environ['PATH']}", **more},
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def step(job: Mapping[str, Any], name: str) -> str:
    found: str = next(
        one["run"] for one in job["steps"] if name in one.get("name", one.get("run", ""))
    )
    return found


@pytest.fixture
def project(
    world: World, official: Path, engine: Engine, debian: str, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A framework that all of a pipeline can be done with."""
    if PYTHON != "3.11":
        pytest.skip("the image's Python is 3.11")
    give_conda(world)
    toml = world.tag_file
    toml.write_text(toml.read_text() + IMAGES.format(base=debian))
    suite = {"test_given.py": SUITE, "conftest.py": CONFTEST}
    write(world.project.root, {f"tests/regression/{name}": text for name, text in suite.items()})
    write(world.project.root, {matrix.FILE: RULES})
    (world.project.root / "ci" / "templates").symlink_to(REPOSITORY / "ci" / "templates")
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.setenv("LMSBUILD_ROOT", str(world.project.root))
    monkeypatch.delenv("PIP_NO_INDEX")  # the suites' tools come from there
    return world.project


def workflow(project: Project, name: str) -> Any:
    frameworks, rules = load(project), matrix.rules_of(project)
    work = matrix.jobs(frameworks, rules, matrix.cells(frameworks, rules))
    return YAML(typ="safe").load(matrix.render(project, name, work))


def test_a_cell(project: Project, tmp_path: Path) -> None:
    """Compiled in the container, that wheel is tested and packaged."""
    job = workflow(project, "github")["jobs"]["wheel"]
    (cell,) = job["strategy"]["matrix"]["include"]
    place = tmp_path / "runner"
    place.mkdir()
    said = bash(filled(step(job, "matrix.build"), cell), place)
    assert "1 passed" in said
    (wheel,) = (place / "dist").glob("*.whl")
    about = json.loads(wheel.with_name(f"{wheel.name}.manifest.json").read_text())
    assert "system" in about["toolchain"], "of the container"
    (note,) = (place / "dist").glob("linux-64/*.manifest.json")
    assert json.loads(note.read_text())["wheel_sha256"] == about["wheel"]["sha256"]


def test_a_release(project: Project, engine: Engine, tmp_path: Path) -> None:
    """Made, signed and tested by one job, with its image; put on a channel by another."""
    jobs = workflow(project, "github-release")["jobs"]
    (cell,) = jobs["release"]["strategy"]["matrix"]["include"]
    key, place = tmp_path / "key", tmp_path / "runner"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    place.mkdir()
    script = filled(step(jobs["release"], "make the release"), cell)
    bash(script, place, LMS_SIGNING_KEY=key.read_text().rstrip("\n"))
    said = bash(filled(step(jobs["release"], "test the wheel"), cell), place)
    assert "1 passed" in said
    (release,) = (file for file in (place / "release").iterdir() if file.is_dir())
    names = {file.name for file in release.iterdir()}
    assert {"SHA256SUMS", "SHA256SUMS.sig", "release.json"} <= names
    about = json.loads((release / "release.json").read_text())
    assert list(about["images"]) == [cell["image"]]
    assert engine.client.images.get(cell["image"]).id == about["images"][cell["image"]]
    (place / "release").rename(place / "releases")
    channel = step(jobs["publish"], "make the channel")
    own, rest = channel.split("\n", 1)
    assert own.startswith("lmsbuild conda lmsbuild")
    bash(own, place, LMSBUILD_ROOT=str(REPOSITORY))
    bash(rest, place)
    listed = bash("lmsbuild channel list channel", place)
    for name in ("alpha", "alpha-lms", "lmsbuild", "powerai"):
        assert f" {name} " in listed, listed


def test_what_every_change_goes_through(tmp_path: Path) -> None:
    """The check of GitHub's workflow, in a fresh clone."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", REPOSITORY, clone], check=True)
    job = YAML(typ="safe").load(clone / "ci" / matrix.PIPELINES["github"])["jobs"]["check"]
    scripts = [one["run"] for one in job["steps"] if "run" in one]
    assert scripts == ["make lint"]
    for script in scripts:
        bash(script, clone, PYTHON=sys.executable)
