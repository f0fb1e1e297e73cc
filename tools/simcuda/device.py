# SPDX-License-Identifier: Apache-2.0
"""Controls of the simulated device, for tests and demonstrations.

The numbers come from the device itself: they say what the program really did, whatever the
software under test believes. Sizes are bytes.
"""

from __future__ import annotations

import atexit
import ctypes
from typing import Any

from .config import MODES
from .errors import SimcudaError
from .order import QUERIES, Checker, Race
from .profiles import Profile

COUNTERS = (
    # allocations of device memory, of pinned host memory
    *("malloc", "malloc_failed", "free", "host_alloc", "host_alloc_failed", "host_free"),
    # copies, bytes, and the bytes by the kind of the host memory
    *("h2d", "d2h", "d2d", "h2h", "h2d_bytes", "d2h_bytes", "d2d_bytes", "h2h_bytes"),
    *("h2d_pinned_bytes", "h2d_pageable_bytes", "d2h_pinned_bytes", "d2h_pageable_bytes"),
    *("memset", "memset_bytes", "device_syncs", "stream_syncs", "event_syncs"),
    "event_records",
    # operators run, how often one addressed pinned host memory, what was refused
    *("ops", "mapped_accesses", "refused_launches", "unsupported_calls"),
)

STREAM_COPIES = ("h2d", "h2d_bytes", "d2h", "d2h_bytes", "d2d", "d2d_bytes")

TIMES = ("now", "waited", "compute", "in", "out")

ORDER_SIZE = ("operations", "ranges", "dropped")

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "device_count": (ctypes.c_int, []),
    "capacity": (ctypes.c_size_t, [ctypes.c_int]),
    "set_capacity": (None, [ctypes.c_int, ctypes.c_size_t]),
    "used": (ctypes.c_size_t, [ctypes.c_int]),
    "peak": (ctypes.c_size_t, [ctypes.c_int]),
    "reset_peak": (None, [ctypes.c_int]),
    "host_used": (ctypes.c_size_t, []),
    "host_peak": (ctypes.c_size_t, []),
    "host_capacity": (ctypes.c_size_t, []),
    "set_host_capacity": (None, [ctypes.c_size_t]),
    "mode": (ctypes.c_int, []),
    "set_mode": (None, [ctypes.c_int, ctypes.c_long]),
    "pending": (ctypes.c_long, []),
    "set_bandwidth": (None, [ctypes.c_double]),
    "set_abort": (None, [ctypes.c_int]),
    "fail_mallocs": (None, [ctypes.c_long, ctypes.c_long]),
    "fail_host_allocs": (None, [ctypes.c_long, ctypes.c_long]),
    "fail_streams": (None, [ctypes.c_long, ctypes.c_long]),
    "break": (None, []),
    "fail_copies": (None, [ctypes.c_long, ctypes.c_long]),
    "counters": (None, [ctypes.c_void_p]),
    "reset_counters": (None, []),
    "stream_copies": (None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]),
    "order_stack": (None, [ctypes.c_int, ctypes.c_int]),
    "order_suppress": (None, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]),
    "order_suppressed": (ctypes.c_uint64, [ctypes.c_size_t]),
    "order_races": (ctypes.c_char_p, []),
    "order_clear": (None, []),
    "order_set_strict": (None, [ctypes.c_int]),
    "order_size": (None, [ctypes.c_void_p]),
    "refuse": (None, [ctypes.c_char_p]),
    "start_dry": (None, [ctypes.c_void_p]),
    "dry": (ctypes.c_void_p, []),
    "take_kernels": (None, []),
    "keep_contents": (None, []),
    "unmodelled_calls": (ctypes.c_char_p, []),
    "trace_start": (ctypes.c_int, [ctypes.c_char_p]),
    "trace_end": (None, []),
    "trace_mark": (None, [ctypes.c_char_p]),
    "times": (None, [ctypes.c_int, ctypes.c_void_p]),
}


class Device:
    """One simulated device. Counters, mode, faults and host memory are common to all devices."""

    def __init__(self, runtime: ctypes.CDLL | None = None, index: int = 0) -> None:
        self._runtime = runtime
        self._checker: Checker | None = None
        self.index = index

    def _start_dry(self, profile: Profile, workspaces: bool) -> None:
        self._call("start_dry", ctypes.byref(profile.native(workspaces=workspaces)))

    def _start_trace(self, path: str) -> None:
        if self._call("trace_start", path.encode()) != 0:
            raise SimcudaError(f"the trace {path} cannot be written; name a file that can be")
        atexit.register(self.end_trace)

    def mark(self, name: str) -> None:
        """Put a name into the trace, such as where a step begins."""
        self._call("trace_mark", name.encode())

    def end_trace(self) -> None:
        """Wait for what is issued and finish the trace, which the end of the process does, too."""
        self._call("trace_end")

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._runtime is None:
            raise SimcudaError("no simulated device is loaded; call simcuda.load() first")
        function = getattr(self._runtime, f"simcuda_{name}")
        function.restype, function.argtypes = _SIGNATURES[name]
        return function(*arguments)

    def _numbers(self, names: tuple[str, ...], function: str, *arguments: Any) -> dict[str, int]:
        """What `function` writes into the struct whose members `names` names, as many as it has."""
        values = (ctypes.c_int64 * len(names))()  # nothing counts to 2**63
        self._call(function, *arguments, values)
        return {name: values[at] for at, name in enumerate(names)}

    def __getitem__(self, index: int) -> Device:
        """Another device of the same simulation."""
        if not 0 <= index < self._call("device_count"):
            raise IndexError(f"there is no simulated device {index}")
        other = Device(self._runtime, index)
        other._checker = self._checker
        return other

    @property
    def capacity(self) -> int:
        """Bytes of device memory. Set it below `used`, and every further allocation fails."""
        return int(self._call("capacity", self.index))

    @capacity.setter
    def capacity(self, size: int) -> None:
        self._call("set_capacity", self.index, size)

    @property
    def used(self) -> int:
        """Bytes allocated now, in the granules that a real device would charge."""
        return int(self._call("used", self.index))

    @property
    def peak(self) -> int:
        """The largest `used` since the start or the last `reset_peak`."""
        return int(self._call("peak", self.index))

    def reset_peak(self) -> None:
        self._call("reset_peak", self.index)

    @property
    def host_used(self) -> int:
        """Bytes of pinned host memory allocated now (registered memory does not count)."""
        return int(self._call("host_used"))

    @property
    def host_peak(self) -> int:
        return int(self._call("host_peak"))

    @property
    def host_capacity(self) -> int:
        """The limit of pinned host memory; 0: none."""
        return int(self._call("host_capacity"))

    def set_host_capacity(self, size: int) -> None:
        """Limit pinned host memory; 0 lifts the limit."""
        self._call("set_host_capacity", size)

    @property
    def mode(self) -> str:
        return MODES[int(self._call("mode"))]

    def set_mode(self, mode: str, lag: int = 0) -> None:
        """Run what is queued, then switch. `lag`: how many queries answer "not ready" first."""
        if mode not in MODES:
            raise SimcudaError(f"there is no mode {mode!r}; choose one of {', '.join(MODES)}")
        if self.dry:
            raise SimcudaError("a dry device has no modes; its commands take virtual time")
        self._call("set_mode", MODES.index(mode), lag)

    @property
    def pending(self) -> int:
        """Commands that are queued on the streams of all devices."""
        return int(self._call("pending"))

    def set_bandwidth(self, bytes_per_second: float) -> None:
        """Let each copy take its time; 0 for none. This orders events, it measures nothing."""
        self._call("set_bandwidth", bytes_per_second)

    def set_abort(self, on: bool) -> None:
        """Abort the process on whatever is refused, instead of returning an error."""
        self._call("set_abort", int(on))

    def fail_next_mallocs(self, count: int, skip: int = 0) -> None:
        """Let `skip` device allocations pass, then fail `count` with out of memory."""
        self._call("fail_mallocs", skip, count)

    def fail_next_host_allocs(self, count: int, skip: int = 0) -> None:
        """The same for pinned host allocations."""
        self._call("fail_host_allocs", skip, count)

    def fail_next_streams(self, count: int, skip: int = 0) -> None:
        """The same for streams that are created, as the driver may have no memory for one."""
        self._call("fail_streams", skip, count)

    def break_context(self) -> None:
        """As after a kernel's access to a wrong address: whatever is asked of events, or waits,
        fails from now on, to the end of the process."""
        self._call("break")

    def fail_next_copies(self, count: int, skip: int = 0) -> None:
        """The same for copies; they fail with ``cudaErrorUnknown`` and move nothing."""
        self._call("fail_copies", skip, count)

    def counters(self) -> dict[str, int]:
        """What the device has done since the start or the last reset, by `COUNTERS`."""
        return self._numbers(COUNTERS, "counters")

    @property
    def dry(self) -> bool:
        """Whether nothing is computed and time is virtual."""
        return bool(self._call("dry"))

    def times(self) -> dict[str, int]:
        """Virtual nanoseconds of a dry device since its start: what time it is for the host
        (``now``), how long it has ``waited``, how long kernels (``compute``) and copies (``in``,
        ``out``) have run."""
        if not self.dry:
            raise SimcudaError("only a dry device has times; load it with dry=True")
        return self._numbers(TIMES, "times", self.index)

    def unmodelled_calls(self) -> dict[str, int]:
        """Of TensorFlow: how often it called which function of NVIDIA's libraries that takes the
        time of a launch here, whatever it would compute."""
        if self._runtime is None or not hasattr(self._runtime, "simcuda_unmodelled_calls"):
            raise SimcudaError("only TensorFlow's device has unmodelled calls")
        text = self._call("unmodelled_calls").decode()
        return {name: int(count) for name, count in map(str.split, text.splitlines())}

    def reset_counters(self) -> None:
        """Set all counters, those of the streams too, to 0."""
        self._call("reset_counters")

    def stream_copies(self, stream: int) -> dict[str, int]:
        """Copies issued on a stream, by its handle (``torch.cuda.Stream.cuda_stream``)."""
        return self._numbers(STREAM_COPIES, "stream_copies", stream or None, self.index)

    def _order(self) -> Checker:
        if self._checker is None:
            raise SimcudaError("order is not checked; load the device with order='report'")
        return self._checker

    def races(self) -> list[Race]:
        """Pairs of operations on the same memory that nothing orders, each pair once."""
        return self._order().races()

    def clear_races(self) -> None:
        """Forget the races that were found; what was done to which memory is still known."""
        self._order()
        self._call("order_clear")

    def set_queries(self, policy: str) -> None:
        """``eager``: a query answers as the mode says. ``strict``: it answers "done" only for what
        the host has waited for, so that it orders nothing that was not ordered."""
        if policy not in QUERIES:
            raise SimcudaError(f"queries is {policy!r}; choose one of {', '.join(QUERIES)}")
        self._order()
        self._call("order_set_strict", int(policy == "strict"))

    def order_size(self) -> dict[str, int]:
        """Operations noted, ranges of memory remembered, accesses forgotten for lack of room."""
        self._order()
        return self._numbers(ORDER_SIZE, "order_size")
