# SPDX-License-Identifier: Apache-2.0
"""Statistics, which torch.cuda.memory_stats() shows too.

docs/statistics.md of the project defines each.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Union

import torch

from . import library, versions

Device = Optional[Union[torch.device, int]]

COUNTERS = ("current", "peak", "allocated", "freed")
POOLS = ("all", "large_pool", "small_pool")
ROUTES = (
    "freelist",
    "cudamalloc",
    "reclaim_one",
    "reclaim_fragments",
    "reclaim_all",
    "cudamalloc_retry",
)
# New segments beyond the soft limit: of IBM's names up to 1.3, from then on among the others.
_BEYOND = "cudamalloc_over_limit"
# While Large Model Support is off, every block is pinned: no operator has to hold it.
_WHILE_OFF = {"pinned": "allocation", "pinned_bytes": "allocated_bytes"}

# What c10/Statistics.cpp has beside IBM's names: 0 while there is no library, or device, to ask.
_OURS = (
    *("enabled", "device_limit", "soft_limit", "min_size"),
    *("paged_out", "paged_out_bytes", "paged_in", "paged_in_bytes"),
    *("clean_evictions", "clean_bytes", "overwrites", "overwrite_bytes"),
    *("used", "used_bytes", "silent_writes", "predicted", "mispredicted", "host_refused"),
    *("tracked", "idle", "idle_bytes", "on_host", "on_host_bytes"),
    *("exposed", "exposed_bytes", "excluded", "excluded_bytes", "unknown_bytes"),
    *(f"waited.{who}_us" for who in ("operands", "memory", "copies_in", "copies_out")),
    *("host.limit", "host.reserved_bytes", "host.reserved_bytes_peak"),
    *("host.used_bytes", "host.used_bytes_peak"),
)

_KEYS = """
    Large Model Support adds:

    - ``"pinned.{all,large_pool,small_pool}.{current,peak,allocated,freed}"``:
      number of storages that running operators use; while it is off, of all
      allocations.
    - ``"pinned_bytes.{all,large_pool,small_pool}.{current,peak,allocated,freed}"``:
      their bytes.
    - ``"reclaimed"``, ``"reclaimed_bytes"``: storages moved to host memory so far,
      and their bytes.
    - ``"alloc_distribution.{freelist,cudamalloc,reclaim_one,reclaim_fragments,
      reclaim_all,cudamalloc_retry}"``: number of allocations by where their memory came from.
    - ``"lms.*"``: from the first time that it is on; see :func:`torch.cuda.lms.stats`.
"""


def with_keys(doc: Optional[str]) -> Optional[str]:
    """The docstring of torch.cuda.memory_stats with our keys; None under ``python -OO``."""
    if doc is None:
        return None
    before, arguments, after = doc.partition("\n    Args:")
    return before + _KEYS + arguments + after


def index_of(device: Device) -> int:
    return torch.cuda._utils._get_device_index(device, optional=True)


def _flat(nested: Dict[str, Any], prefix: str = "") -> Dict[str, int]:
    flat: Dict[str, int] = {}
    for name, value in nested.items():
        flat.update(
            _flat(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else {f"{prefix}{name}": value}
        )
    return flat


def nested(flat: Dict[str, int]) -> Dict[str, Any]:
    result: Dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        inner = result
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return result


# ---- allocations before the library counts them

# By device: what the allocator had counted when the library was loaded, or before that, when the
# statistics were reset.
_earlier: Dict[int, Dict[str, int]] = {}
_forgotten: Dict[int, Dict[str, int]] = {}


def _routes_of_allocator(device: int) -> Dict[str, int]:
    if not versions.counts_allocations():
        return {}
    s = _flat(versions.allocator_stats(device))
    retried = max(0, s["num_alloc_retries"] - s["num_ooms"])
    fresh = max(0, versions.device_allocations(s) - retried)
    cached = max(0, s["allocation.all.allocated"] - fresh - retried)
    counts = {"freelist": cached, "cudamalloc": fresh, "cudamalloc_retry": retried}
    forgotten = _forgotten.get(device, {})
    return {route: n - forgotten.get(route, 0) for route, n in counts.items()}


def before_loading() -> None:
    """The library counts allocations from now on."""
    if not versions.native_allocator():
        return  # refused when it is enabled; a pluggable one has no statistics to read
    for device in range(torch.cuda.device_count()):
        _earlier[device] = _routes_of_allocator(device)


# ---- reading and resetting


def routes() -> Tuple[str, ...]:
    """Where memory can come from, as far as that is told apart."""
    return (*ROUTES, _BEYOND) if versions.limit_of_ibms() == "soft" else ROUTES


def stats(device: Device = None) -> Dict[str, int]:
    r"""Statistics of Large Model Support for one device, as they also appear in
    :func:`torch.cuda.memory_stats`:

    - ``pinned``, ``pinned_bytes`` (by pool; current, peak, allocated, freed): storages in use by
      operators, and their bytes; while it is off, all allocations
    - ``reclaimed``, ``reclaimed_bytes``: storages moved out so far, and their bytes
    - ``alloc_distribution``: how allocations were satisfied
    - ``lms``: what is on, the limits, copies both ways (``paged_out_bytes``, ``paged_in_bytes``),
      moves that needed no copy (``clean_*``, ``overwrite*``), what is where now, and host memory
    """
    names = [f"{kind}.{pool}.{n}" for kind in _WHILE_OFF for pool in POOLS for n in COUNTERS]
    names += ["reclaimed", "reclaimed_bytes", *(f"alloc_distribution.{r}" for r in routes())]
    names += [f"lms.{name}" for name in _OURS]
    result = dict.fromkeys(names, 0)
    if not versions.initialized():
        return result
    index = index_of(device)
    if library.loaded():
        result.update(library.ops().stats(index))
        if _BEYOND not in routes():
            result["alloc_distribution.cudamalloc"] += result.pop(f"alloc_distribution.{_BEYOND}")
        earlier = _earlier.get(index, {})
    else:
        earlier = _routes_of_allocator(index)
    for route, count in earlier.items():
        result[f"alloc_distribution.{route}"] += count
    if not library.enabled():
        allocator = _flat(versions.allocator_stats(index))
        for name in names:
            kind, _, rest = name.partition(".")
            if kind in _WHILE_OFF:
                result[name] = allocator[f"{_WHILE_OFF[kind]}.{rest}"]
    return result


def reset_peak_stats(device: Device = None) -> None:
    r"""Reset the peaks of :func:`stats` to the current values."""
    if library.loaded():
        library.ops().reset_peak_stats(index_of(device))


def reset_accumulated_stats(device: Device = None) -> None:
    r"""Reset the counters of :func:`stats` that only grow. While it is off, those of ``pinned`` are
    the allocator's: see :func:`torch.cuda.reset_accumulated_memory_stats`."""
    if not versions.initialized():
        return
    index = index_of(device)
    if library.loaded():
        _earlier.pop(index, None)
        library.ops().reset_accumulated_stats(index)
    else:
        _forgotten.pop(index, None)
        _forgotten[index] = _routes_of_allocator(index)
