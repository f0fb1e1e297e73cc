# SPDX-License-Identifier: Apache-2.0
"""Launches of kernels that take pointers with no operator call. What Triton's are given is pinned
for the launch; after it the engine knows the stream, as for an operator. Jiterator's, which make
their results themselves, are run by an operator."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch

from . import library, versions

_LAUNCHERS = {
    "torch._inductor.runtime.triton_heuristics": ("CachingAutotuner", "run"),
    "triton.runtime.jit": ("JITFunction", "run"),
}

# By which torch.cuda.jiterator compiles a kernel, and launches it.
_JITERATE = "_cuda_jiterator_compile_and_launch_kernel"
_defined: List[Any] = []  # what has that operator, which goes with it


class _Launch:
    """What one launch keeps on the device."""

    def __init__(self) -> None:
        self._held: Dict[int, torch.Tensor] = {}
        self._pins = library.Hold()

    def hold(self, tensors: List[torch.Tensor]) -> None:
        new = {id(t): t for t in tensors if id(t) not in self._held}
        self._pins.take(list(new.values()))
        self._held.update(new)

    def end(self) -> None:
        self._pins.release()


class _Thread(threading.local):
    launch: Optional[_Launch] = None


_thread = _Thread()


def current() -> Optional[_Launch]:
    """This thread's launch."""
    return _thread.launch


def _in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _in(value)
        elif isinstance(getattr(value, "base", None), torch.Tensor):  # a descriptor
            yield from _in([value.base])


def _launching(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not library.active():
            return function(*args, **kwargs)
        outer = _thread.launch
        launch = _thread.launch = _Launch()
        try:
            launch.hold(list(_in([*args[1:], *kwargs.values()])))
            return function(*args, **kwargs)
        finally:
            _thread.launch = outer
            launch.end()

    return wrapper


def _pin_launches(module: Any) -> None:
    cls, name = _LAUNCHERS[module.__name__]
    launcher = getattr(module, cls, None)
    if hasattr(launcher, name):
        setattr(launcher, name, _launching(getattr(launcher, name)))


class _LauncherFinder(importlib.abc.MetaPathFinder):
    """Wraps the launchers in modules that are imported after the first enable."""

    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _LAUNCHERS or getattr(self._searching, "now", False):
            return None
        self._searching.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.now = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _pin_launches(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _by_operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """What it is given stays for the launch, and what it makes, too."""
    thread = threading.local()

    def run(operands: List[torch.Tensor]) -> List[torch.Tensor]:
        thread.results = function(*thread.arguments)
        results = thread.results
        return [results] if isinstance(results, torch.Tensor) else list(results)

    _defined.append(torch.library.Library("lms_jiterator", "DEF"))
    _defined[0].define("run(Tensor[] operands) -> Tensor[]")
    _defined[0].impl("run", run, "CUDA")
    library.ops().install_pending()

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        operands = list(_in(args))
        if not operands or not library.active():
            return function(*args)
        thread.arguments = args
        try:
            # Detached, as the function is below autograd.
            torch.ops.lms_jiterator.run([each.detach() for each in operands])
            return thread.results
        finally:
            thread.__dict__.clear()

    return wrapper


def install() -> None:
    """From now on, a launch pins what it is given."""
    jiterate = versions.native(_JITERATE)
    if jiterate is not None and not _defined:  # else what came after it has failed, and begins anew
        setattr(torch._C, _JITERATE, _by_operator(jiterate))
    for name in _LAUNCHERS:
        if name in sys.modules:
            _pin_launches(sys.modules[name])
    sys.meta_path.insert(0, _LauncherFinder())
