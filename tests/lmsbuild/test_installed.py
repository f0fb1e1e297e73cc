# SPDX-License-Identifier: Apache-2.0
"""lmsbuild as its wheel installs it, away from the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY, World, plain_git

from lmsbuild.base.project import Project, find_project
from lmsbuild.cli.group import COMMANDS
from lmsbuild.series.series import export
from lmsbuild.tags.frameworks import targets

BUILD = """
import sys
from hatchling import build
print(getattr(build, sys.argv[1])(sys.argv[2]))
"""


def built(kind: str, tree: Path, folder: Path) -> Path:
    """What the build backend makes of `tree`, as pip would ask it to."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{kind}", str(folder)],
        cwd=tree,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        check=True,
    )
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", REPOSITORY, tmp_path_factory.mktemp("wheel"))


class Installed:
    """The wheel in an environment of its own."""

    def __init__(self, folder: Path, wheel: Path, with_requirements: bool) -> None:
        venv.create(folder, with_pip=False)
        self.script = folder / "bin" / "lmsbuild"
        command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
        options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-cache-dir"]
        if not with_requirements:
            options.append("--no-deps")
            site = next(folder.glob("lib/python*/site-packages"))
            ours = Path(pytest.__file__).resolve().parents[1]
            # .pth files of that folder are not read, so the repository does not come along.
            (site / "requirements.pth").write_text(f"{ours}\n")
        subprocess.run([*command, "install", *options, str(wheel)], check=True)

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.script), *arguments], cwd=cwd, capture_output=True, text=True, check=False
        )

    def json(self, *arguments: str, cwd: Path) -> object:
        done = self.run(*arguments, "--json", cwd=cwd)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed") / "env", wheel, with_requirements=False)


def test_wheel_carries_what_the_repository_has(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {
            name: archive.read(name)
            for name in archive.namelist()
            if name.startswith("lmsbuild/_project/")
        }
    tracked = plain_git(REPOSITORY, "ls-files", "-z").split("\0")
    folders = (
        *("patches/", "lms/", "examples/", "tools/simcuda/"),
        *("tests/engine/", "tests/regression/", "tests/simcuda/", "tests/safeguards/"),
    )
    wanted = [name for name in tracked if name.startswith(folders)]
    assert len(wanted) > 80
    for name in wanted:
        if (REPOSITORY / name).is_file():
            assert held[f"lmsbuild/_project/{name}"] == (REPOSITORY / name).read_bytes()
    assert not [name for name in held if name.endswith((".pyc", ".so"))]


def test_safeguards_are_read_in_an_environment_without_lmsbuild(installed: Installed) -> None:
    (tests,) = installed.script.parents[1].glob("lib/python*/site-packages/lmsbuild/_project/tests")
    code = (
        "import sys; sys.modules['lmsbuild'] = None; sys.path.insert(0, sys.argv[1])\n"
        "from safeguards import load, spans\n"
        "print(len(load('engine')), spans('a.py', b'def f(): 0'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tests / "safeguards")], capture_output=True, text=True
    )
    assert done.returncode == 0 and "Span(name='f'" in done.stdout, done.stderr


def test_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = built("sdist", REPOSITORY, tmp_path / "sdist")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    tree = tmp_path / archive.name.removesuffix(".tar.gz")
    assert built("wheel", tree, tmp_path / "again").read_bytes() == wheel.read_bytes()


def test_source_distribution_has_what_git_tracks(tmp_path: Path) -> None:
    """In every folder: hatchling reads no .gitignore that matches the folder itself."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split("\0")[:-1]
    tree = tmp_path / "tree"
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tree / name)
    (tree / ".gitignore").write_text("*\n")
    (tree / "work").mkdir()
    (tree / "work/leftover").touch()
    with tarfile.open(built("sdist", tree, tmp_path / "sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == {*tracked, "PKG-INFO"}


def test_works_outside_the_repository(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LMSBUILD_ROOT", "LMSBUILD_WORK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LMSBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "place"
    place.mkdir()
    ours = targets(Project(REPOSITORY))
    listed = installed.json("tags", cwd=place)
    assert isinstance(listed, list)
    assert [row["tag"] for row in listed] == [target.label for target in ours]
    for target in ours:
        installed.json("export", target.label, "-o", "out/", cwd=place)
        (written,) = (place / "out").glob(f"{target.framework_name}_{target.tag_name}_*.patch")
        assert written.read_bytes() == export(target)
    for name, flag in (("verify", "--all"), ("map", ours[0].tag_name)):
        if name in COMMANDS:
            done = installed.run(name, flag, cwd=place)
            assert done.returncode == 0, done.stderr
    would = installed.json("fetch", ours[0].label, "--dry-run", cwd=place)
    assert isinstance(would, dict)
    assert would["path"] == str(place / "work" / ours[0].slug / "source")
    suites = installed.json("test", ours[0].label, "--dry-run", cwd=place)
    assert isinstance(suites, dict) and len(suites["suites"]) > 5
    assert not (place / "work").exists()


def test_its_own_patches_are_not_written(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LMSBUILD_ROOT", raising=False)
    done = installed.run("refresh", targets(Project(REPOSITORY))[0].label, cwd=tmp_path)
    assert done.returncode != 0 and "LMSBUILD_ROOT" in done.stderr


def test_apply_with_the_installed_tool(installed: Installed, world: World) -> None:
    """A project of the user's own, named by LMSBUILD_ROOT, and one that the user stands in."""
    clone = world.clone()
    done = installed.run("apply", "v1.0", cwd=clone)
    assert done.returncode == 0, done.stderr
    assert (clone / "core/lms/engine.h").is_file()
    environment = {key: value for key, value in os.environ.items() if key != "LMSBUILD_ROOT"}
    listed = subprocess.run(
        [str(installed.script), "tags"], cwd=world.project.root / "lms", env=environment,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "alpha:v1.0" in listed and "pytorch" not in listed


@pytest.mark.net
@pytest.mark.slow
def test_requirements_are_complete(wheel: Path, world: World, tmp_path: Path) -> None:
    """In an environment that holds nothing but the wheel and what it requires."""
    alone = Installed(tmp_path / "env", wheel, with_requirements=True)
    clone = world.clone()
    done = alone.run("apply", "v1.0", cwd=clone)
    assert done.returncode == 0, done.stderr
    assert (clone / "core/lms/engine.h").is_file()
    subprocess.run(
        [str(alone.script.with_name("python")), "-c", IMPORT_ALL], cwd=tmp_path, check=True
    )


IMPORT_ALL = """
import importlib, pkgutil
import lmsbuild
for module in pkgutil.walk_packages(lmsbuild.__path__, "lmsbuild."):
    if not module.name.startswith("lmsbuild._project") and ".programs" not in module.name:
        importlib.import_module(module.name)
"""


def test_where_the_project_is(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(world.project.root / "patches", other / "patches")
    monkeypatch.chdir(other)
    assert find_project().root == world.project.root  # LMSBUILD_ROOT
    monkeypatch.delenv("LMSBUILD_ROOT")
    assert find_project().root == other  # stood in
    monkeypatch.chdir(tmp_path)
    found = find_project()
    assert found.root == REPOSITORY and not found.installed  # that of this package
    monkeypatch.setattr("lmsbuild.base.project.PACKAGE_DATA", REPOSITORY)
    monkeypatch.delenv("LMSBUILD_WORK")
    assert found.installed and found.work == tmp_path / "work"
