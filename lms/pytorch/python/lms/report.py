# SPDX-License-Identifier: Apache-2.0
"""What people read: summary(), and the part of torch.cuda.memory_summary()."""

from __future__ import annotations

import textwrap
from typing import Callable, Dict, List, Optional, Tuple

from . import api, library, sizes, versions
from .statistics import COUNTERS, POOLS, Device, stats


def _state() -> str:
    if library.in_child():
        return "off (the child of a fork has no device)"
    if library.enabled():
        return "on (chaos mode)" if library.ops().chaos() else "on"
    if api.is_enabled():
        return "on as soon as CUDA is initialised"
    return "off" if library.loaded() else "off (never enabled)"


def _limit(size: Optional[int]) -> str:
    return sizes.text(size) if size else "none"


def _host_limit(limits: Dict[str, Optional[int]]) -> str:
    if limits["host_limit"] is None:
        return "a share of the memory"
    share = library.ops().host_share() if library.loaded() else ""
    return _limit(limits["host_limit"]) + (f" ({share})" if share else "")


def _unknown(size: str) -> str:
    return (
        f"  not known, and cannot move: {size} (workspaces, or made before it was first turned on"
        " and not used since: torch.cuda.lms.pin() makes these known)"
    )


def _used(n: Dict[str, int]) -> str:
    used, brought = n["lms.used_bytes"], n["lms.paged_in_bytes"]
    if brought > used:
        of_these = "less than was brought in, which pins and small tensors are, too"
    else:
        of_these = f"of which {brought / max(used, 1):.0%} had to be brought in first"
    return f"  operators used {sizes.text(used)}, {of_these}"


def _waited(n: Dict[str, int]) -> str:
    def seconds(what: str) -> str:
        return f"{n[f'lms.waited.{what}_us'] / 1e6:.3f} s"

    return (
        f"  waited: operators {seconds('operands')} for what they use to come in and"
        f" {seconds('memory')} for memory, copies in {seconds('copies_in')}, copies out"
        f" {seconds('copies_out')}"
    )


def summary(device: Device = None) -> str:
    r"""A few lines that say whether Large Model Support is on and what it did."""
    lines = [f"Large Model Support: {_state()}"]
    if not library.loaded() and not api.is_enabled():
        return lines[0]
    limits = api.limits()
    name = " (set_limit_lms)" if versions.limit_of_ibms() != "hard" else ""
    lines += [
        f"  limits: device {_limit(limits['device_limit'])}, host {_host_limit(limits)},"
        f" minimum size {sizes.text(limits['min_size'] or 0)}",
        f"  soft limit{name}: {_limit(limits['soft_limit'])}",
    ]
    if not library.loaded():
        return "\n".join(lines)
    n = stats(device)
    s = {name: sizes.text(value) for name, value in n.items()}
    lines += [
        f"  copied: {s['lms.paged_out_bytes']} out in {n['lms.paged_out']},"
        f" {s['lms.paged_in_bytes']} in in {n['lms.paged_in']}",
        _used(n),
        f"  moved without a copy: {s['lms.clean_bytes']} out, {s['lms.overwrite_bytes']} in",
        *([_waited(n)] if any(n[name] for name in n if name.startswith("lms.waited.")) else []),
        f"  now: {s['lms.on_host_bytes']} on the host, {s['lms.idle_bytes']} idle on the device,"
        f" {s['lms.exposed_bytes']} held by raw pointers, {s['lms.excluded_bytes']} excluded",
        *([_unknown(s["lms.unknown_bytes"])] if n["lms.unknown_bytes"] else []),
        f"  pinned host memory: {s['lms.host.used_bytes']} used of"
        f" {s['lms.host.reserved_bytes']} reserved (peak {s['lms.host.reserved_bytes_peak']})",
    ]
    return "\n".join(lines)


# ---- torch.cuda.memory_summary

_WIDTH = 75  # between the bars
_SIZES = ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_COUNTS = (" ", "K", "M", "G", "T", "P")


def _scaled(value: int, units: Tuple[str, ...], step: int, digits: int) -> str:
    """`value` in the first unit in which it has at most this many digits."""
    for unit in units:
        if value < 10**digits or unit == units[-1]:
            break
        value //= step
    return f"{value:{digits}d} {unit}"


def _bytes(value: int) -> str:
    return _scaled(value, _SIZES, 1024, 6)


def _count(value: int) -> str:
    return _scaled(value, _COUNTS, 1000, 7) + " "


def _pinned_rows(s: Dict[str, int], abbreviated: bool) -> List[str]:
    rows: List[str] = []
    kinds: List[Tuple[str, str, Callable[[int], str]]] = [
        ("pinned_bytes", "Pinned memory", _bytes),
        ("pinned", "Pinned allocs", _count),
    ]
    for kind, title, show in kinds:
        rows.append("-" * _WIDTH)
        names = (title, "      from large pool", "      from small pool")
        for pool, name in dict(zip(POOLS, names)).items():
            columns = " | ".join(show(s[f"{kind}.{pool}.{counter}"]) for counter in COUNTERS)
            rows.append(f" {name:<21} | {columns} ")
            if abbreviated:
                break
    return rows


def _pairs(s: Dict[str, int]) -> List[str]:
    def route(name: str) -> str:
        return _count(s[f"alloc_distribution.{name}"])

    return [
        f"{left:>21}: {first:<11} | {right:>24}: {second:<11} "
        for left, first, right, second in (
            ("Reclaimed memory", _bytes(s["reclaimed_bytes"]),
             "Reclaimed blocks", _count(s["reclaimed"])),
            ("Freelist allocs", route("freelist"), "CUDA allocs", route("cudamalloc")),
            ("Reclaim allocs", route("reclaim_one"),
             "Reclaim fragments allocs", route("reclaim_fragments")),
            ("Reclaim all allocs", route("reclaim_all"),
             "CUDA retry allocs", route("cudamalloc_retry")),
        )
    ]  # fmt: skip


def in_memory_summary(table: str, device: Device, abbreviated: bool) -> str:
    """PyTorch's table with ours in it, where there is any. No line is wider than PyTorch's."""
    if not library.loaded() and not api.is_enabled():
        return table
    lines = table.splitlines()
    s = stats(device)
    rows = [*_pinned_rows(s, abbreviated), "=" * _WIDTH, *_pairs(s), "-" * _WIDTH]
    for line in summary(device).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        wrapped = textwrap.wrap(line, _WIDTH - 2, subsequent_indent=indent + "  ")
        rows += [f" {part:<{_WIDTH - 2}} " for part in wrapped]
    return "\n".join([*lines[:-1], *(f"|{row}|" for row in rows), lines[-1], ""])
