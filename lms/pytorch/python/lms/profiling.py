# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profilers note the pointers of tensors, and follow none. In chaos mode a look at one
that is out raises, inside of the profiler, which ends the process: not while it runs."""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any, Callable, Iterator

from . import library, objects, versions

_lock = library.over_forks(threading.Lock())
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


def _already() -> Iterator[bool]:
    """For each profiler, or what may be one, whether it runs."""
    yield versions.profiling()
    observers = versions.execution_observers()
    if observers is not None:
        kind, running = observers
        for each in objects.instances(kind):
            yield getattr(each, running)


def install() -> None:
    """From now on no look raises while a profiler runs, also one that does already."""
    for name, begin, end in versions.profilers():
        module = importlib.import_module(name)
        setattr(module, begin, _starting(getattr(module, begin)))
        setattr(module, end, _ending(getattr(module, end)))
    running = sum(_already())
    if running:
        _count(running)
