# SPDX-License-Identifier: Apache-2.0
"""`lmsbuild plugin`: what is built for which release, and what goes in."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY

from lmsbuild import plugin, wheelfile
from lmsbuild.choices import Choices
from lmsbuild.console import Console
from lmsbuild.errors import UnknownTagError
from lmsbuild.pipeline import plugin_wheel
from lmsbuild.project import Project

PROJECT = Project(REPOSITORY)


@pytest.mark.parametrize("spec", ["v2.11.0", "2.11.0", "2.11", "pytorch:v2.11.0", "pytorch:2.11"])
def test_a_release_has_many_names(spec: str) -> None:
    found = plugin.resolve(PROJECT, spec)
    assert found.target.label == "pytorch:v2.11.0"
    assert found.version == f"{found.plugin.version}+torch2.11"


def test_an_unknown_release_names_the_near_ones() -> None:
    with pytest.raises(UnknownTagError, match=r"no plug-in can be built for 2\.12\.0 because"):
        plugin.resolve(PROJECT, "2.12.0")


def test_every_release_is_complete() -> None:
    found = plugin.releases(PROJECT)
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
        for file in (REPOSITORY / layout.source).glob("*.cpp"):
            assert f"csrc/{layout.target}/{file.name}" in names
    assert b"2.6.0" in plugin.source_files(plugin.resolve(PROJECT, "2.6"))["torch_lms/_tested.py"]
    assert {"setup.py", "pyproject.toml", "torch_lms.pth", "torch_lms/lms.py", "PKG-INFO"} <= names
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


@pytest.mark.engine
@pytest.mark.net
@pytest.mark.default
def test_the_wheel_of_the_first_release(tmp_path: Path) -> None:
    found = plugin.resolve(PROJECT, "2.6.0")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    choices = Choices("auto", None, None, version, None, os.cpu_count())
    built = plugin_wheel(found, choices, Console(), tmp_path)
    again = plugin_wheel(found, choices, Console(), tmp_path)
    assert (built.reused, again.reused) == (False, True)
    assert again.sha256 == built.sha256
    name = built.wheel.name
    assert name.startswith(f"torch_lms-{found.version}-py3-none-manylinux_")
    metadata = wheelfile.read(built.wheel, f"torch_lms-{found.version}.dist-info/METADATA").decode()
    assert HeaderParser().parsestr(metadata)["Requires-Dist"] == "torch>=2.6,<2.7"
    library = tmp_path / "libtorch_lms.so"
    wheelfile.extract_one(built.wheel, "torch_lms/libtorch_lms.so", library)
    symbols = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True)
    assert " U Py" not in symbols.stdout
