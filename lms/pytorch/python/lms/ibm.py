# SPDX-License-Identifier: Apache-2.0
"""The names, with the parameters, that scripts for IBM's Large Model Support use. What each means
here and meant there, by version, is in docs/coming-from-ibm.md of the project."""

from __future__ import annotations

import warnings
from typing import Any, Dict

import torch

from . import api, sizes, statistics, versions
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


# What a script that uses these names expects of the PyTorch that it was written for: see
# versions.limit_of_ibms. The names in torch.cuda.lms mean the same everywhere.

# Of what is free and reserved: the rest was for what does not ask the allocator.
_SHARE = 0.95
_limit = 0  # as it was set
_of_device = 0  # the device limit that comes of it


def set_enabled_lms(enable: bool) -> None:
    r"""Turn Large Model Support on or off. Before CUDA is initialised this only takes note."""
    if not isinstance(enable, bool):
        raise TypeError(f"set_enabled_lms takes True or False, got {enable!r}")
    api.enable() if enable else api.disable()
    if enable and versions.limit_of_ibms() != "ours":
        _set_limit(_limit)


def get_enabled_lms() -> bool:
    r"""Whether Large Model Support is on, or will be as soon as CUDA is initialised."""
    return api.is_enabled()


def set_limit_lms(limit: int) -> None:
    r"""Set the soft limit in bytes: beyond it moving tensors out is preferred to allocating more
    device memory. 0 (the default) uses all of the device first. What may not be exceeded is the
    ``device_limit`` of :func:`torch.cuda.lms.enable`.

    On PyTorch 1.1 to 1.3, 0 is a limit of 0 bytes. On 1.4 and 1.5 this sets the ``device_limit``,
    and 0 is 95% of what is free and reserved, unless one was set by another name."""
    global _limit
    _limit = sizes.parse("soft_limit", limit)
    _set_limit(_limit)


def _set_limit(limit: int) -> None:
    kind = versions.limit_of_ibms()
    if kind == "ours":
        api.store(soft_limit=limit)
    elif kind == "soft":
        api.store(soft_limit=max(limit, 1))  # which 0 would turn off
    elif limit or api.limits()["device_limit"] == _of_device:
        _limit_device(limit)
        if not limit and api.is_enabled():
            torch.cuda._lazy_call(_leave_a_share)


def _leave_a_share() -> None:
    """CUDA is initialised, or about to be."""
    if api.is_enabled() and not _limit and api.limits()["device_limit"] == _of_device:
        cuda: Any = torch.cuda
        available = api.load().free_bytes() + cuda.memory_reserved()
        _limit_device(int(available * _SHARE))


def _limit_device(size: int) -> None:
    global _of_device
    api.store(device_limit=size)
    _of_device = size


def get_limit_lms() -> int:
    r"""What :func:`set_limit_lms` has set, in bytes."""
    ours = versions.limit_of_ibms() == "ours"
    return api.limits()["soft_limit"] or 0 if ours else _limit


def _deprecated(name: str) -> None:
    warnings.warn(
        f"{name} is deprecated and has no effect, as in IBM's; torch.cuda.lms.enable(min_size=...) "
        "sets the size below which a tensor moves only if nothing else makes room",
        DeprecationWarning,
        stacklevel=3,
    )


def set_size_lms(size: int) -> None:
    r"""Set the size in bytes below which a tensor moves only if nothing else makes room. On PyTorch
    1.4 and 1.5 this is deprecated, and has no effect."""
    if versions.limit_of_ibms() == "hard":
        _deprecated("set_size_lms")
    else:
        api.store(min_size=size)


def get_size_lms() -> int:
    r"""The size in bytes below which a tensor moves only if nothing else makes room. On PyTorch 1.4
    and 1.5 this is deprecated, and 0."""
    if versions.limit_of_ibms() == "hard":
        _deprecated("get_size_lms")
        return 0
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
    :func:`torch.cuda.memory_stats`. On PyTorch 1.1 to 1.3 ``cudamalloc_over_limit`` is apart from
    ``cudamalloc``, and ``cudamalloc_retry`` is called ``cudamalloc_purge``."""
    stats = statistics.stats(device)
    found = {route: stats[f"alloc_distribution.{route}"] for route in statistics.routes()}
    if versions.limit_of_ibms() == "soft":
        found["cudamalloc_purge"] = found.pop("cudamalloc_retry")
    return found


def reset_alloc_distribution(device: Device = None) -> None:
    r"""Call :func:`torch.cuda.lms.reset_accumulated_stats`, which resets
    :func:`memory_reclaimed` and all its other counters, too."""
    statistics.reset_accumulated_stats(device)
