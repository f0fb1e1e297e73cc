# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profiler notes the pointers of tensors, and follows none. In chaos mode a look at one
that is out raises, inside of the profiler, which ends the process: not while it runs."""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any, Callable

from . import library

_lock = threading.Lock()
_running = 0


def _count(change: int) -> None:
    global _running
    with _lock:
        _running = max(0, _running + change)
        library.ops().set_refusing(_running == 0)


def _starting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _count(1)
        try:
            return function(*args, **kwargs)
        except BaseException:
            _count(-1)
            raise

    return wrapper


def _ending(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            _count(-1)

    return wrapper


def install() -> None:
    """From now on no look raises while a profiler runs, also one that does already."""
    profiler: Any = importlib.import_module("torch.autograd.profiler")
    profiler._enable_profiler = _starting(profiler._enable_profiler)
    profiler._disable_profiler = _ending(profiler._disable_profiler)
    if profiler._is_profiler_enabled:
        _count(1)
