# SPDX-License-Identifier: Apache-2.0
"""The CUDA runtime that some libraries of torch have linked into them (libtorch_python of 1.13, and
libc10_cuda of its official wheel): each of its functions jumps into the simulated one."""

from __future__ import annotations

import ctypes
import mmap
import re
import subprocess
from pathlib import Path

from .errors import SimcudaError

LIBRARIES = ("libtorch_python.so", "libc10_cuda.so")
# nm: where it is, how long, a function of the library's own or one that it shows, its name.
_FUNCTION = re.compile(r"^([0-9a-f]+) ([0-9a-f]+) [tT] (cuda[A-Z]\w*)$", re.MULTILINE)
_READ, _WRITE, _EXECUTE = 1, 2, 4


def redirect(lib: Path, runtime: ctypes.CDLL) -> int:
    """In the loaded libraries in `lib`. Returns the number of functions. Raises SimcudaError where
    one has no room for the jump."""
    redirected = 0
    for name in LIBRARIES:
        for start, size, function in _functions(lib / name):
            target = getattr(runtime, function, None)
            if target is None:
                continue
            jump = _jump_to(ctypes.cast(target, ctypes.c_void_p).value or 0)
            if size < len(jump):
                raise SimcudaError(
                    f"{name} cannot run on the simulated device because its {function} has "
                    f"{size} bytes, and a jump needs {len(jump)}"
                )
            _write(_base(lib / name) + start, jump)
            redirected += 1
    return redirected


def _functions(path: Path) -> list[tuple[int, int, str]]:
    listed = subprocess.run(
        ["nm", "--defined-only", "-S", str(path)], capture_output=True, text=True
    ).stdout
    return [(int(at, 16), int(size, 16), name) for at, size, name in _FUNCTION.findall(listed)]


def _base(path: Path) -> int:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(f" {path.resolve()}"):
            return int(line.split("-")[0], 16)
    raise SimcudaError(f"{path} is not loaded; import torch first")


def _jump_to(target: int) -> bytes:
    """movabs r11, target; jmp r11"""
    return b"\x49\xbb" + target.to_bytes(8, "little") + b"\x41\xff\xe3"


def _write(at: int, code: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    page = at & -mmap.PAGESIZE
    length = at + len(code) - page
    for access in (_READ | _WRITE | _EXECUTE, _READ | _EXECUTE):
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(length), access) != 0:
            raise SimcudaError("a function of torch cannot be redirected: mprotect is refused")
        if access & _WRITE:
            ctypes.memmove(at, code, len(code))
