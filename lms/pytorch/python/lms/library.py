# SPDX-License-Identifier: Apache-2.0
"""The library with the operator boundary. It is loaded, once, when it is first needed: who never
enables Large Model Support runs nothing of it."""

from __future__ import annotations

import itertools
import os
from typing import Any, Callable, List

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
    """Pins of tensors, until it is released. It is there before it holds any, so that whatever
    comes in between, as a signal, leaves none."""

    _names = itertools.count()

    def __init__(self) -> None:
        self._name = next(self._names)

    def take(self, tensors: List[torch.Tensor]) -> None:
        """More of them. Raises what is out of memory, and holds none of these then."""
        ops().hold(self._name, tensors)

    def take_for_any_stream(self, tensors: List[torch.Tensor]) -> None:
        """The same; the host waits until they are there."""
        ops().pin(self._name, tensors)

    def release(self) -> None:
        if loaded():
            ops().let_go(self._name)


def enabled() -> bool:
    """Whether Large Model Support is on now: not if it is only wanted."""
    return _loaded and ops().enabled()


def active() -> bool:
    """Whether tensors may be out, or leave: also when it was turned off and some are not back yet.
    What reaches memory past the operators asks this, as the operators do."""
    return _loaded and ops().active()
