# SPDX-License-Identifier: Apache-2.0
"""A copy of the package (torch, or torch_lms) whose libraries are compiled anew: changed, or with
other flags."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import lms_device
import pytest
import torch
from lms_device import HERE

sys.path.insert(0, str(HERE.parent / "safeguards"))
import safeguards
from safeguards import Safeguard

PLUGIN = lms_device.is_plugin()


@dataclass
class Library:
    name: str
    folder: str  # in the source tree
    patterns: tuple[str, ...]
    link: tuple[str, ...]


LIBRARIES = (
    (
        Library(
            "libtorch_lms.so",
            "",
            ("c10/cuda/lms/**/*.cpp", "torch/csrc/lms/**/*.cpp", "plugin/*.cpp"),
            ("torch_cpu", "c10_cuda", "c10"),
        ),
    )
    if PLUGIN
    else (
        Library(
            "libc10_cuda.so",
            "c10/cuda",
            ("*.cpp", "impl/*.cpp", "lms/*.cpp", "lms/core/*.cpp"),
            ("c10",),
        ),
        Library(
            "libtorch_lms.so", "torch/csrc/lms", ("**/*.cpp",), ("c10_cuda", "torch_cpu", "c10")
        ),
    )
)


class Rebuilder:
    """Libraries and Python files of `folder`'s copy can be replaced; `flags` are the compiler's."""

    def __init__(self, source: Path, folder: Path, flags: Sequence[str] = ("-O1",)) -> None:
        self.source, self.folder, self.flags = source, folder, tuple(flags)
        self.torch = Path(torch.__file__).parent
        self.official = self.torch.with_name("torch_lms") if PLUGIN else self.torch
        self.package = folder / "site" / self.official.name
        self.libraries = self.package if PLUGIN else self.package / "lib"
        self.objects = folder / "objects"
        self.objects.mkdir()
        self.runtimes: dict[str, list[str]] = {}  # by the name of a library
        self.overlay = folder / "overlay"  # found before the source tree
        shutil.copytree(
            self.official,
            self.package,
            copy_function=_link,
            ignore=shutil.ignore_patterns("__pycache__", "test", "include"),
        )
        if not PLUGIN:
            (self.package / "include").symlink_to(self.official / "include")

    def root(self, file: str) -> Path:
        """What `file` lies in: the source tree, or where the packages are."""
        return self.official.parent if file.endswith(".py") else self.source

    def original(self, file: str) -> str:
        return (self.root(file) / file).read_text()

    def without(self, safeguard: Safeguard) -> str:
        runtime = [file for library in LIBRARIES for file in self.sources(library)]
        return safeguards.without(safeguard, self.root(safeguard.file), runtime)

    def compile(self, file: Path, target: Path) -> None:
        cuda = os.environ.get("SIMCUDA_CUDA_INCLUDE", "").split(os.pathsep)
        include = self.torch / "include"
        standard = 20 if (include / "c10/core/StorageMaterializer.h").exists() else 17
        command = [
            "g++", f"-std=c++{standard}", *self.flags,
            "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            "-DPYTORCH_C10_DRIVER_API_SUPPORTED",
            *(["-DLMS_PLUGIN"] if PLUGIN else []),
            *(["-DC10_CUDA_BUILD_MAIN_LIB"] if "c10" in file.parts and not PLUGIN else []),
            *self._beside(file), f"-I{self.overlay}", f"-I{self.source}",
            f"-I{include}", f"-I{include / 'torch/csrc/api/include'}",
            *(f"-I{path}" for path in cuda if path), "-c", str(file), "-o", str(target),
        ]  # fmt: skip
        subprocess.run(command, check=True)

    def _beside(self, file: Path) -> list[str]:
        """Where a changed file finds what it includes from its own folder."""
        if not file.is_relative_to(self.overlay):
            return []
        return ["-iquote", str(self.source / file.relative_to(self.overlay).parent)]

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
            self.runtimes[library.name] = self._runtime(library)
            self.link(library, {})

    def link(self, library: Library, instead: dict[Path, Path]) -> None:
        objects = [instead.get(o, o) for o in map(self.object_of, self.sources(library))]
        target = self.libraries / library.name
        target.unlink(missing_ok=True)
        command = [
            "g++", "-shared", *self.flags, "-o", str(target), *map(str, objects),
            *self.runtimes[library.name],
            f"-L{self.libraries}", f"-L{self.torch / 'lib'}",
            *(f"-l{name}" for name in library.link),
            f"-Wl,-soname,{library.name}", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined",
            "-Wl,--unresolved-symbols=ignore-all",  # the CUDA runtime: loaded before
        ]  # fmt: skip
        subprocess.run(command, check=True)

    def _runtime(self, library: Library) -> list[str]:
        """For `library` to need the CUDA runtime that the official one needs: by a library of that
        name which is empty, because the simulated one is loaded before."""
        listed = subprocess.run(
            ["readelf", "-d", str(self.official / "lib" / library.name)],
            check=False, capture_output=True, text=True,
        ).stdout  # fmt: skip
        names = re.findall(r"NEEDED.*\[(libcudart\.so[^\]]*)\]", listed)
        for name in names:
            subprocess.run(
                [
                    "g++", "-shared", "-x", "c++", os.devnull,
                    f"-Wl,-soname,{name}", "-o", str(self.objects / name),
                ],
                check=True,
            )  # fmt: skip
        return ["-Wl,--no-as-needed", *(str(self.objects / name) for name in names)]

    def mutate(self, file: str, text: str) -> None:
        """Put `text` in place of a file of the source tree."""
        if file.endswith(".py"):
            target = self.package.parent / file
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
            self.mutate(file, self.original(file))
        else:
            self.link(next(li for li in LIBRARIES if file.startswith(li.folder)), {})

    def run(
        self, tests: list[str], stock: str, seconds: float, tier: str = "full",
        variables: Mapping[str, str] = {}, options: Sequence[str] = ("-x",),
    ) -> tuple[int | None, str]:  # fmt: skip
        """Exit status of pytest (None: no end), and the end of its output."""
        environment = {**lms_device.child_environment(), **variables}
        paths = [str(self.package.parent), environment["PYTHONPATH"]]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        environment["PYTHONPYCACHEPREFIX"] = str(self.folder / "bytecode")
        command = [
            sys.executable, "-m", "pytest", "-q", *options,
            "-p", "no:cacheprovider", "--device=sim",
            "--tb=native",  # others print values, which may be large
            f"--stock={stock}", f"--tier={tier}", *(str(HERE / test) for test in tests),
        ]  # fmt: skip
        return safeguards.outcome(command, HERE.parents[1], environment, seconds)


def tree_of_package(folder: Path) -> Path:
    """What the package was built from: LMS_SOURCE is torch's, LMS_SDIST the plug-in's, which is
    unpacked in `folder`. A test that needs one is left out where none is told."""
    variable = "LMS_SDIST" if PLUGIN else "LMS_SOURCE"
    if not (name := os.environ.get(variable)):
        pytest.skip(f"needs {variable}, what this was built from")
    if not PLUGIN:
        return Path(name)
    with tarfile.open(name) as archive:
        archive.extractall(folder / "sdist", filter="data")
    (tree,) = (folder / "sdist").iterdir()
    return tree / "csrc"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
