# SPDX-License-Identifier: Apache-2.0
"""Turns each safeguard of kind "torch" off, in a torch rebuilt from LMS_SOURCE: its test must fail.

Only in the full tier, or when nothing but this file is asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lms_device
import pytest
import torch
from lms_device import HERE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.negative
KIND = "torch"
SAFEGUARDS = {
    entry["id"]: entry
    for entry in tomllib.loads((HERE.parent / "safeguards.toml").read_text())["safeguard"]
    if entry["kind"] == KIND
}


@dataclass
class Library:
    name: str
    folder: str  # in the source tree
    patterns: tuple[str, ...]
    link: tuple[str, ...]


LIBRARIES = (
    Library(
        "libc10_cuda.so",
        "c10/cuda",
        ("*.cpp", "impl/*.cpp", "lms/*.cpp", "lms/core/*.cpp"),
        ("c10",),
    ),
    Library("libtorch_lms.so", "torch/csrc/lms", ("*.cpp",), ("c10_cuda", "torch_cpu", "c10")),
)


class Rebuilder:
    """A copy of the torch package in which libraries and Python files can be replaced."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.official = Path(torch.__file__).parent
        self.package = folder / "site" / "torch"
        self.objects = folder / "objects"
        self.objects.mkdir()
        self.overlay = folder / "overlay"  # found before the source tree
        shutil.copytree(
            self.official,
            self.package,
            copy_function=_link,
            ignore=shutil.ignore_patterns("__pycache__", "test", "include"),
        )
        (self.package / "include").symlink_to(self.official / "include")

    def compile(self, file: Path, target: Path) -> None:
        cuda = os.environ.get("SIMCUDA_CUDA_INCLUDE", "").split(os.pathsep)
        include = self.official / "include"
        command = [
            "g++", "-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            "-DPYTORCH_C10_DRIVER_API_SUPPORTED",
            *(["-DC10_CUDA_BUILD_MAIN_LIB"] if "c10" in file.parts else []),
            f"-I{self.overlay}", f"-I{self.source}",
            f"-I{include}", f"-I{include / 'torch/csrc/api/include'}",
            *(f"-I{path}" for path in cuda if path), "-c", str(file), "-o", str(target),
        ]  # fmt: skip
        subprocess.run(command, check=True)

    def sources(self, library: Library) -> list[Path]:
        folder = self.source / library.folder
        return [file for pattern in library.patterns for file in sorted(folder.glob(pattern))]

    def object_of(self, file: Path) -> Path:
        return self.objects / ("_".join(file.relative_to(self.source).parts) + ".o")

    def build_all(self) -> None:
        files = [file for library in LIBRARIES for file in self.sources(library)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda f: self.compile(f, self.object_of(f)), files))
        for library in LIBRARIES:
            self.link(library, {})

    def link(self, library: Library, instead: dict[Path, Path]) -> None:
        objects = [instead.get(o, o) for o in map(self.object_of, self.sources(library))]
        target = self.package / "lib" / library.name
        target.unlink(missing_ok=True)
        command = [
            "g++", "-shared", "-o", str(target), *map(str, objects),
            f"-L{self.package / 'lib'}", *(f"-l{name}" for name in library.link),
            f"-Wl,-soname,{library.name}", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined",
            "-Wl,--unresolved-symbols=ignore-all",  # the CUDA runtime: loaded before
        ]  # fmt: skip
        subprocess.run(command, check=True)

    def mutate(self, file: str, text: str) -> None:
        """Put `text` in place of a file of the source tree."""
        if file.endswith(".py"):
            target = self.package / Path(file).relative_to("torch")
            target.unlink()
            target.write_text(text)
            return
        changed = self.overlay / file
        changed.parent.mkdir(parents=True)
        changed.write_text(text)
        library = next(li for li in LIBRARIES if file.startswith(li.folder))
        instead = {}
        try:
            for source in self.sources(library):
                if source == self.source / file:
                    compiled = changed
                elif file.endswith(".h") and f"<{file}>" in source.read_text():
                    compiled = source
                else:
                    continue
                original = self.object_of(source)
                instead[original] = original.with_suffix(".mutant")
                self.compile(compiled, instead[original])
        finally:
            shutil.rmtree(self.overlay)
        assert instead, f"nothing compiles {file}"
        self.link(library, instead)

    def restore(self, file: str) -> None:
        if file.endswith(".py"):
            self.mutate(file, (self.source / file).read_text())
        else:
            self.link(next(li for li in LIBRARIES if file.startswith(li.folder)), {})

    def run(self, tests: list[str], stock: str) -> tuple[int, str]:
        """Exit status of pytest (-1: no end), and the end of its output."""
        environment = lms_device.child_environment()
        paths = [str(self.package.parent), environment["PYTHONPATH"]]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--device=sim",
            f"--stock={stock}", "--tier=full", *(str(HERE / test) for test in tests),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                cwd=HERE.parents[1],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=150 + 10 * len(tests),
            )
        except subprocess.TimeoutExpired:
            return -1, "no end"
        return done.returncode, done.stdout[-3000:]


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="session")
def rebuilder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rebuilder]:
    source = os.environ.get("LMS_SOURCE")
    if not source:
        pytest.skip("needs LMS_SOURCE, the patched source tree that this torch was built from")
    if lms_device.device.kind != "sim":
        pytest.skip("races show on the simulated device")
    folder = tmp_path_factory.mktemp("negative")
    made = Rebuilder(Path(source), folder)
    made.build_all()
    yield made
    shutil.rmtree(folder)


@pytest.fixture
def stock_python(pytestconfig: Any) -> str:
    return pytestconfig.getoption("--stock") or os.environ.get("LMS_STOCK_PYTHON", "")


def test_with_every_safeguard_the_tests_pass(rebuilder: Rebuilder, stock_python: str) -> None:
    tests = sorted({entry["test"] for entry in SAFEGUARDS.values()})
    status, output = rebuilder.run(tests, stock_python)
    assert status == 0, output


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_without_it_its_test_fails(rebuilder: Rebuilder, stock_python: str, name: str) -> None:
    entry = SAFEGUARDS[name]
    text = (rebuilder.source / entry["file"]).read_text()
    assert text.count(entry["search"]) == 1, f"{entry['search']!r} is not in {entry['file']} once"
    try:
        rebuilder.mutate(entry["file"], text.replace(entry["search"], entry["replace"]))
        status, output = rebuilder.run([entry["test"]], stock_python)
    finally:
        rebuilder.restore(entry["file"])
    # 1: it failed. A crash or a hang shows it, too. 2 to 5: pytest did not run it.
    assert status == 1 or status < 0, f"{entry['test']} passes without {name}:\n{output}"
