# SPDX-License-Identifier: Apache-2.0
"""The library with the operator boundary. It is loaded, once, when it is first needed: who never
enables Large Model Support runs nothing of it."""

from __future__ import annotations

import os
from typing import Any

import torch

_loaded = False


def path() -> str:
    return os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_lms.so")


def load() -> None:
    """Raises RuntimeError where this PyTorch has no such library."""
    global _loaded
    library = path()
    if not os.path.exists(library):
        raise RuntimeError(
            f"Large Model Support is not part of this build of PyTorch because {library} is "
            "missing; install the whole wheel again"
        )
    torch.ops.load_library(library)
    _loaded = True


def loaded() -> bool:
    return _loaded


def ops() -> Any:
    """Its operators: those of csrc/bindings.cpp."""
    return torch.ops.lms


def active() -> bool:
    """Whether Large Model Support is at work now: not if it is only wanted."""
    return _loaded and torch.ops.lms.enabled()
