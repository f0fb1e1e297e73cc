# SPDX-License-Identifier: Apache-2.0
"""TorchScript's fusion for GPUs. A fused group takes the pointers of its inputs, allocates, then
launches, with no operator around it, and keeps the pointers of its constants. So nothing is fused
while tensors may move, and what was is compiled anew."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from typing import Any, Iterator

import torch

from . import library, objects

_lock = library.over_forks(threading.Lock())
_wanted = True  # what the program asked for last
_stopped = False
_switching = 0  # how many threads turn Large Model Support on or off
_override: Any = None  # PyTorch's own


def _compiled() -> Iterator[Any]:
    """The functions and methods of TorchScript that Python can reach."""
    from torch.jit._state import _python_cu

    yield from _python_cu.get_functions()
    for each in objects.instances(torch.jit.ScriptModule):  # those that were loaded from a file
        script = each.__dict__.get("_c")
        if script is not None:
            yield from (script._get_method(name) for name in script._method_names())


def _compile_anew() -> None:
    """Whatever was compiled: each function was so for each state of autocast that it ran in."""
    functions = list(_compiled())
    for cpu, gpu in itertools.product((False, True), repeat=2):
        with torch.autocast("cpu", enabled=cpu), torch.autocast("cuda", enabled=gpu):
            for function in functions:
                # Raised by executors without profiling, which fuse nothing or ask at each run, and
                # where none can be made.
                with contextlib.suppress(RuntimeError):
                    function._debug_flush_compilation_cache()


def stop() -> None:
    """Nothing is fused from now on, also of what was compiled before."""
    global _stopped
    with _lock:
        if not _stopped:
            _stopped = True
            _override(False)
            # It frees what another thread may be running.
            if threading.active_count() == 1:
                _compile_anew()


def settle() -> None:
    """Lets fusion be as the program wants it, unless tensors may move."""
    global _stopped
    with _lock:
        if _stopped and not _switching and not library.active():
            _override(_wanted)
            _stopped = False


@contextlib.contextmanager
def following(on: bool) -> Iterator[None]:
    """Around the call that turns Large Model Support on or off."""
    global _switching
    with _lock:
        _switching += 1
    try:
        if on:
            stop()
        yield
    finally:
        with _lock:
            _switching -= 1
        settle()


def install() -> None:
    """From now on a program that turns fusion on gets it once tensors do not move."""
    global _override, _wanted
    with _lock:
        _override, can_fuse = torch._C._jit_override_can_fuse_on_gpu, torch._C._jit_can_fuse_on_gpu
        _wanted = can_fuse()

        @functools.wraps(_override)
        def override(wanted: bool) -> None:
            global _wanted
            with _lock:
                _wanted = bool(wanted)
                if not _stopped:
                    _override(_wanted)

        @functools.wraps(can_fuse)
        def wanted() -> bool:
            return _wanted if _stopped else bool(can_fuse())

        torch._C._jit_override_can_fuse_on_gpu = override
        torch._C._jit_can_fuse_on_gpu = wanted
