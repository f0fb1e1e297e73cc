# SPDX-License-Identifier: Apache-2.0
"""Builds the native part for one installed torch, and caches it by everything it is made from."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import stubs
from .errors import SimcudaError
from .torchinfo import Torch, cuda_includes, find_torch

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "src"
# The folders of the sources that are compiled against torch, and of the others.
TORCH, RUNTIME = ("kernels", "dry"), ("clock", "order", "runtime")
MANIFEST = "build.json"

Progress = Callable[[str], None]
Unit = tuple[Path, list[str]]  # a source and its flags


@dataclass(frozen=True)
class Build:
    """A finished build in `path`: libcudart, libcuda, libnvidia-ml, the stand-ins, the kernels."""

    path: Path

    @property
    def libraries(self) -> list[Path]:
        """What must be loaded before torch, in this order."""
        manifest = json.loads((self.path / MANIFEST).read_text())
        return [self.path / name for name in manifest["preload"]]

    @property
    def kernels(self) -> Path:
        return self.path / "libsimcuda_kernels.so"


def cache_root() -> Path:
    if folder := os.environ.get("SIMCUDA_CACHE"):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lmsbuild" / "simcuda"


def compiler() -> str:
    return os.environ.get("CXX", "g++")


@dataclass(frozen=True)
class Tools:
    """What makes the libraries; for another architecture, its cross compilers."""

    cxx: str
    cc: str = "gcc"
    nm: str = "nm"


def environment_includes() -> list[Path]:
    paths = os.environ.get("SIMCUDA_CUDA_INCLUDE", "")
    return [Path(p) for p in paths.split(os.pathsep) if p]


def _sources() -> list[Path]:
    native = sorted(p for p in SOURCES.rglob("*") if p.suffix in (".cpp", ".h"))
    return [*native, PACKAGE / "stubs.py", PACKAGE / "builder.py"]


def build_key(torch: Torch) -> str:
    """Names a build by its sources, the torch it is for and the compiler."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    stat = (torch.lib / "libc10.so").stat()
    binary = shutil.which(compiler())
    tool = Path(binary).stat() if binary else None
    facts = (
        _version(torch),
        torch.cuda,
        stat.st_size,
        binary,
        tool and (tool.st_size, tool.st_mtime),
    )
    digest.update(repr(facts).encode())
    return f"torch-{_version(torch)}-{digest.hexdigest()[:16]}"


def _version(torch: Torch) -> str:
    """An overlay wheel (2.6.0+cu124.lms.1) has the interfaces of the official one: one build."""
    return torch.version.split(".lms.")[0]


def build(
    torch: Torch | None = None,
    includes: list[Path] | None = None,
    out: Path | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
) -> Build:
    """The build for `torch` (default: the installed one), made now unless the cache has it.

    Raises SimcudaError if there is no torch, no compiler, no CUDA headers, or on a failed compile.
    """
    torch = torch or find_torch()
    if torch is None:
        raise SimcudaError("torch is not installed here; install it, or name it with --torch")
    target = out or cache_root() / build_key(torch)
    if (target / MANIFEST).is_file() and _matches(target, torch):
        return Build(target)
    if shutil.which(compiler()) is None:
        raise SimcudaError(
            f"the compiler {compiler()} was not found; install g++ (Debian: apt-get install g++)"
        )
    folders = cuda_includes(torch, includes or environment_includes())
    with _locked(target):
        if not ((target / MANIFEST).is_file() and _matches(target, torch)):
            started = time.monotonic()
            say = progress or (lambda _: None)
            work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                _compile(torch, folders, work, jobs, say)
                if target.exists():
                    shutil.rmtree(target)
                work.rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            say(f"built in {time.monotonic() - started:.0f} s: {target}")
    return Build(target)


def _matches(target: Path, torch: Torch) -> bool:
    return bool(json.loads((target / MANIFEST).read_text()).get("key") == build_key(torch))


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(torch: Torch, folders: list[Path], work: Path, jobs: int, say: Progress) -> None:
    objects = work / "objects"
    objects.mkdir()
    headers = [torch.path / "include", torch.path / "include/torch/csrc/api/include"]
    against = [flag for folder in headers for flag in ("-isystem", str(folder))]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(_new_abi(torch))}"
    units: list[Unit] = []
    # The kernels first: they take longest.
    for source in [s for part in TORCH for s in sorted((SOURCES / part).glob("*.cpp"))]:
        units.append((source, ["-O1", "-DNDEBUG", abi, *against]))
    say(f"compiling for torch {torch.version}")
    tools = Tools(compiler())
    preload, kernels = _build(tools, folders, torch.cuda_major, work, jobs, say, units)
    cudart = preload[0]
    parts: list[str | Path]
    for library in stubs.needed_libraries(torch.lib):
        source, script = objects / f"{library.name}.c", objects / f"{library.name}.map"
        source.write_text(stubs.library_source(library))
        script.write_text(stubs.version_script(library))
        parts = [source, f"-Wl,--version-script={script}", work / cudart, "-Wl,-rpath,$ORIGIN"]
        _link(tools.cc, parts, work / library.soname)
        preload.append(library.soname)
    say(f"made {len(preload)} stand-in libraries")

    torch_libs = ["-ltorch_cpu", "-lc10", "-lc10_cuda", "-ltorch_cuda"]
    search = [f"-L{torch.lib}", f"-Wl,-rpath-link,{work}", f"-Wl,-rpath-link,{torch.lib}"]
    _link(
        tools.cxx,
        [*kernels, *search, "-Wl,--no-as-needed", *torch_libs, work / cudart, "-Wl,-z,defs"],
        work / "libsimcuda_kernels.so",
    )
    shutil.rmtree(objects)
    manifest = {"key": build_key(torch), "torch": str(torch.path), "preload": preload}
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def build_runtime(
    tools: Tools, folders: list[Path], cuda_major: int, work: Path, jobs: int, say: Progress
) -> list[str]:
    """The device alone in `work`, without the kernels that need a torch: libcudart, libcuda and
    libnvidia-ml. `folders` hold the CUDA headers."""
    (work / "objects").mkdir()
    return _build(tools, folders, cuda_major, work, jobs, say, [])[0]


def _build(
    tools: Tools, folders: list[Path], cuda_major: int, work: Path, jobs: int, say: Progress,
    units: list[Unit],
) -> tuple[list[str], list[Path]]:  # fmt: skip
    """The names of the runtime's libraries, and the objects of `units`."""
    objects = work / "objects"
    common = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"]
    cuda = [flag for folder in folders for flag in ("-isystem", str(folder))]
    sources = [s for part in RUNTIME for s in sorted((SOURCES / part).glob("*.cpp"))]
    runtime: list[Unit] = [(source, ["-O2", "-D_GNU_SOURCE"]) for source in sources]

    def compile_one(unit: Unit) -> Path:
        source, flags = unit
        result = objects / f"{source.parent.name}-{source.stem}.o"
        include = ["-I", str(SOURCES / "runtime")]
        _call([tools.cxx, *common, *flags, *include, *cuda, "-c", source, "-o", result])
        say(f"compiled {source.parent.name}/{source.name}")
        return result

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        compiled = list(pool.map(compile_one, [*units, *runtime]))
    cudart = _link_runtime(tools, cuda_major, folders, work, compiled[len(units) :])
    empty = objects / "empty.c"
    empty.write_text("")
    preload = [cudart, "libcuda.so.1", "libnvidia-ml.so.1"]
    parts: list[str | Path] = [
        empty, "-Wl,--no-as-needed", work / cudart, "-Wl,-rpath,$ORIGIN"
    ]  # fmt: skip
    for soname in preload[1:]:
        _link(tools.cc, parts, work / soname)
    return preload, compiled[: len(units)]


def _link_runtime(
    tools: Tools, cuda_major: int, folders: list[Path], work: Path, objects: list[Path]
) -> str:
    """libcudart: the simulation, and a refusal for every other function of the API."""
    soname = f"libcudart.so.{cuda_major}"
    source, script = work / "objects/unsupported.c", work / "objects/cudart.map"
    rest = stubs.api_functions(folders) - stubs.defined_symbols(objects, tools.nm)
    source.write_text(stubs.api_source(rest))
    script.write_text(
        f"{soname} {{ global: cuda*; __cuda*; simcuda_*; cu[A-Z]*; nvml*; local: *; }};\n"
    )
    refusals = work / "objects/runtime-unsupported.o"
    _call([tools.cc, "-w", "-fno-builtin", "-fPIC", "-c", source, "-o", refusals])
    parts: list[str | Path] = [
        *objects,
        refusals,
        f"-Wl,--version-script={script}",
        "-pthread",
        "-Wl,-z,defs",
    ]
    _link(tools.cxx, parts, work / soname)
    return soname


def _link(driver: str, parts: Sequence[str | Path], target: Path) -> None:
    name = f"-Wl,-soname,{target.name}"
    _call([driver, "-w", "-fno-builtin", "-shared", "-fPIC", *parts, name, "-o", target])


def _call(command: list[str | Path]) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        text = "\n".join(done.stderr.strip().splitlines()[:12])
        raise SimcudaError(f"{command[0]} failed on {command[-1]}; this is what it says:\n{text}")
    if done.stderr.strip():
        print(done.stderr, file=sys.stderr)


def _new_abi(torch: Torch) -> bool:
    """Whether torch was built with the C++11 ABI: its own functions then take __cxx11 strings."""
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(torch.lib / "libc10.so")], capture_output=True, text=True
    ).stdout
    return any("torchCheckFail" in s and "__cxx11" in s for s in symbols.splitlines())
