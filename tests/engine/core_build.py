# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ tests of lms/core with g++, and caches objects by what they are made from."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "lms" / "core"
# Of the plug-in, what needs no framework.
FREE_MEMORY = HERE.parents[1] / "lms" / "plugin" / "csrc" / "FreeMemory.h"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain14": ("-std=c++14", "-O1"),
    "plain17": ("-std=c++17", "-O1"),
    "plain20": ("-std=c++20", "-O1"),
    "sanitize": (
        "-std=c++17",
        "-O1",
        "-g1",
        "-D_GLIBCXX_ASSERTIONS",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ),
    "tsan": ("-std=c++17", "-O1", "-g1", "-fsanitize=thread"),
}
# Of no test: what is measured.
BENCH = {"bench": ("-std=c++17", "-O2", "-DNDEBUG")}
JOBS = 2
KEEP_SECONDS = 14 * 24 * 3600


class BuildError(Exception):
    """The compiler is missing, or does not accept the sources."""


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "lmsbuild" / "engine-tests"


def tests_of(variant: str) -> tuple[str, ...]:
    """The files of tests (without suffix) that the variant is for: a race needs threads, and the
    plug-in C++17."""
    files = sorted(HERE.glob("test_*.cpp"))
    if variant == "tsan":
        files = [file for file in files if "std::thread" in file.read_text()]
    if variant == "plain14":
        files = [file for file in files if "<plugin/" not in file.read_text()]
    return tuple(file.stem for file in files)


def case_names(variant: str) -> list[str]:
    """The variant's test cases, read off the sources: known before anything is built."""
    return [
        name
        for test in tests_of(variant)
        for source in sorted(HERE.glob(f"{test}.cpp"))
        for name in re.findall(r"^TEST\((\w+)\)", source.read_text(), re.MULTILINE)
    ]


def check_syntax(variant: str, core: Path = CORE, cxx: str = "g++") -> None:
    """Raises BuildError where the compiler would not take the engine's sources, or warn. They are
    read as one, which is ten times faster: no two may name something in private alike."""
    sources = "".join(f'#include "{source.name}"\n' for source in sorted(core.glob("*.cpp")))
    flags = [*VARIANTS[variant], *WARNINGS, f"-I{core}", "-fsyntax-only"]
    _run(cxx, [*flags, "-x", "c++", "-"], sources)


def build(
    variant: str, core: Path = CORE, cxx: str = "g++", tests: tuple[str, ...] | None = None
) -> Path:
    """The program of these tests in one variant, with the engine's sources from `core`."""
    flags = (*{**VARIANTS, **BENCH}[variant], *WARNINGS, "-pthread")
    tests = tests_of(variant) if tests is None else tests
    chosen = [source for test in tests for source in sorted(HERE.glob(f"{test}.cpp"))]
    sources = [*sorted(core.glob("*.cpp")), HERE / "fake.cpp", HERE / "harness.cpp", *chosen]
    headers = [*sorted(core.glob("*.h")), *sorted(HERE.glob("*.h")), FREE_MEMORY]
    common = _digest(_compiler(cxx), *flags, *(h.name + h.read_text() for h in headers))
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{variant}.lock"), tempfile.TemporaryDirectory() as tree:
        _forget_old(root)
        _as_in_torch(Path(tree), core)

        def compile_one(source: Path) -> Path:
            target = root / f"{_digest(common, source.name, source.read_text())}.o"
            return _make(cxx, target, [*flags, f"-I{core}", f"-I{tree}", "-c", str(source)])

        with ThreadPoolExecutor(JOBS) as pool:
            objects = list(pool.map(compile_one, sources))
        program = root / _digest(cxx, *flags, *(o.name for o in objects))
        return _make(cxx, program, [*flags, *map(str, objects)])


def run_case(
    program: Path, case: str, *options: str, timeout: float = 600, variables: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Runs one case. A sanitizer's report makes it fail."""
    env = {
        **os.environ,
        "TSAN_OPTIONS": "halt_on_error=1:detect_deadlocks=1",
        "ASAN_OPTIONS": "detect_leaks=1",
    }
    env |= variables
    return subprocess.run(
        [program, case, *options], capture_output=True, text=True, timeout=timeout, env=env
    )


def _as_in_torch(folder: Path, core: Path) -> None:
    """Lays the engine and the plug-in out as in PyTorch's tree, to include from there."""
    for link, target in {"c10/cuda/lms/core": core, "plugin": FREE_MEMORY.parent}.items():
        (folder / link).parent.mkdir(parents=True, exist_ok=True)
        (folder / link).symlink_to(target.resolve())


@cache
def _compiler(cxx: str) -> str:
    try:
        done = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(
            f"the engine's tests cannot be built because {cxx} does not run ({error}); "
            "install a C++ compiler (Debian: apt-get install g++)"
        ) from error
    return done.stdout


def _make(cxx: str, target: Path, arguments: list[str]) -> Path:
    if target.exists():
        os.utime(target)
        return target
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    _run(cxx, [*arguments, "-o", str(partial)])
    partial.replace(target)
    return target


def _run(cxx: str, arguments: list[str], source: str = "") -> None:
    done = subprocess.run(
        [cxx, *arguments], input=source, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"{cxx} {' '.join(arguments)}\n{done.stderr}")


def _forget_old(root: Path) -> None:
    for path in root.iterdir():
        if path.suffix != ".lock" and path.stat().st_mtime < time.time() - KEEP_SECONDS:
            path.unlink(missing_ok=True)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
