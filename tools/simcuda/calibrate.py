# SPDX-License-Identifier: Apache-2.0
"""Measures a GPU into a profile: ``python -m simcuda calibrate``.

Each figure is one that the clock of the dry device works with, and is measured by what the clock
would do with it. So a dry device that is measured gives back the figures of its own profile, and
the tests do that.
"""

from __future__ import annotations

import datetime
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import loader
from .errors import SimcudaError
from .host_cache import empty_host_cache
from .profiles import MEASURED, NANOSECONDS, Profile

MIB = 1 << 20
REPEATS = 5  # of each measurement, of which the median is taken
MANY = 1000  # small things are done so many times
SIDE = 8192  # of the matrices that are multiplied


@dataclass(frozen=True)
class Line:
    """What takes `fixed` seconds and then `amount / rate`."""

    fixed: float
    rate: float


def line(points: Sequence[tuple[float, float]]) -> Line:
    """The line through (amount, seconds), by least squares. Raises SimcudaError where more does not
    take longer."""
    slope, fixed = statistics.linear_regression(*zip(*points, strict=True))
    if slope <= 0:
        amounts = ", ".join(f"{seconds:.3g} s for {amount:.3g}" for amount, seconds in points)
        raise SimcudaError(
            f"the GPU cannot be calibrated because more took no longer ({amounts}); leave it to "
            "this program alone, and try again"
        )
    return Line(max(fixed, 0), 1 / slope)


class Meter:
    """Measures on the current device of torch, in seconds."""

    def __init__(self) -> None:
        try:
            import torch
        except (ImportError, OSError, ValueError) as error:  # as of one without CUDA's libraries
            raise SimcudaError(
                f"nothing can be calibrated because torch cannot be imported here ({error}); "
                "install it with the libraries that it requires on a GPU"
            ) from None
        self.torch = torch
        self.dry = loader.device._runtime is not None
        if self.dry and not loader.device.dry:
            raise SimcudaError(
                "nothing can be calibrated because this is the simulated device, which has no time "
                "of its own; run it where a GPU is, or with --dry PROFILE"
            )

    def now(self) -> float:
        """What time it is for the host."""
        return loader.device.times()["now"] / 1e9 if self.dry else time.perf_counter()

    def host_memory(self) -> int:
        """The machine's."""
        if self.dry:
            return loader.device.host_capacity
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def zeros(self, *sizes: int, kind: str = "float32") -> Any:
        return self.torch.zeros(*sizes, dtype=getattr(self.torch, kind), device="cuda")

    def host(self, run: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        """How long the host is busy with it."""
        taken = []
        for _ in range(REPEATS):
            before()
            self.torch.cuda.synchronize()
            begin = self.now()
            run()
            taken.append(self.now() - begin)
        return statistics.median(taken)

    def device(self, run: Callable[[], object], times: int = 1) -> float:
        """How long the device is busy with it, of so many one after the other. It has work before,
        so that it never waits for the host."""
        cuda = self.torch.cuda
        taken: list[float] = []
        a = self.zeros(SIDE, SIDE)
        run()  # what is made once is made
        for _ in range(REPEATS):
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            cuda.synchronize()
            self.torch.mm(a, a)
            begin.record()
            for _ in range(times):
                run()
            end.record()
            cuda.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3 / times)
        return statistics.median(taken)

    def both_ways(self, out: Callable[[], object], in_: Callable[[], object]) -> float:
        """How long the two take side by side, each on a stream of its own."""
        cuda = self.torch.cuda
        taken: list[float] = []
        streams = [cuda.Stream() for _ in range(2)]
        for _ in range(REPEATS):
            begin, ends = cuda.Event(enable_timing=True), []
            cuda.synchronize()
            begin.record()
            for stream, run in zip(streams, (out, in_), strict=True):
                stream.wait_event(begin)
                with cuda.stream(stream):
                    run()
                ends.append(stream.record_event(cuda.Event(enable_timing=True)))
            cuda.synchronize()
            taken.append(max(begin.elapsed_time(end) for end in ends) / 1e3)
        return statistics.median(taken)


def measure(name: str) -> Profile:
    """The current device of torch, which nobody else uses. Raises SimcudaError without one."""
    meter = Meter()
    torch = meter.torch
    if not torch.cuda.is_available():
        raise SimcudaError(
            "nothing can be calibrated because torch finds no GPU here; run it where the GPU is"
        )
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        **_link(meter),
        **_memory(meter),
        **_host_costs(meter),
        **_arithmetic(meter),
    }
    seconds = {name: found.pop(name) for name in NANOSECONDS}
    found["efficiency"] |= {"memory": 1.0, "link": 1.0}
    said = (
        f"{MEASURED} on {properties.name}, {datetime.date.today()}, by python -m simcuda calibrate"
    )
    return Profile(
        name=name,
        memory=total,
        context=total - free,
        host=meter.host_memory(),
        capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        nanoseconds={name: max(1, round(1e9 * taken)) for name, taken in seconds.items()},
        sources=dict.fromkeys(("gpu", "link", "assumed"), said),
        **found,
    )


def _link(meter: Meter) -> dict[str, Any]:
    sizes = (64 * MIB, 256 * MIB)
    byte = meter.torch.uint8
    host = [meter.torch.empty(sizes[1], dtype=byte, pin_memory=True) for _ in range(2)]
    device = [meter.zeros(sizes[1], kind="uint8") for _ in range(2)]

    def copy(to: Any, source: Any, size: int) -> Callable[[], object]:
        return lambda: to[:size].copy_(source[:size], non_blocking=True)

    out = line([(n, meter.device(copy(host[0], device[0], n))) for n in sizes])
    in_ = line([(n, meter.device(copy(device[1], host[1], n))) for n in sizes])
    # As long each way, so that the two run side by side to the end.
    most = max(out.rate, in_.rate)
    ways = [int(sizes[1] * way.rate / most) for way in (out, in_)]
    alone = ways[0] / out.rate
    fixed = (out.fixed + in_.fixed) / 2
    both = meter.both_ways(copy(host[0], device[0], ways[0]), copy(device[1], host[1], ways[1]))
    duplex = min(1.0, (alone + fixed) / both)
    return {
        "link_out": out.rate,
        "link_in": in_.rate,
        "duplex": round(1000 * duplex),
        "copy": fixed,
    }


def _memory(meter: Meter) -> dict[str, Any]:
    """An addition in place reads each byte and writes it."""
    points = []
    for size in (256 * MIB, 1024 * MIB):
        x = meter.zeros(size // 4)
        points.append((2 * size, meter.device(partial(x.add_, 1))))
    return {"bandwidth": line(points).rate, "kernel": _launch(meter)}


def _launch(meter: Meter) -> float:
    return meter.device(partial(meter.zeros(1).add_, 1), MANY)


def _host_costs(meter: Meter) -> dict[str, Any]:
    torch = meter.torch
    x, event = meter.zeros(1), torch.cuda.Event()
    op = meter.host(lambda: [x.add_(1) for _ in range(MANY)]) / MANY
    call = meter.host(lambda: [event.record() for _ in range(MANY)]) / MANY

    def take() -> object:
        return torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")

    def pinned(size: int) -> Callable[[], object]:
        return lambda: torch.empty(size, dtype=torch.uint8, pin_memory=True)

    cached = meter.host(take, lambda: take())
    malloc = meter.host(take, torch.cuda.empty_cache) - cached

    def emptied() -> None:
        empty_host_cache(torch)

    # Powers of two, which torch's allocator does not round.
    pins = [(n, meter.host(pinned(n), emptied)) for n in (64 * MIB, 256 * MIB)]
    pin = line(pins)
    return {
        "op": op,
        "call": call,
        "malloc": malloc,
        "host_malloc": pin.fixed,
        "host_pin": pin.rate,
    }


def _arithmetic(meter: Meter) -> dict[str, Any]:
    torch = meter.torch
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    empty = _launch(meter)

    def rate(operations: float, run: Callable[[], object]) -> float:
        return operations / (meter.device(run) - empty)

    def product(kind: str, side: int = SIDE) -> float:
        a = meter.zeros(side, side, kind=kind)
        return rate(2 * side**3, lambda: torch.mm(a, a))

    products = {
        "fp64": product("float64", SIDE // 2),
        "fp32": product("float32"),
        "half": product("float16"),
    }
    torch.backends.cuda.matmul.allow_tf32 = True
    products["tf32"] = product("float32")
    torch.backends.cuda.matmul.allow_tf32 = False

    images, channels, side = 64, 256, 56
    image, weight = meter.zeros(images, channels, side, side), meter.zeros(channels, channels, 3, 3)
    convolve = partial(torch.conv2d, image, weight, padding=1)
    convolution = rate(2 * 9 * channels * image.numel(), convolve)

    heads, length, width = 64, 4096, 64
    q = meter.zeros(1, heads, length, width, kind="float16")
    attend = torch.nn.functional.scaled_dot_product_attention
    attention = rate(4 * q.numel() * length, lambda: attend(q, q, q))

    shares = {
        "matmul": 1.0,
        "convolution": convolution / products["fp32"],
        "attention": attention / products["half"],
    }
    best = max(shares.values())  # a share is at most 1, so the figure is that of the best class
    return {
        "flops": {kind: value * best for kind, value in products.items()},
        "efficiency": {name: share / best for name, share in shares.items()},
        "convolution_workspace": _workspace(meter, convolve),
    }


def _workspace(meter: Meter, run: Callable[[], Any]) -> int:
    """What it takes beside its result while it runs."""
    cuda = meter.torch.cuda
    run()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    result = run()
    return int(cuda.max_memory_allocated() - before - result.untyped_storage().nbytes())
