# SPDX-License-Identifier: Apache-2.0
"""Builds and calls extension.cpp."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from lms_device import HERE


@lru_cache(maxsize=1)
def cudart() -> ctypes.CDLL:
    """The CUDA runtime that torch uses; torchvision, for one, brings another of its own. On the
    simulated device 1.13 has a real one at hand, and all that is called goes to the simulated."""
    if not hasattr(torch, "compile"):
        return ctypes.CDLL(None)
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10_cuda.so"))  # and its needs


class Extension:
    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("g++")
        assert compiler, "g++ is missing: install it to build the test extension"
        package = Path(torch.__file__).parent
        library = folder / "extension.so"
        newer = (package / "include/c10/core/StorageMaterializer.h").exists()
        subprocess.run(
            [
                compiler, f"-std=c++{20 if newer else 17}", "-O1", "-shared", "-fPIC", "-DNDEBUG",
                f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                f"-I{package / 'include'}", str(HERE / "extension.cpp"), "-o", str(library),
                f"-L{package / 'lib'}", "-lc10",
            ],
            check=True,
        )  # fmt: skip
        self._library = ctypes.CDLL(str(library))
        for name in ("fill", "record", "pointer"):
            getattr(self._library, f"extension_{name}").restype = ctypes.c_char_p

    def fill(self, tensor: torch.Tensor, value: int) -> str:
        """Set every byte behind the tensor on the current stream. Returns the error, or ""."""
        memset = ctypes.cast(cudart().cudaMemsetAsync, ctypes.c_void_p)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        address = ctypes.c_void_p(tensor._cdata)
        return str(self._library.extension_fill(address, memset, value, stream).decode())

    def record(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> str:
        """record_stream, past every operator. Returns the error, or ""."""
        address = ctypes.c_void_p(tensor._cdata)
        number = ctypes.c_int64(stream.stream_id)
        return str(self._library.extension_record(address, number).decode())

    def pointer(self, tensor: torch.Tensor) -> tuple[int | None, str]:
        pointer = ctypes.c_void_p()
        address = ctypes.c_void_p(tensor._cdata)
        error: Any = self._library.extension_pointer(address, ctypes.byref(pointer))
        return pointer.value, error.decode()


class OwnedStream:
    """A stream that the program makes, and destroys, without PyTorch."""

    def __init__(self) -> None:
        torch.cuda.init()
        self._handle, non_blocking = ctypes.c_void_p(), 1
        assert cudart().cudaStreamCreateWithFlags(ctypes.byref(self._handle), non_blocking) == 0
        self.stream = torch.cuda.ExternalStream(self._handle.value)

    def destroy(self) -> None:
        assert cudart().cudaStreamDestroy(self._handle) == 0


def set_bytes(pointer: int, value: int, count: int) -> None:
    """What a kernel does that was given a raw pointer."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    status = cudart().cudaMemsetAsync(
        ctypes.c_void_p(pointer), value, ctypes.c_size_t(count), stream
    )
    assert status == 0


def copy_bytes(to: int, source: int, count: int) -> None:
    """What a kernel does that was given two raw pointers."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    default = 4  # cudaMemcpyDefault: what is where follows from the pointers
    status = cudart().cudaMemcpyAsync(
        ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(count), default, stream
    )
    assert status == 0
