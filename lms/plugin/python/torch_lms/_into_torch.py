# SPDX-License-Identifier: Apache-2.0
"""Gives an unpatched torch.cuda the Python side of the patch series."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.utils.dlpack


def install(lms: ModuleType) -> None:
    cuda, memory = torch.cuda, torch.cuda.memory
    ours = f"{lms.__name__}."
    for name, module in [*sys.modules.items()]:
        if name.startswith(ours):
            sys.modules[f"torch.cuda.lms.{name.removeprefix(ours)}"] = module
    sys.modules["torch.cuda.lms"] = lms
    cuda.lms = lms  # type: ignore[attr-defined]
    for name in lms.ibm.__all__:
        for module in (memory, cuda):
            setattr(module, name, getattr(lms.ibm, name))
    memory.memory_stats.__doc__ = lms.statistics.with_keys(memory.memory_stats.__doc__ or "")

    for name, change in (
        ("memory_stats_as_nested_dict", _with_stats),
        ("reset_accumulated_memory_stats", _with_reset("reset_accumulated_stats")),
        ("reset_peak_memory_stats", _with_reset("reset_peak_stats")),
        ("memory_summary", _with_summary),
    ):
        changed = change(getattr(memory, name), lms)
        for module in (memory, cuda):
            setattr(module, name, changed)

    exposing = lms.pointers.exposing(torch.utils.dlpack.to_dlpack)
    torch.utils.dlpack.to_dlpack = exposing
    torch.to_dlpack = exposing  # type: ignore[attr-defined]
    torch.Tensor.__dlpack__ = lms.pointers.exposing(  # type: ignore[method-assign]
        torch.Tensor.__dlpack__
    )

    cuda._lazy_call(lms.environment.act)


Function = Callable[..., Any]


def _with_stats(function: Function, lms: Any) -> Function:
    @functools.wraps(function)
    def wrapper(device: Any = None) -> dict[str, Any]:
        stats: dict[str, Any] = function(device)
        if torch.cuda.is_initialized():
            stats.update(lms.statistics.nested(lms.stats(device)))
        return stats

    return wrapper


def _with_reset(name: str) -> Callable[[Function, Any], Function]:
    def change(function: Function, lms: Any) -> Function:
        @functools.wraps(function)
        def wrapper(device: Any = None) -> None:
            function(device)
            getattr(lms, name)(device)

        return wrapper

    return change


def _with_summary(function: Function, lms: Any) -> Function:
    @functools.wraps(function)
    def wrapper(device: Any = None, abbreviated: bool = False) -> str:
        table: str = function(device, abbreviated)
        shown: str = lms.in_memory_summary(table, device, abbreviated)
        return shown

    return wrapper
