# SPDX-License-Identifier: Apache-2.0
"""`lmsbuild plugin tensorflow:…`: a package of Python alone, one for all releases."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.base.project import Project
from lmsbuild.ship import condabuild
from lmsbuild.ship.choices import Choices
from lmsbuild.tags.new_release import add
from lmsbuild.wheel import plugin, pureplugin

PROJECT = Project(REPOSITORY)
NAME = "tensorflow_large_model_support"


def test_one_wheel_is_for_every_release(tmp_path: Path) -> None:
    newest, oldest = (plugin.resolve(PROJECT, f"tensorflow:{v}") for v in ("2.21.0", "2.14.1"))
    assert newest.target.wheel.project == oldest.target.wheel.project == "tensorflow-cpu"
    built = pureplugin.build(newest, tmp_path)
    assert built.wheel.name == f"{NAME}-{newest.plugin.version}-py3-none-any.whl"
    before = built.wheel.read_bytes(), built.sdist.read_bytes()
    again = pureplugin.build(oldest, tmp_path)
    assert again.reused and not built.reused and again.sha256 == built.sha256
    built.wheel.unlink()
    assert not pureplugin.build(oldest, tmp_path).reused
    assert (built.wheel.read_bytes(), built.sdist.read_bytes()) == before


@pytest.mark.parametrize("of", ["wheel", "sdist"])
def test_what_rots_is_made_anew(of: str, tmp_path: Path) -> None:
    found = plugin.resolve(PROJECT, "tensorflow:2.21.0")
    built = pureplugin.build(found, tmp_path)
    file = built.wheel if of == "wheel" else built.sdist
    whole = file.read_bytes()
    assert b"import" in whole or of == "sdist"
    middle = whole.find(b"import") if of == "wheel" else len(whole) // 2
    file.write_bytes(whole[:middle] + b"X" + whole[middle + 1 :])
    pureplugin.build(found, tmp_path)
    assert file.read_bytes() == whole


def test_the_newest_has_a_wheel_for_gpus() -> None:
    """The dry device is in front of it."""
    found = plugin.resolve(PROJECT, "tensorflow:2.21.0")
    gpu = found.target.for_cuda("12.5")
    assert (gpu.wheel.project, gpu.wheel.version) == ("tensorflow", "2.21.0")
    assert set(gpu.pythons) == set(found.target.pythons)


def test_what_is_in_it(tmp_path: Path) -> None:
    found = plugin.resolve(PROJECT, "tensorflow:2.21")
    built = pureplugin.build(found, tmp_path)
    modules = {path.name for path in (REPOSITORY / "lms/tflms" / NAME).glob("*.py")}
    with zipfile.ZipFile(built.wheel) as wheel:
        inside = [name for name in wheel.namelist() if name.startswith(f"{NAME}/")]
        names = {name.rpartition("/")[2] for name in inside}
        assert names == modules | {"_tested.py"}
        tested = wheel.read(f"{NAME}/_tested.py").decode()
        assert "'2.14.1'" in tested and "'2.21.0'" in tested and "'2.6.0'" not in tested
    with tarfile.open(built.sdist) as sdist:
        stem = f"{NAME}-{found.plugin.version}/"
        assert {f"{stem}pyproject.toml", f"{stem}LICENSE", f"{stem}PKG-INFO"} <= {*sdist.getnames()}


def test_planning_is_imported_without_tensorflow(tmp_path: Path) -> None:
    built = pureplugin.build(plugin.resolve(PROJECT, "tensorflow:2.21.0"), tmp_path)
    code = f"import {NAME}.tuner, sys; assert 'tensorflow' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(built.wheel)}, check=True, timeout=60
    )


def test_tags_lists_the_packages() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lmsbuild", "tags"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [NAME, "0.1.0", "tensorflow", *plugin_releases()] in rows
    assert any(row[:1] == ["torch_lms"] for row in rows)


def test_a_new_release_is_added_by_hand() -> None:
    with pytest.raises(UsageError, match=r"add its wheel to patches/tensorflow/plugin\.toml"):
        add(PROJECT, "tensorflow", "2.99.0", Console(json_mode=True), dry_run=True)


def test_what_needs_a_runtime() -> None:
    with pytest.raises(UsageError, match=f"there is no benchmark of {NAME} because it rewrites"):
        plugin.resolve_runtime(PROJECT, "tensorflow:2.21.0", "benchmark")
    assert plugin.resolve_runtime(PROJECT, "2.11.0", "benchmark").plugin.name == "torch_lms"


def test_its_conda_package_is_for_every_python(tmp_path: Path) -> None:
    """And for every TensorFlow that it is tested with, whatever the package of that is called."""
    order = condabuild.Order(tag="tensorflow:2.21.0", arch="linux-64", plugin=True)
    console = Console(json_mode=True)
    choices = Choices("auto", None, None, None, None, None)
    (planned,) = condabuild.build(PROJECT, order, choices, console, tmp_path, dry_run=True).planned
    assert planned.startswith("noarch/tensorflow-large-model-support-")
    (made,) = condabuild.build(PROJECT, order, choices, console, tmp_path).made
    assert made.tested and made.package.path == tmp_path / planned
    assert made.package.depends == ["python >=3.10"]
    assert made.package.constrains == ["tensorflow >=2.14,<2.22.0a0"]
    other = replace(order, tag="tensorflow:2.14.1")
    (again,) = condabuild.build(PROJECT, other, choices, console, tmp_path).made
    assert again.reused


def plugin_releases() -> list[str]:
    return [
        found.target.tag.version
        for found in plugin.releases(PROJECT)
        if found.plugin.name == NAME and found.release.tested
    ]
