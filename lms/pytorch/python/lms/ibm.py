# SPDX-License-Identifier: Apache-2.0
"""The names, with the parameters, that scripts for IBM's Large Model Support use. What each means
here and meant there, by version, is in docs/coming-from-ibm.md of the project."""

from __future__ import annotations

from typing import Dict

from . import api, statistics, versions
from .statistics import Device

__all__ = [
    "alloc_distribution",
    "get_enabled_lms",
    "get_limit_lms",
    "get_size_lms",
    "max_memory_active",
    "memory_active",
    "memory_reclaimed",
    "reclaim_inactive",
    "reset_alloc_distribution",
    "reset_max_memory_active",
    "reset_memory_reclaimed",
    "set_enabled_lms",
    "set_limit_lms",
    "set_size_lms",
]


def set_enabled_lms(enable: bool) -> None:
    r"""Turn Large Model Support on or off. Before CUDA is initialised this only takes note."""
    if not isinstance(enable, bool):
        raise TypeError(f"set_enabled_lms takes True or False, got {enable!r}")
    api.enable() if enable else api.disable()


def get_enabled_lms() -> bool:
    r"""Whether Large Model Support is on, or will be as soon as CUDA is initialised."""
    return api.is_enabled()


def set_limit_lms(limit: int) -> None:
    r"""Set the soft limit in bytes: beyond it moving tensors out is preferred to allocating more
    device memory. 0 (the default) uses all of the device first. What may not be exceeded is the
    ``device_limit`` of :func:`torch.cuda.lms.enable`."""
    api.store(soft_limit=limit)


def get_limit_lms() -> int:
    r"""The soft limit in bytes."""
    return api.limits()["soft_limit"] or 0


def set_size_lms(size: int) -> None:
    r"""Set the size in bytes below which a tensor moves only if nothing else makes room."""
    api.store(min_size=size)


def get_size_lms() -> int:
    r"""The size in bytes below which a tensor moves only if nothing else makes room."""
    return api.limits()["min_size"] or 0


def reclaim_inactive() -> None:
    r"""Move every tensor that no operator is using to host memory, on the current device."""
    api.reclaim()


# Of IBM's v1.1 to v1.3, which had no memory_stats.


def memory_active(device: Device = None) -> int:
    r"""The bytes that running operators use: ``pinned_bytes.all.current`` of
    :func:`torch.cuda.memory_stats`."""
    return statistics.stats(device)["pinned_bytes.all.current"]


def max_memory_active(device: Device = None) -> int:
    r"""The most that :func:`memory_active` has been: ``pinned_bytes.all.peak``."""
    return statistics.stats(device)["pinned_bytes.all.peak"]


def reset_max_memory_active(device: Device = None) -> None:
    r"""Call :func:`torch.cuda.reset_peak_memory_stats`, which resets all peaks; before 1.4, where
    there is none, reset this one and ``max_memory_allocated``."""
    if versions.initialized():
        versions.reset_peaks(device)


def memory_reclaimed(device: Device = None) -> int:
    r"""The bytes moved out so far: ``reclaimed_bytes`` of :func:`torch.cuda.memory_stats`."""
    return statistics.stats(device)["reclaimed_bytes"]


def reset_memory_reclaimed(device: Device = None) -> None:
    r"""Call :func:`torch.cuda.lms.reset_accumulated_stats`, which resets
    :func:`alloc_distribution` and all its other counters, too."""
    statistics.reset_accumulated_stats(device)


def alloc_distribution(device: Device = None) -> Dict[str, int]:
    r"""The number of allocations by where their memory came from: the ``alloc_distribution.*`` of
    :func:`torch.cuda.memory_stats`."""
    found = statistics.stats(device)
    return {route: found[f"alloc_distribution.{route}"] for route in statistics.ROUTES}


def reset_alloc_distribution(device: Device = None) -> None:
    r"""Call :func:`torch.cuda.lms.reset_accumulated_stats`, which resets
    :func:`memory_reclaimed` and all its other counters, too."""
    statistics.reset_accumulated_stats(device)
