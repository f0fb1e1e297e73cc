# SPDX-License-Identifier: Apache-2.0
"""The library with the operator boundary. It is loaded, once, when it is first needed: who never
enables Large Model Support runs nothing of it."""

from __future__ import annotations

import os
from typing import Any, Callable, List, Optional

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


class _Operators:
    """Those of csrc/bindings.cpp. They are no operators of the program: no mode of it sees them."""

    def __getattr__(self, name: str) -> Any:
        registered = torch.ops.lms
        operator = versions.past_modes(getattr(registered, name))
        setattr(self, name, operator)
        return operator


_operators = _Operators()


def ops() -> Any:
    """Its operators."""
    return _operators


class Hold:
    """Pins of tensors, until it is released, or dies: what ends them is the death of one object,
    between whose steps no signal is seen."""

    def __init__(self) -> None:
        self._held: Optional[torch.Tensor] = None

    def take(self, tensors: List[torch.Tensor]) -> None:
        """More of them. Raises what is out of memory, and holds none of these then."""
        ops().hold(self._holder(), tensors)

    def take_for_any_stream(self, tensors: List[torch.Tensor]) -> None:
        """The same; the host waits until they are there."""
        ops().pin(self._holder(), tensors)

    def release(self) -> None:
        self._held = None

    def _holder(self) -> torch.Tensor:
        if self._held is None:
            self._held = ops().new_hold()
        return self._held


def enabled() -> bool:
    """Whether Large Model Support is on now: not if it is only wanted."""
    return _loaded and ops().enabled()


def active() -> bool:
    """Whether tensors may be out, or leave: also when it was turned off and some are not back yet.
    What reaches memory past the operators asks this, as the operators do."""
    return _loaded and ops().active()
