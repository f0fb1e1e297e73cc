# SPDX-License-Identifier: Apache-2.0
"""v2.6.0's c10 and c10_cuda with the series, the simulated device and their tests, for ppc64le."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from lmsbuild_world import REPOSITORY, real_checkout

from lmsbuild.base.console import Console
from lmsbuild.checkout.checkout import working_path
from lmsbuild.ship.sources import applied, fetched
from lmsbuild.tags.download import official_wheel
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel.headers import header_folders, unpack
from lmsbuild.wheel.toolchain import Compiler, ObjectCache, Roots, Unit, link, processors
from simcuda.builder import Tools, build_runtime

sys.path.insert(0, str(REPOSITORY / "tests" / "engine"))
import core_build

TRIPLET = "powerpc64le-linux-gnu"
SYSROOT = Path("/usr") / TRIPLET
HARNESS = REPOSITORY / "tests" / "engine"
ALLOCATOR = REPOSITORY / "tests" / "allocator"
SIMCUDA = REPOSITORY / "tools" / "simcuda" / "src" / "runtime"
FMT = Path("/usr/include/fmt")  # headers only; Debian's source of the framework has none
# What CMake generates; the same on every machine.
_GENERATED = ("macros/cmake_macros.h", "cuda/impl/cuda_cmake_macros.h")


ENGINE_TESTS = core_build.cache_root()


def compiler() -> str | None:
    return shutil.which(f"{TRIPLET}-g++")


def engine_tests() -> Path:
    """The program with the engine's tests."""
    return core_build.build("plain17", cxx=f"{TRIPLET}-g++")


@dataclass(frozen=True)
class Built:
    """A folder with libc10, libc10_cuda, the simulated device and the allocator's tests."""

    folder: Path

    @property
    def tests(self) -> Path:
        return self.folder / "test_allocator"


def build(target: Target, folder: Path, console: Console) -> Built:
    """Everything of the tag that needs neither ATen nor Python, compiled for ppc64le."""
    tree = working_path(target, None)
    with real_checkout():
        fetched(target, "auto", tree, console)
        applied(target, tree, console)
    python = target.pythons[1]
    wheel = official_wheel(target, python, console)
    members = [f"torch/include/c10/{name}" for name in _GENERATED]
    generated = unpack(wheel, target.official_sha256(python), members, target, console)
    cuda = header_folders(target, console)
    (folder / "fmt").mkdir(parents=True)
    (folder / "fmt" / "fmt").symlink_to(FMT)
    simulated = build_runtime(
        Tools(f"{TRIPLET}-g++", f"{TRIPLET}-gcc", f"{TRIPLET}-nm"), cuda,
        int(target.cuda.split(".")[0]), folder, processors(), lambda _: None,
    )  # fmt: skip
    roots = {"wheel": generated / "torch/include", "fmt": folder / "fmt"}
    roots |= {f"cuda{i}": path for i, path in enumerate(cuda)}
    objects = ObjectCache(Compiler((str(compiler()),)), Roots(tree, roots), "/pytorch")
    include = ("tree:", "wheel:", "fmt:", *(f"cuda{i}:" for i in range(len(cuda))))
    flags = ("-std=gnu++17", "-O1", "-fPIC", "-DNDEBUG", "-pthread", "-fvisibility=hidden")

    def compiled(sources: list[str], *more: str) -> list[Path]:
        units = [Unit(source, (*flags, *more), include) for source in sources]
        with console.task(f"compiling {len(units)} files", total=len(units)) as task:
            return objects.objects_of(units, processors(), task)

    def linked(name: str, made: list[Path], *libraries: Path | str) -> Path:
        out = folder / name
        link(objects.compiler, made, out, "$ORIGIN", [*libraries, "dl"])
        return out

    places = ("core", "core/impl", "mobile", "util")
    c10 = sorted(f"c10/{p}/{f.name}" for p in places for f in (tree / "c10" / p).glob("*.cpp"))
    library = next(lib for lib in target.tag.overlay.libraries if lib.name == "libc10_cuda.so")
    main = ("-DC10_BUILD_MAIN_LIB", "-DSUPPORTS_BACKTRACE=1", "-DFMT_HEADER_ONLY=1")
    cudart = folder / simulated[0]
    first = linked("libc10.so", compiled(c10, *main))
    defines = [f"-D{name}" for name in library.defines]
    second = linked(library.name, compiled(library.sources, *defines), first, cudart)
    program = folder / "test_allocator"
    sources = [HARNESS / "harness.cpp", ALLOCATOR / "test_allocator.cpp"]
    options = [f"-I{HARNESS}", f"-I{SIMCUDA}", *_includes(objects.roots, include)]
    # The allocator looks for the driver among what is loaded.
    libraries = [str(path) for path in (first, second, *(folder / name for name in simulated))]
    objects.compiler.run(
        *flags, "-Wall", "-Wextra", *options, *map(str, sources), "-Wl,--no-as-needed",
        *libraries,
        "-Wl,-rpath,$ORIGIN", "-o", str(program), temporary=folder,
    )  # fmt: skip
    return Built(folder)


def _includes(roots: Roots, names: tuple[str, ...]) -> list[str]:
    return [word for name in names for word in ("-isystem", str(roots.resolve(name)))]
