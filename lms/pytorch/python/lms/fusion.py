# SPDX-License-Identifier: Apache-2.0
"""TorchScript's fusion for GPUs. A fused group takes the pointers of its inputs, allocates, then
launches, with no operator around it, and keeps the pointers of its constants. So nothing is fused
while tensors may move, and what was is compiled anew."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from typing import Any, Callable, Iterator, List, Optional

import torch

from . import library, objects, versions

_GROUPS = ("TensorExprGroup", "CudaFusionGroup")  # as the graphs call them

# Whose threads live as long as the process, watch something, and run nothing of TorchScript.
_WATCHERS = ("tensorboard", "tqdm", "wandb")

_lock = library.over_forks(threading.RLock())  # a finalizer may switch meanwhile
_stopped = False
_switching = 0  # how many threads turn Large Model Support on or off
_changes = 0  # how often fusion was stopped, or one of them was done


class _Fuser:
    """One of TorchScript's, as the program wants it and as it is."""

    def __init__(self, turn: Any, is_on: Optional[Callable[[], bool]]) -> None:
        self.turn, self._is_on = turn, is_on
        self.wanted = is_on() if is_on else True  # what the program asked for last

    def want(self, on: bool) -> bool:
        """What the program calls; returns what it asked for before."""
        with _lock:
            before, self.wanted = self.is_on(), bool(on)
            if not _stopped:
                self.turn(self.wanted)
        return before

    def is_on(self) -> bool:
        """What the program sees."""
        return self.wanted if _stopped or not self._is_on else bool(self._is_on())


_fusers: List[_Fuser] = []


def _put_back() -> None:
    for fuser in _fusers:
        fuser.turn(fuser.wanted)


def _functions() -> List[Any]:
    """Those of TorchScript that Python can reach."""
    from torch.jit._state import _python_cu

    functions: List[Any] = _python_cu.get_functions()
    return functions


def _modules() -> List[Any]:
    """Those of TorchScript, of which some were loaded from a file."""
    modules = (each.__dict__.get("_c") for each in objects.instances(torch.jit.ScriptModule))
    return [module for module in modules if module is not None]


def _states_of_autocast() -> Iterator[None]:
    """In each state of it a function is compiled for itself."""
    for cpu, gpu in itertools.product((False, True), repeat=2):
        with torch.autocast("cpu", enabled=cpu), torch.autocast("cuda", enabled=gpu):
            yield


def _fused(compiled: Any) -> bool:
    """Whether a function, or forward of a module, was, for a GPU and this state of autocast."""
    try:
        plans = compiled.get_debug_state().execution_plans
    except RuntimeError:  # it has not run, or by an executor that keeps no plan
        return False
    graphs = [str(plan.graph) for plan in plans.values()]
    on_gpu = [graph for graph in graphs if "device=cuda" in graph]
    return any(group in graph for graph in on_gpu for group in _GROUPS)


def _others() -> List[threading.Thread]:
    """Which threads may be running what is compiled. One that Python did not start is known to it
    for good, once it has run some of it, as autograd's do in hooks; what it does, one of Python's
    waits for."""
    running = set(sys._current_frames())  # but keep no frame: it has what its function holds
    return [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread()
        and type(thread).__module__.split(".")[0] not in _WATCHERS
        and not (isinstance(thread, threading._DummyThread) and thread.ident not in running)
    ]


def _compile_anew() -> None:
    """Whatever was compiled."""
    methods = [m._get_method(name) for m in _modules() for name in m._method_names()]
    functions = [*_functions(), *methods]
    for _ in _states_of_autocast():
        for function in functions:
            # Raised by executors without profiling, which fuse nothing or ask at each run, and
            # where none can be made.
            with contextlib.suppress(RuntimeError):
                function._debug_flush_compilation_cache()


def stop(what: str) -> None:
    """Nothing is fused from now on, also of what was compiled before. Raises RuntimeError, that
    `what` cannot be done, when another thread may be running that: it cannot be freed then."""
    global _stopped, _changes
    with _lock:
        _changes += 1
        if _stopped:
            return
        for fuser in _fusers:
            fuser.turn(False)
        if versions.fuses_unseen():
            if (
                not _fusers  # none can be turned off, so that what is made later is fused, too
                or objects.instances(torch.jit.ScriptModule)
                or objects.instances(torch.jit.ScriptFunction)
            ):
                library.ops().launches_unseen()
        elif not _others():
            _compile_anew()
        else:
            compiled = [*_functions(), *_modules()]
            if any(_fused(each) for _ in _states_of_autocast() for each in compiled):
                _put_back()
                raise RuntimeError(
                    f"{what} because TorchScript has fused operators into kernels for the GPU, "
                    "which use addresses that tensors are to leave, and other threads, which may "
                    f"be running them, are alive ({', '.join(sorted(t.name for t in _others()))}); "
                    "do it before TorchScript's functions run, or when these threads have ended"
                )
        _stopped = True


def settle() -> None:
    """Lets fusion be as the program wants it, unless tensors may move."""
    global _stopped
    # Asked without the lock: a mode of the program's sees this operator and may turn Large Model
    # Support on. Whoever did so meanwhile settles it instead.
    before = _changes
    if library.active():
        return
    with _lock:
        if _stopped and not _switching and before == _changes:
            _put_back()
            _stopped = False


@contextlib.contextmanager
def following(on: bool) -> Iterator[None]:
    """Around the call that turns Large Model Support on or off."""
    global _switching, _changes
    with _lock:
        _switching += 1
    try:
        if on:
            stop("Large Model Support cannot be enabled")
        yield
    finally:
        with _lock:
            _switching -= 1
            _changes += 1
        settle()


def install() -> None:
    """From now on a program that turns fusion on gets it once tensors do not move."""
    with _lock:
        for turn, is_on in versions.fusers():
            asked = versions.native(is_on)
            fuser = _Fuser(versions.native(turn), asked)
            _fusers.append(fuser)
            setattr(torch._C, turn, fuser.want)
            if asked:
                setattr(torch._C, is_on, fuser.is_on)
