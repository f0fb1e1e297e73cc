# SPDX-License-Identifier: Apache-2.0
"""`lmsbuild plugin`: what is built for which release, and what goes in."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_processes import run as run_lmsbuild
from lmsbuild_world import REPOSITORY, World

from lmsbuild.base.console import Console
from lmsbuild.base.errors import ConfigError, DownloadError, UnknownTagError, UsageError
from lmsbuild.base.project import Project
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.pipeline import plugin_wheel
from lmsbuild.tags import new_release
from lmsbuild.tags.frameworks import Target, targets
from lmsbuild.tags.runtimefiles import source_of
from lmsbuild.wheel import plugin, wheelfile

PROJECT = Project(REPOSITORY)


@pytest.mark.parametrize("spec", ["v2.11.0", "2.11.0", "2.11", "pytorch:v2.11.0", "pytorch:2.11"])
def test_a_release_has_many_names(spec: str) -> None:
    found = plugin.resolve(PROJECT, spec)
    assert found.target.label == "pytorch:v2.11.0"
    assert found.version == f"{found.plugin.version}+torch2.11"


def test_an_unknown_release_names_the_near_ones() -> None:
    with pytest.raises(UnknownTagError, match="no plug-in can be built for") as at:
        plugin.resolve(PROJECT, "2.99.0")
    assert "v2.15.0" in str(at.value)
    assert str(at.value).endswith("to try a new one, `lmsbuild plugin 2.99.0 --new`")


REQUIRES = {
    "13": [
        "typing-extensions>=4",
        "cuda-toolkit[cublas,cudart]==13.4.1; platform_system == 'Linux'",
    ],
    "12": ["nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'"],
    "11": ["nvidia-cuda-runtime-cu11==11.8.89"],
    "none": ["filelock"],
}


def index(
    cuda: str, pythons: tuple[str, ...] = ("3.12", "3.13"), release: str = "9.16.0"
) -> new_release.Ask:
    """An index with wheels for these Pythons, and with the headers of every CUDA from 12 on."""

    def ask(
        project: str, version: str, python: str, platforms: Sequence[str]
    ) -> dict[str, Any] | None:
        digest = (project[-1] + python).replace(".", "").encode().hex().ljust(64, "a")
        found = {"download_info": {"archive_info": {"hashes": {"sha256": digest}}}}
        if project.startswith("nvidia-"):
            assert version.endswith(".*") and "manylinux2014_x86_64" in platforms
            return found | {"metadata": {"version": version.replace("*", "77")}}
        assert (project, version, platforms) == ("torch", release, ["manylinux_2_28_x86_64"])
        if python not in pythons:
            return None
        return found | {"metadata": {"requires_dist": REQUIRES[cuda]}}

    return ask


@pytest.fixture
def own_project(tmp_path: Path) -> Project:
    shutil.copytree(REPOSITORY / "patches", tmp_path / "patches")
    return Project(tmp_path)


@pytest.mark.parametrize(("cuda", "version"), [("13", "13.4"), ("12", "12.8")])
def test_a_new_release_is_added_untested(own_project: Project, cuda: str, version: str) -> None:
    file = own_project.patches / "pytorch" / "plugin.toml"
    before = file.read_text()
    dry = new_release.add(
        own_project, "pytorch", "v9.16.0", Console(), dry_run=True, ask=index(cuda)
    )
    assert file.read_text() == before
    text = new_release.add(own_project, "pytorch", "9.16.0", Console(), ask=index(cuda))
    assert text == dry and file.read_text() == f"{before.rstrip()}\n\n{text}"
    found = plugin.resolve(own_project, "9.16")
    assert (found.release.tested, found.release.requires) == (False, ">=9.16,<9.17")
    assert found.target.cuda == version and found.target.pythons == ["3.12", "3.13"]
    headers = [header.version for header in found.target.variant.headers]
    assert headers == [f"{version}.77"] * 3
    with pytest.raises(UsageError, match="is for all of"):
        new_release.add(own_project, "pytorch", "9.16.1", Console(), ask=index(cuda))


def test_what_asks_the_dynamic_linker_links_to_it() -> None:
    """Before glibc 2.34 that is a library of its own, which older systems' compilers need named."""

    def asks(target: Target, sources: Iterable[str]) -> bool:
        ours = [source_of(target, each) for each in sources]
        texts = [(REPOSITORY / name).read_text() for name in ours if name]
        assert texts
        return any("#include <dlfcn.h>" in text or "#include <link.h>" in text for text in texts)

    found = plugin.resolve(PROJECT, "v2.6.0")
    code = [name for name in plugin.source_files(found) if name.startswith("csrc/")]
    assert asks(found.target, [name.removeprefix("csrc/") for name in code])
    assert "dl" in found.plugin.link
    assert '"dl"' in (REPOSITORY / found.plugin.sources / "package/setup.py").read_text()
    checked = 0
    for target in targets(PROJECT):
        for library in target.tag.overlay.libraries:
            checked += asks(target, library.sources)
            assert "dl" in library.link or not asks(target, library.sources), target.label
    assert checked >= 6


def test_a_project_without_a_plugin(world: World) -> None:
    for command in (
        ["plugin", "v1.0"],
        ["test", "v1.0", "--plugin"],
        ["conda", "v1.0", "--plugin"],
    ):
        code, _, err = run_lmsbuild(*command)
        assert code == UnknownTagError.exit_code and "because no framework here has one" in err, err


def test_a_release_between_known_ones_has_the_abi_of_the_later(own_project: Project) -> None:
    file = own_project.patches / "pytorch" / "plugin.toml"
    begin, end = (f'[releases."{v}"]' for v in ("2.9.1", "2.10.0"))
    before, _, rest = file.read_text().partition(begin)
    file.write_text(before + end + rest.partition(end)[2])
    ask = index("12", release="2.9.1")
    new_release.add(own_project, "pytorch", "2.9.1", Console(), ask=ask)
    found = plugin.resolve(own_project, "2.9")
    assert found.target.variant.abi == 1 and found.target.wheel.local == ""


@pytest.mark.parametrize(
    ("spec", "ask", "error", "text"),
    [
        ("2.16", index("13"), UsageError, "2.16 cannot be added because it is no release"),
        ("newest", index("13"), UsageError, "give e.g. 2.16.0"),
        ("9.16.0", index("13", ()), DownloadError, "the index has no wheel of it for manylinux"),
        ("9.16.0", index("none"), ConfigError, "does not tell its CUDA version"),
        ("9.16.0", index("11"), ConfigError, "is for CUDA 11.8 and plugin.toml names headers"),
    ],
)
def test_a_new_release_that_cannot_be_added(
    own_project: Project, spec: str, ask: new_release.Ask, error: type[Exception], text: str
) -> None:
    file = own_project.patches / "pytorch" / "plugin.toml"
    before = file.read_text()
    with pytest.raises(error, match=re.escape(text)):
        new_release.add(own_project, "pytorch", spec, Console(), ask=ask)
    assert file.read_text() == before


def test_every_release_is_complete() -> None:
    found = [each for each in plugin.releases(PROJECT) if each.plugin.compiled]
    assert len({each.version for each in found}) == len(found) >= 5
    for each in found:
        version = each.target.tag.version
        major, minor = version.split(".")[:2]
        assert each.release.requires == f">={major}.{minor},<{major}.{int(minor) + 1}"
        assert each.target.wheel.version == version
        assert "3.11" in each.target.pythons
        assert each.target.variant.headers


def test_the_sdist_holds_the_whole_runtime_and_is_the_same_each_time(tmp_path: Path) -> None:
    made = []
    for name in ("2.6.0", "2.14.1"):
        found = plugin.resolve(PROJECT, name)
        folder = tmp_path / name
        folder.mkdir()
        made.append(plugin.write_sdist(found, plugin.source_files(found), folder))
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for layout in plugin.resolve(PROJECT, "2.6.0").target.framework.layout:
        for pattern in layout.patterns:
            for file in (REPOSITORY / layout.source).glob(pattern):
                if file.suffix == ".cpp":
                    assert f"csrc/{layout.target}/{file.name}" in names
    assert b"2.6.0" in plugin.source_files(plugin.resolve(PROJECT, "2.6"))["torch_lms/_tested.py"]
    assert {"setup.py", "pyproject.toml", "torch_lms.pth", "PKG-INFO"} <= names
    assert {"torch_lms/__init__.py", "torch_lms/lms/__init__.py", "torch_lms/lms/sizes.py"} <= names
    assert not any(name.startswith("/") or "__pycache__" in name for name in names)


def test_a_wheel_from_its_members(tmp_path: Path) -> None:
    path = tmp_path / "a_b-1.0-py3-none-any.whl"
    members = {"a_b/x.py": b"X = 1\n", "a_b/libx.so": b"\x7fELF", "a_b-1.0.dist-info/WHEEL": b"W\n"}
    wheelfile.create(path, members)
    first = path.read_bytes()
    wheelfile.create(path, dict(reversed(members.items())))
    assert path.read_bytes() == first
    with zipfile.ZipFile(path) as archive:
        assert {name: archive.read(name) for name in members} == members
        assert archive.getinfo("a_b/libx.so").external_attr >> 16 & 0o111
        rows = list(csv.reader(io.StringIO(archive.read("a_b-1.0.dist-info/RECORD").decode())))
    assert {row[0] for row in rows} == {*members, "a_b-1.0.dist-info/RECORD"}


def _every_release() -> list[Any]:
    """The first in the default tier. An official wheel, of which only the headers are wanted, is a
    download of 800 MB: the others in the full one, where the suites take most of the wheels too."""
    marks = [pytest.mark.engine, pytest.mark.net]
    found = [target.target.tag.version for target in plugin.releases(PROJECT)]
    tiers = [pytest.mark.default, *[pytest.mark.slow] * (len(found) - 1)]
    return [pytest.param(v, marks=[*marks, tier]) for v, tier in zip(found, tiers, strict=True)]


@pytest.mark.parametrize("release", _every_release())
def test_the_plugin_compiles_for_every_release(tmp_path: Path, release: str) -> None:
    found = plugin.resolve(PROJECT, release)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    choices = Choices("auto", None, None, version, None, os.cpu_count())
    built = plugin_wheel(found, choices, Console(), tmp_path)
    again = plugin_wheel(found, choices, Console(), tmp_path)
    assert (built.reused, again.reused) == (False, True)
    assert again.sha256 == built.sha256
    name = built.wheel.name
    assert name.startswith(f"torch_lms-{found.version}-py3-none-manylinux_")
    metadata = wheelfile.read(built.wheel, f"torch_lms-{found.version}.dist-info/METADATA").decode()
    assert HeaderParser().parsestr(metadata)["Requires-Dist"] == f"torch{found.release.requires}"
    library = tmp_path / "libtorch_lms.so"
    wheelfile.extract_one(built.wheel, "torch_lms/libtorch_lms.so", library)
    symbols = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True)
    assert " U Py" not in symbols.stdout
