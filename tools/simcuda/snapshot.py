# SPDX-License-Identifier: Apache-2.0
"""A trace of a dry run as PyTorch's memory viewer reads it: what `torch.cuda.memory._snapshot()`
gives (https://pytorch.org/memory_viz, `python -m torch.cuda._memory_viz`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from .trace import Allocated, Event, Freed, Op, Segment, SegmentGone, Trace

# Where the first segment of a device would lie: a trace has no addresses.
_BASE = 1 << 40
_SMALL = 2 << 20  # torch's segments of small blocks have this size, and no others do


@dataclass
class _Segment:
    made: Segment
    address: int
    stream: int = 0  # of what is allocated in it
    live: dict[int, Allocated] = field(default_factory=dict)  # by offset


class _Snapshot:
    def __init__(self, trace: Trace) -> None:
        self._events = trace.events
        self._traces: list[list[dict[str, Any]]] = [[] for _ in range(trace.about["devices"])]
        self._segments: dict[int, _Segment] = {}
        self._gone: set[int] = set()
        self._blocks: dict[int, Allocated] = {}
        self._frames = _first_uses(trace.events)

    def made(self) -> dict[str, Any]:
        ends: dict[int, int] = defaultdict(lambda: _BASE)
        for event in self._events:
            if isinstance(event, Segment):
                end = ends[event.device]
                self._segments[event.number] = _Segment(event, end)
                ends[event.device] = end + event.bytes
            elif isinstance(event, Allocated) and event.segment is not None:
                self._segments[event.segment].stream = event.stream
        for event in self._events:
            self._take(event)
        alive = (s for number, s in self._segments.items() if number not in self._gone)
        return {
            "segments": [self._segment(segment) for segment in alive],
            "device_traces": self._traces,
        }

    def _take(self, event: Event) -> None:
        if isinstance(event, Segment | SegmentGone):
            number = event.number if isinstance(event, Segment) else event.segment
            of = self._segments[number]
            gone = isinstance(event, SegmentGone)
            self._gone |= {number} if gone else set()
            action = "segment_free" if gone else "segment_alloc"
            self._add(of, event.time, action, of.address, of.made.bytes, [])
        elif isinstance(event, Allocated | Freed):
            block = event if isinstance(event, Allocated) else self._blocks[event.allocation]
            self._blocks[block.number] = block
            if block.segment is None:  # not of torch's allocator
                return
            of = self._segments[block.segment]
            actions = ["alloc"]
            if isinstance(event, Allocated):
                of.live[block.offset] = block
            else:
                del of.live[block.offset]
                actions = ["free_requested", "free_completed"]
            for action in actions:
                place, frames = of.address + block.offset, self._frames.get(block.number, [])
                self._add(of, event.time, action, place, block.bytes, frames)

    def _add(
        self, of: _Segment, time: int, action: str, address: int, size: int, frames: list[Any]
    ) -> None:
        self._traces[of.made.device].append(
            {
                "action": action, "addr": address, "size": size, "stream": of.stream,
                "time_us": time // 1000, "frames": frames,
            }
        )  # fmt: skip

    def _segment(self, of: _Segment) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []

        def add(begin: int, size: int, state: str, number: int | None = None) -> None:
            frames = [] if number is None else self._frames.get(number, [])
            blocks.append(
                {
                    "address": of.address + begin, "size": size, "requested_size": size,
                    "state": state, "frames": frames,
                }
            )  # fmt: skip

        end = 0
        for offset, block in sorted(of.live.items()):
            if offset > end:
                add(end, offset - end, "inactive")
            add(offset, block.bytes, "active_allocated", block.number)
            end = offset + block.bytes
        if end < of.made.bytes:
            add(end, of.made.bytes - end, "inactive")
        used = sum(block.bytes for block in of.live.values())
        return {
            "device": of.made.device, "address": of.address, "total_size": of.made.bytes,
            "allocated_size": used, "active_size": used, "requested_size": used,
            "stream": of.stream, "segment_type": "small" if of.made.bytes == _SMALL else "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
        }  # fmt: skip


def _first_uses(events: list[Event]) -> dict[int, list[dict[str, Any]]]:
    """Allocation -> a frame that says which operator used it first, and as which storage."""
    found: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if not isinstance(event, Op):
            continue
        for use in event.uses:
            if use.allocation is not None:
                frame = {"name": event.name, "filename": "storage", "line": use.storage.number}
                found.setdefault(use.allocation, [frame])
    return found


def to_snapshot(trace: Trace) -> dict[str, Any]:
    return _Snapshot(trace).made()
