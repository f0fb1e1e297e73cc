# SPDX-License-Identifier: Apache-2.0
"""Collectives that are launched as a group, and works that tell of their end only when somebody
waits for it: what they use is held until then."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from . import library, versions

_LAUNCHING = (
    "_nccl_all_gather", "_nccl_all_reduce", "_nccl_broadcast", "_nccl_reduce",
    "_nccl_reduce_scatter", "_broadcast", "_broadcast_coalesced", "_broadcast_out",
    "_cuda_getCurrentBlasHandle",
)  # fmt: skip


def _beginning(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        library.ops().begin_group()

    return wrapper


def _ending(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        boxed = None  # of what is no Work nobody can tell when it is done
        try:
            work = function(*args, **kwargs)
            if isinstance(work, torch.distributed.Work):
                _watch(type(work))
                boxed = versions.boxed(work)
        except BaseException:
            library.ops().abandon_group()
            raise
        library.ops().end_group(boxed)
        return work

    return wrapper


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = function(self, *args, **kwargs)
        boxed = versions.boxed(self)
        if boxed is not None:
            library.ops().waited_for(boxed)
        return done

    wrapper._lms_waiting = True  # type: ignore[attr-defined]
    return wrapper


def _watch(work: Any) -> None:
    """From now on, who waits for a work of this class lets go of what it used."""
    for kind in work.__mro__:
        for name in ("wait", "synchronize"):
            function = kind.__dict__.get(name)
            if function is not None and not hasattr(function, "_lms_waiting"):
                setattr(kind, name, _waiting(function))


def _launching(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        library.ops().launches_unseen()
        return function(*args, **kwargs)

    return wrapper


def _watch_launches() -> None:
    """What torch.cuda.nccl, torch.cuda.comm and RPC are made of takes pointers in C++, and launches
    past the operators; so may who has taken cuBLAS's handle."""
    binding: Any = torch._C
    for name in _LAUNCHING:
        if hasattr(binding, name):  # not without NCCL
            setattr(binding, name, _launching(getattr(binding, name)))
    rpc = versions.rpc()
    if rpc is not None:
        if rpc.api._is_current_rpc_agent_set():
            library.ops().launches_unseen()
        rpc.api._init_rpc_states = _launching(rpc.api._init_rpc_states)


def _watch_groups() -> None:
    """Where collectives are no operators: a process group launches past them."""
    distributed: Any = torch.distributed
    if distributed.is_available():
        if distributed.is_initialized():
            library.ops().launches_unseen()
        module = distributed.distributed_c10d
        module._new_process_group_helper = _launching(module._new_process_group_helper)


def install() -> None:
    """From now on, a group of collectives holds what it uses."""
    if not versions.collectives_are_operators():
        _watch_groups()
        return
    _watch_launches()
    if torch.distributed.is_available():
        from torch.distributed import ProcessGroup, Work

        group: Any = ProcessGroup
        group._start_coalescing = _beginning(group._start_coalescing)
        group._end_coalescing = _ending(group._end_coalescing)
        _watch(Work)
