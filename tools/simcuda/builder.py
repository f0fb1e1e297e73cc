# SPDX-License-Identifier: Apache-2.0
"""Builds the native part for an installed framework, and caches it by all that it is made from."""

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
from typing import TYPE_CHECKING

from . import stubs, tfinfo
from .errors import SimcudaError
from .statics import functions_in
from .tfinfo import TensorFlow, find_tensorflow
from .torchinfo import Torch, cuda_includes, find_torch

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "src"
# The folders of the sources that are compiled against torch, of TensorFlow's front, of the device.
TORCH, TENSORFLOW = ("kernels", "dry"), ("tensorflow",)
RUNTIME = ("clock", "order", "runtime")
MANIFEST = "build.json"

if TYPE_CHECKING:
    Progress = Callable[[str], None]
    Unit = tuple[Path, list[str]]  # a source and its flags


@dataclass(frozen=True)
class Build:
    """A finished build in `path`: libcudart, libcuda, the stand-ins; torch's kernels."""

    path: Path

    @property
    def libraries(self) -> list[Path]:
        """What must be loaded before the framework, in this order."""
        manifest = json.loads((self.path / MANIFEST).read_text())
        return [self.path / name for name in manifest["preload"]]

    @property
    def xla_flags(self) -> list[str]:
        """What XLA is told, if it is TensorFlow's, beside what the user tells it."""
        told: list[str] = json.loads((self.path / MANIFEST).read_text()).get("xla", [])
        return [flag.format(build=self.path) for flag in told]

    @property
    def statics(self) -> list[tuple[int, int, str]]:
        """The functions of the runtime that TensorFlow's kernels have linked to them."""
        found: list[tuple[int, int, str]]
        found = json.loads((self.path / MANIFEST).read_text()).get("statics", [])
        return found

    @property
    def kernels(self) -> Path:
        return self.path / "libsimcuda_kernels.so"


def cache_root() -> Path:
    folder = os.environ.get("SIMCUDA_CACHE")
    if folder:
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
    python = ("stubs.py", "tfinfo.py", "statics.py", "builder.py")
    return [*native, *(PACKAGE / name for name in python)]


def build_key(framework: Torch | TensorFlow) -> str:
    """Names a build by its sources, the framework it is for and the compiler. An overlay wheel
    (2.6.0+cu124.lms.1) has the interfaces of the official one: one build."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    binary = shutil.which(compiler())
    tool = Path(binary).stat() if binary else None
    version = framework.version.split(".lms.")[0]
    if isinstance(framework, Torch):
        name, cuda, library = "torch", framework.cuda, framework.lib / "libc10.so"
    else:
        name, cuda, library = "tensorflow", framework.sonames[0], framework.kernels
    facts = (version, cuda, library.stat().st_size, binary, tool and (tool.st_size, tool.st_mtime))
    digest.update(repr(facts).encode())
    return f"{name}-{version}-{digest.hexdigest()[:16]}"


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
    found = torch

    def compile_all(work: Path, say: Progress) -> None:
        _compile(found, cuda_includes(found, includes or environment_includes()), work, jobs, say)

    return _kept(out, lambda: build_key(found), compile_all, progress)


def build_for_tensorflow(
    out: Path | None = None, jobs: int = 2, progress: Progress | None = None
) -> Build:
    """The same for the installed TensorFlow."""
    tensorflow = find_tensorflow()
    if tensorflow is None:
        raise SimcudaError(f"TensorFlow is not installed here; install {tfinfo.REQUIREMENT}")
    found = tensorflow

    def compile_all(work: Path, say: Progress) -> None:
        _compile_for_tensorflow(found, work, jobs, say)

    return _kept(out, lambda: build_key(found), compile_all, progress)


def _kept(
    out: Path | None,
    key_of: Callable[[], str],
    make: Callable[[Path, Progress], None],
    progress: Progress | None,
) -> Build:
    """The build of that key in `out` or the cache; `make` makes it in a folder if need be. Raises
    SimcudaError where it cannot be kept."""
    key = key_of()
    target = out or cache_root() / key

    def make_of_one(work: Path, say: Progress) -> None:
        make(work, say)
        if key_of() != key:  # parts of it would not fit each other
            raise SimcudaError(
                "the device was not built because its sources were changed meanwhile; run the "
                "command again"
            )

    try:
        return _made(target, key, make_of_one, progress)
    except OSError as error:
        raise SimcudaError(
            f"the device cannot be built in {target.parent} because of {error.strerror or error}; "
            "name another folder with SIMCUDA_CACHE"
        ) from None


def _made(
    target: Path, key: str, make: Callable[[Path, Progress], None], progress: Progress | None
) -> Build:
    if _matches(target, key):
        return Build(target)
    if shutil.which(compiler()) is None:
        raise SimcudaError(
            f"the compiler {compiler()} was not found; install g++ (Debian: apt-get install g++)"
        )
    with _locked(target):
        for killed in target.parent.glob(f".{target.name}-*"):  # nobody else is here
            shutil.rmtree(killed, ignore_errors=True)
        if not _matches(target, key):
            started = time.monotonic()
            say = progress or (lambda _: None)
            work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                make(work, say)
                if target.exists():
                    shutil.rmtree(target)
                work.rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            say(f"built in {time.monotonic() - started:.0f} s: {target}")
    return Build(target)


def _matches(target: Path, key: str) -> bool:
    file = target / MANIFEST
    return file.is_file() and bool(json.loads(file.read_text()).get("key") == key)


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
    for source in _of(*TORCH) if torch.computes else ():
        units.append((source, ["-O1", "-DNDEBUG", abi, *against]))
    say(f"compiling for torch {torch.version}")
    tools = Tools(compiler())
    preload, kernels = _build(tools, folders, torch.cudart, work, jobs, say, units, torch.told)
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

    if torch.computes:
        _link_kernels(torch, tools, kernels, work)
    shutil.rmtree(objects)
    manifest = {"key": build_key(torch), "torch": str(torch.path), "preload": preload}
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _link_kernels(torch: Torch, tools: Tools, kernels: Sequence[Path], work: Path) -> None:
    # Some releases have the CUDA part in two libraries.
    parts_of_cuda = [f"torch_cuda{part}" for part in ("", "_cpp", "_cu")]
    names = ["torch_cpu", "c10", "c10_cuda", *parts_of_cuda]
    torch_libs = [f"-l{name}" for name in names if (torch.lib / f"lib{name}.so").exists()]
    search = [f"-L{torch.lib}", f"-Wl,-rpath-link,{work}", f"-Wl,-rpath-link,{torch.lib}"]
    _link(
        tools.cxx,
        [*kernels, *search, "-Wl,--no-as-needed", *torch_libs, work / torch.cudart, "-Wl,-z,defs"],
        work / "libsimcuda_kernels.so",
    )


def build_runtime(
    tools: Tools, folders: list[Path], cuda_major: int, work: Path, jobs: int, say: Progress
) -> list[str]:
    """The device alone in `work`, without the kernels that need a torch: libcudart, libcuda and
    libnvidia-ml. `folders` hold the CUDA headers."""
    (work / "objects").mkdir()
    return _build(tools, folders, f"libcudart.so.{cuda_major}", work, jobs, say, [])[0]


def _compile_for_tensorflow(tensorflow: TensorFlow, work: Path, jobs: int, say: Progress) -> None:
    (work / "objects").mkdir()
    folders, tools = tensorflow.includes(environment_includes()), Tools(compiler())
    say(f"compiling for TensorFlow {tensorflow.version}")
    # A release that asks nothing of NVML has no headers of it.
    asks = tfinfo.NVML in tensorflow.sonames
    sources = [s for s in _of(*RUNTIME, *TENSORFLOW) if asks or s.stem != "nvml"]
    told = [f"-DSIMCUDA_CUDA_VERSION={tensorflow.cuda}"] if tensorflow.cuda else []
    compiled = _compiled(tools, folders, work, jobs, say, _plain(sources, told))
    runtime, *others = tensorflow.sonames
    names = tensorflow.names()
    generated = work / "objects/libraries.c"
    names -= stubs.defined_symbols(compiled, tools.nm)
    generated.write_text(stubs.dry_library_source(names))
    compiled.append(generated.with_suffix(".o"))
    _call([tools.cc, "-w", "-fno-builtin", "-fPIC", "-c", generated, "-o", compiled[-1]])
    _link_runtime(tools, runtime, folders, work, compiled, [f"{p}*" for p in tfinfo.LIBRARIES])
    _link_aliases(tools, runtime, others, work)
    say(f"made {len(tensorflow.sonames)} libraries, with {len(names)} functions that are generated")
    shutil.rmtree(work / "objects")
    manifest = {
        "key": build_key(tensorflow),
        "tensorflow": str(tensorflow.path),
        "preload": list(tensorflow.sonames),
        "xla": list(tensorflow.xla),
        "statics": functions_in(tensorflow.kernels) if tensorflow.cuda else [],
    }
    ptxas = work / "bin/ptxas"
    ptxas.parent.mkdir()
    ptxas.write_text(stubs.ptxas_source())
    ptxas.chmod(0o755)
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _of(*parts: str) -> list[Path]:
    return [s for part in parts for s in sorted((SOURCES / part).glob("*.cpp"))]


def _plain(sources: list[Path], told: Sequence[str] = ()) -> list[Unit]:
    return [(source, ["-O2", "-D_GNU_SOURCE", *told]) for source in sources]


def _build(
    tools: Tools, folders: list[Path], soname: str, work: Path, jobs: int, say: Progress,
    units: list[Unit], told: Sequence[str] = (),
) -> tuple[list[str], list[Path]]:  # fmt: skip
    """The names of the runtime's libraries, and the objects of `units`."""
    compiled = _compiled(tools, folders, work, jobs, say, [*units, *_plain(_of(*RUNTIME), told)])
    _link_runtime(tools, soname, folders, work, compiled[len(units) :])
    aliases = ["libcuda.so.1", "libnvidia-ml.so.1"]
    _link_aliases(tools, soname, aliases, work)
    return [soname, *aliases], compiled[: len(units)]


def _compiled(
    tools: Tools, folders: list[Path], work: Path, jobs: int, say: Progress, units: list[Unit]
) -> list[Path]:
    """The objects of these sources."""
    objects = work / "objects"
    common = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"]
    cuda = [flag for folder in folders for flag in ("-isystem", str(folder))]

    def compile_one(unit: Unit) -> Path:
        source, flags = unit
        result = objects / f"{source.parent.name}-{source.stem}.o"
        include = ["-I", str(SOURCES / "runtime")]
        _call([tools.cxx, *common, *flags, *include, *cuda, "-c", source, "-o", result])
        say(f"compiled {source.parent.name}/{source.name}")
        return result

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        return list(pool.map(compile_one, units))


def _link_aliases(tools: Tools, soname: str, others: Sequence[str], work: Path) -> None:
    """Libraries of these names in which the functions of the one are found."""
    empty = work / "objects/empty.c"
    empty.write_text("")
    parts: list[str | Path] = [
        empty, "-Wl,--no-as-needed", work / soname, "-Wl,-rpath,$ORIGIN"
    ]  # fmt: skip
    for other in others:
        _link(tools.cc, parts, work / other)


def _link_runtime(
    tools: Tools,
    soname: str,
    folders: list[Path],
    work: Path,
    objects: list[Path],
    libraries: Sequence[str] = (),
) -> None:
    """libcudart: the simulation, and a refusal for every other function of the API. It also has
    the functions of these patterns."""
    source, script = work / "objects/unsupported.c", work / "objects/cudart.map"
    rest = stubs.api_functions(folders) - stubs.defined_symbols(objects, tools.nm)
    source.write_text(stubs.api_source(rest))
    patterns = ["cuda*", "__cuda*", "simcuda_*", "cu[A-Z]*", "nvml*", *libraries]
    script.write_text(f"{soname} {{ global: {' '.join(p + ';' for p in patterns)} local: *; }};\n")
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
