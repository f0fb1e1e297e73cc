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

_IBM = (
    "get_enabled_lms",
    "get_limit_lms",
    "get_size_lms",
    "reclaim_inactive",
    "set_enabled_lms",
    "set_limit_lms",
    "set_size_lms",
)


def install(lms: ModuleType) -> None:
    cuda, memory = torch.cuda, torch.cuda.memory
    sys.modules["torch.cuda.lms"] = lms
    cuda.lms = lms  # type: ignore[attr-defined]
    for name in _IBM:
        setattr(cuda, name, getattr(lms, name))

    for name, change in (
        ("memory_stats_as_nested_dict", _with_stats),
        ("reset_accumulated_memory_stats", _with_reset("reset_accumulated_stats")),
        ("reset_peak_memory_stats", _with_reset("reset_peak_stats")),
        ("memory_summary", _with_summary),
    ):
        changed = change(getattr(memory, name), lms)
        for module in (memory, cuda):
            setattr(module, name, changed)

    exposing = lms._exposing(torch.utils.dlpack.to_dlpack)
    torch.utils.dlpack.to_dlpack = exposing
    torch.to_dlpack = exposing  # type: ignore[attr-defined]
    torch.Tensor.__dlpack__ = lms._exposing(torch.Tensor.__dlpack__)  # type: ignore[method-assign]

    cuda._lazy_call(lms._enable_from_environment)


Function = Callable[..., Any]


def _with_stats(function: Function, lms: Any) -> Function:
    @functools.wraps(function)
    def wrapper(device: Any = None) -> dict[str, Any]:
        stats: dict[str, Any] = function(device)
        if torch.cuda.is_initialized():
            stats.update(lms._nested(lms.stats(device)))
        return stats

    return wrapper


def _with_reset(name: str) -> Callable[[Function, Any], Function]:
    def change(function: Function, lms: Any) -> Function:
        @functools.wraps(function)
        def wrapper(device: Any = None) -> Any:
            getattr(lms, name)(device)
            return function(device)

        return wrapper

    return change


def _with_summary(function: Function, lms: Any) -> Function:
    @functools.wraps(function)
    def wrapper(device: Any = None, abbreviated: bool = False) -> str:
        text: str = function(device, abbreviated)
        if not lms._loaded:
            return text
        *lines, last = text.splitlines()
        lines += _rows(lms, device, abbreviated)
        lines += ["|" + "-" * 75 + "|"]
        lines += [f"| {line:<73} |" for line in lms.summary(device).splitlines()]
        return "\n".join([*lines, last, ""])

    return wrapper


def _rows(lms: Any, device: Any, abbreviated: bool) -> list[str]:
    """Rows as in PyTorch's own table."""
    stats = lms.stats(device)
    rows = []
    for kind, title, shown in (
        ("pinned_bytes", "LMS pinned memory", lms._size),
        ("pinned", "LMS pinned storages", str),
    ):
        rows.append("|" + "-" * 75 + "|")
        pools = [("all", title)]
        if not abbreviated:
            pools += [
                ("large_pool", "      from large pool"),
                ("small_pool", "      from small pool"),
            ]
        for pool, name in pools:
            cells = [
                f"{shown(stats[f'{kind}.{pool}.{counter}']):>10}"
                for counter in ("current", "peak", "allocated", "freed")
            ]
            rows.append(f"| {name:<21} | " + " | ".join(cells) + " |")
    return rows
