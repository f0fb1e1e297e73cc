# SPDX-License-Identifier: Apache-2.0
"""The library with the operator boundary. It is loaded, once, when it is first needed: who never
enables Large Model Support runs nothing of it."""

from __future__ import annotations

import os
from typing import Any, Callable

import torch

from . import versions

_loaded = False


def path() -> str:
    return os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_lms.so")


def load(prepare: Callable[[Any], None]) -> None:
    """Loads it, and has `prepare` do what goes with it. It counts as loaded when that is done:
    after a failure the next call begins anew.

    Raises RuntimeError where this PyTorch has no such library, and what `prepare` raises.
    """
    global _loaded
    library = path()
    if not os.path.exists(library):
        raise RuntimeError(
            f"Large Model Support is not part of this build of PyTorch because {library} is "
            "missing; install the whole wheel again"
        )
    torch.ops.load_library(library)
    prepare(ops())
    _loaded = True


def in_child() -> bool:
    """Whether this is the child of a fork of a process that used CUDA: it has no device, nor the
    threads of its parent that may hold a lock of the library."""
    return versions.in_bad_fork()


def loaded() -> bool:
    """Whether its operators may be called."""
    return _loaded and not in_child()


def over_forks(lock: Any) -> Any:
    """The lock, which is free in the child of a fork."""
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock


def ops() -> Any:
    """Its operators: those of csrc/bindings.cpp."""
    return torch.ops.lms


def enabled() -> bool:
    """Whether Large Model Support is on now: not if it is only wanted."""
    return _loaded and torch.ops.lms.enabled()


def active() -> bool:
    """Whether tensors may be out, or leave: also when it was turned off and some are not back yet.
    What reaches memory past the operators asks this, as the operators do."""
    return _loaded and torch.ops.lms.active()
