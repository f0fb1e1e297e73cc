# SPDX-License-Identifier: Apache-2.0
"""The CUDA runtime that some libraries have linked into them (libtorch_python of torch 1.13, and
libc10_cuda of its official wheel; the kernels of TensorFlow 2.1 and 2.2): each of its functions
jumps into the simulated one. What registers kernels has run by then, and is left as it is."""

from __future__ import annotations

import ctypes
import mmap
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import SimcudaError

LIBRARIES = ("libtorch_python.so", "libc10_cuda.so")
# nm: where it is, how long, a function of the library's own or one that it shows, its name. Those
# with `__` are what compiled code calls around a launch.
_FUNCTION = re.compile(
    r"^([0-9a-f]+) ([0-9a-f]+) [tT] (cuda[A-Z]\w*|__cudaP\w+CallConfiguration)$", re.MULTILINE
)
_READ, _WRITE, _EXECUTE = 1, 2, 4


def redirect_torch(lib: Path, runtime: ctypes.CDLL) -> int:
    """Those of the loaded libraries in `lib`."""
    libraries = [lib / name for name in LIBRARIES]
    return sum(redirect(library, functions_in(library), runtime) for library in libraries)


def redirect(library: Path, functions: Sequence[tuple[int, int, str]], runtime: ctypes.CDLL) -> int:
    """These functions of the loaded library. Returns how many the runtime has. Raises SimcudaError
    where one has no room for the jump."""
    redirected = 0
    base = _base(library) if functions else 0
    for start, size, function in functions:
        target = getattr(runtime, function, None)
        if target is None:
            continue
        jump = _jump_to(ctypes.cast(target, ctypes.c_void_p).value or 0)
        if size < len(jump):
            raise SimcudaError(
                f"{library.name} cannot run on the simulated device because its {function} has "
                f"{size} bytes, and a jump needs {len(jump)}"
            )
        _write(base + start, jump)
        redirected += 1
    return redirected


def functions_in(path: Path) -> list[tuple[int, int, str]]:
    """Where in the library each function of a runtime is, and how long."""
    listed = subprocess.run(
        ["nm", "--defined-only", "-S", str(path)], capture_output=True, text=True
    ).stdout
    return [(int(at, 16), int(size, 16), name) for at, size, name in _FUNCTION.findall(listed)]


def _base(path: Path) -> int:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(f" {path.resolve()}"):
            return int(line.split("-")[0], 16)
    raise SimcudaError(f"{path} is not loaded; import the framework first")


def _jump_to(target: int) -> bytes:
    """movabs r11, target; jmp r11"""
    return b"\x49\xbb" + target.to_bytes(8, "little") + b"\x41\xff\xe3"


def _write(at: int, code: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    page = at & -mmap.PAGESIZE
    length = at + len(code) - page
    for access in (_READ | _WRITE | _EXECUTE, _READ | _EXECUTE):
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(length), access) != 0:
            raise SimcudaError("a function of CUDA cannot be redirected: mprotect is refused")
        if access & _WRITE:
            ctypes.memmove(at, code, len(code))
