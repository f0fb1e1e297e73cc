# SPDX-License-Identifier: Apache-2.0
"""Overlays for another machine than this one: cross-compiled, and run emulated."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from lmsbuild_engine import missing
from lmsbuild_processes import run
from lmsbuild_wheels import PYTHON, build_libraries, check_record, make_wheel
from lmsbuild_world import World

from lmsbuild.base.errors import MissingToolError, UsageError
from lmsbuild.base.hashing import sha256_file
from lmsbuild.base.project import Project
from lmsbuild.tags.frameworks import resolve, targets

CROSS = "aarch64-linux-gnu-gcc"
EMULATOR = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")
AARCH64 = (183).to_bytes(2, "little")  # EM_AARCH64
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char** names) {
  void* library = dlopen(names[1], RTLD_NOW);
  if (!library) return puts(dlerror()), 1;
  printf("%d\\n", ((int (*)(void))dlsym(library, "use"))());
}
"""


@pytest.fixture
def crossed(world: World, official: Path, tmp_path: Path) -> Path:
    """A tag with an official wheel for aarch64 too, which is given."""
    for program in (CROSS, "aarch64-linux-gnu-g++", EMULATOR[0]):
        if shutil.which(program) is None:
            missing(f"there is no {program}")
    folder = tmp_path / "crossed"
    folder.mkdir()
    libraries = build_libraries(folder, CROSS)
    python = f"cp{PYTHON.replace('.', '')}"
    wheel = make_wheel(official.parent, libraries, python, machine="aarch64")
    entry = f"""
[cuda."0".machines.aarch64]
project = "alpha"
version = "1.0"
local = "lms.1"
platforms = ["linux_aarch64"]
version_file = "alpha/version.py"
sha256 = {{ "{PYTHON}" = "{sha256_file(wheel)}" }}
"""
    toml = world.tag_file
    toml.write_text(toml.read_text().replace("\n[overlay]", f"{entry}\n[overlay]", 1))
    return wheel


def used(wheel: Path, folder: Path) -> int:
    """What the library says that uses the overlay's, emulated."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (folder / "main.c").write_text(PROGRAM)
    program = folder / "main"
    subprocess.run([CROSS, "-o", program, folder / "main.c"], check=True)
    said = subprocess.check_output([*EMULATOR, program, folder / "alpha/lib/libuser.so"], text=True)
    return int(said)


def test_overlay_for_aarch64(world: World, crossed: Path, tmp_path: Path) -> None:
    """It takes the official wheel of that machine, and runs there."""
    code, out, err = run("wheel", "v1.0", "--arch", "aarch64", "--source", "git", "--json")
    assert code == 0, err
    wheel = Path(json.loads(out)["wheel"])
    assert wheel.name.endswith("_aarch64.whl")
    check_record(wheel)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("alpha/lib/libcore.so")[18:20] == AARCH64
    manifest = json.loads(wheel.with_name(f"{wheel.name}.manifest.json").read_text())
    assert crossed.name in manifest["inputs"]
    assert manifest["toolchain"]["target"].startswith("aarch64")
    assert used(crossed, tmp_path / "stock") == 20 + 20
    assert used(wheel, tmp_path / "lms") == 40 + 21, "of the runtime, and of a hook"
    # That of this machine lies beside it.
    code, out, err = run("wheel", "v1.0", "--json")
    assert code == 0 and json.loads(out)["wheel"].endswith("_x86_64.whl"), err
    code, out, _ = run("wheel", "v1.0", "--arch", "aarch64", "--json")
    assert json.loads(out)["reused"] is True
    assert world.target.machines == ["x86_64", "aarch64"]


def test_what_cannot_be(world: World, crossed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ["wheel", "v1.0", "--source", "git"]
    code, _, err = run(*common, "--arch", "ppc64le")
    assert code == UsageError.exit_code and "are for x86_64, aarch64; build all" in err
    code, _, err = run(*common, "--arch", "aarch64", "--container")
    assert code == UsageError.exit_code and "cross compiler" in err
    monkeypatch.setenv("CXX", "nowhere-g++")
    code, _, err = run(*common, "--arch", "aarch64")
    assert code == MissingToolError.exit_code and "g++-aarch64-linux-gnu" in err


def test_machines_of_the_tags(real_project: Project) -> None:
    """As the package index has them: of CUDA, none of these tags has one for aarch64."""
    found = {
        f"{target.label} {cuda}": target.for_cuda(cuda).machines
        for target in targets(real_project)
        for cuda in target.tag.cuda
        if len(target.for_cuda(cuda).machines) > 1
    }
    assert found == {"tensorflow:v2.14.1 cpu": ["x86_64", "aarch64"]}
    arm = resolve(real_project, "tensorflow:v2.14.1").for_machine("aarch64")
    assert arm.wheel.project == "tensorflow-cpu-aws" and arm.pythons == ["3.10", "3.11"]
