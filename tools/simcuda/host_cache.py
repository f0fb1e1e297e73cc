# SPDX-License-Identifier: Apache-2.0
"""PyTorch's cache of pinned host memory."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

# at::cuda::CachingHostAllocator_emptyCache(), and where a torch has it that has no Python name for
# it (1.13).
_SYMBOL = "_ZN2at4cuda31CachingHostAllocator_emptyCacheEv"
_LIBRARY = "libtorch_cuda_cpp.so"


def empty_host_cache(torch: Any) -> None:
    """Give back to the device what `torch` keeps of pinned host memory that nobody uses."""
    empty = getattr(torch._C, "_host_emptyCache", None)
    if empty is None:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / _LIBRARY))
        empty = library[_SYMBOL]
        empty.restype = None
    empty()
