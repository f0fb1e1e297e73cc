# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profilers note the pointers of tensors, and follow none. In chaos mode a look at one
that is out raises, inside of the profiler, which ends the process: not while it runs. Nor while
there is a DistributedDataParallel, which asks in its backward pass whether a gradient is a part of
its bucket, and fails where it should be none."""

from __future__ import annotations

import functools
import importlib
import threading
import weakref
from typing import Any, Callable, Iterator

from . import library, objects, versions

_lock = library.over_forks(threading.RLock())  # a collector may end a model meanwhile
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


def _while_it_lives(model: Any) -> None:
    _count(1)
    weakref.finalize(model, _count, -1).atexit = False


def _making(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        _while_it_lives(self)

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
    """From now on no look raises while a profiler runs or such a model lives, also one that does
    already."""
    for name, begin, end in versions.profilers():
        module = importlib.import_module(name)
        setattr(module, begin, _starting(getattr(module, begin)))
        setattr(module, end, _ending(getattr(module, end)))
    model = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    model.__init__ = _making(model.__init__)
    for each in objects.instances(model):
        _while_it_lives(each)
    running = sum(_already())
    if running:
        _count(running)
