# SPDX-License-Identifier: Apache-2.0
"""One measurement, in a process of its own: a model of one size, by one method, under one cap.

`python -m lmsbench.point JSON` prints one line of JSON.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gzip
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METHODS = ("plain", "checkpoint", "save_on_cpu", "both", "lms")


@dataclass(frozen=True)
class Point:
    """What is measured. `cap` is bytes of device memory that PyTorch may reserve, 0 for all."""

    model: str
    size: int
    method: str
    cap: int
    scale: int = 1
    warmup: int = 2
    steps: int = 3
    host_limit: int = 0  # bytes of host memory that LMS may take, 0 for no limit
    trace: str = ""  # file for a profile of one more step
    amp: bool = False  # fp16 by autocast, with a GradScaler; else fp32

    @property
    def key(self) -> str:
        key = f"{self.model}/{self.size}/{self.method}/{self.cap >> 20}M/x{self.scale}"
        return key + ("/amp" if self.amp else "")


def large_model_support() -> Any:
    """torch.cuda.lms of a patched build, else the plug-in. Raises ImportError."""
    import torch

    native = getattr(torch.cuda, "lms", None)
    if native is not None:
        return native
    import torch_lms

    return torch_lms


@contextlib.contextmanager
def method(point: Point, net: Any) -> Iterator[Any]:
    """Gives the context that the forward pass runs in."""
    import torch

    if point.method == "lms":
        lms = large_model_support()
        lms.enable(host_limit=point.host_limit, min_size=(1 << 20) // point.scale**2)
        yield contextlib.nullcontext
        lms.disable()
        return
    net.recompute = point.method in ("checkpoint", "both")
    if point.method in ("save_on_cpu", "both"):  # both: of a block it is what goes in that is saved
        yield lambda: torch.autograd.graph.save_on_cpu(pin_memory=True)
    else:
        yield contextlib.nullcontext


def _dry() -> bool:
    return os.environ.get("SIMCUDA_DRY") == "1"


def _no_numbers() -> contextlib.AbstractContextManager[Any]:
    """Draws none for weights, which takes seconds and which a dry device has no use for."""
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, given: Any = (), named: Any = None
        ) -> Any:
            named = named or {}
            if getattr(function, "__module__", "") == "torch.nn.init":
                return named.get("tensor", *given[:1])
            return function(*given, **named)

    return Mode()


def _clock() -> Callable[[], float]:
    """Seconds: of the virtual time of a dry device, where it is one."""
    if not _dry():
        return time.perf_counter
    import simcuda

    return lambda: simcuda.device.times()["now"] / 1e9


def measure(point: Point) -> dict[str, Any]:
    """Train and give status ("ok" or "oom"), seconds of each step, losses (exact, as hexadecimal
    floats), peaks in bytes, and the bytes that LMS copied in all steps."""
    import torch

    from lmsbench.models import WORKLOADS, loss_of

    workload = WORKLOADS[point.model]
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    total = torch.cuda.get_device_properties(0).total_memory
    if point.cap:
        torch.cuda.set_per_process_memory_fraction(min(1.0, point.cap / total))
    result: dict[str, Any] = {"status": "ok", "seconds": [], "losses": []}
    inputs, target = (tensor.cuda() for tensor in workload.batch(point.size, point.scale))
    with _no_numbers() if _dry() else contextlib.nullcontext():
        net = workload.build(point.scale)
    clock = _clock()
    try:
        with method(point, net) as forward:
            net = net.cuda()
            optimiser = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
            scaler = torch.amp.GradScaler("cuda", enabled=point.amp)
            autocast = torch.autocast("cuda", torch.float16, enabled=point.amp)

            def step() -> None:
                torch.cuda.synchronize()
                start = clock()
                optimiser.zero_grad()
                with forward(), autocast:
                    loss = loss_of(net(inputs), target)
                scaler.scale(loss).backward()
                scaler.step(optimiser)
                scaler.update()
                torch.cuda.synchronize()
                result["seconds"].append(clock() - start)
                result["losses"].append(loss.item().hex())

            for _ in range(point.warmup + point.steps):
                step()
            if point.trace:
                result["overlap"] = _profile(step, Path(point.trace))
                del result["seconds"][-1]  # a profiled step is no measurement
    except torch.OutOfMemoryError as error:
        result |= {"status": "oom", "message": str(error)[:400]}
    result["all_seconds"] = sum(result["seconds"])
    result["seconds"] = result["seconds"][point.warmup :]
    stats = torch.cuda.memory_stats()
    result["peak_allocated"] = stats["allocated_bytes.all.peak"]
    result["peak_reserved"] = stats["reserved_bytes.all.peak"]
    if point.method == "lms":
        result["lms"] = {
            name: value
            for name, value in large_model_support().stats().items()
            if isinstance(value, int)
        }
    if os.environ.get("SIMCUDA") == "1":  # by any method, and with the inputs
        import simcuda

        counters = simcuda.device.counters()
        result["copied_bytes"] = counters["h2d_bytes"] + counters["d2h_bytes"]
    if result["status"] == "ok" and result["seconds"]:
        mean = sum(result["seconds"]) / len(result["seconds"])
        result["samples_per_second"] = workload.samples(point.size) / mean
    return result


def _profile(step: Any, path: Path) -> dict[str, float]:
    """Profile one step into `path` (.json.gz, for chrome://tracing); seconds of copies, of kernels,
    and of copies while a kernel ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
    plain = path.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    text = plain.read_bytes()
    path.write_bytes(gzip.compress(text))
    plain.unlink()
    return overlap(json.loads(text)["traceEvents"])


def overlap(events: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of copies, of kernels and of both at once in a chrome trace (microseconds)."""
    spans: dict[str, list[tuple[float, float]]] = {"gpu_memcpy": [], "kernel": []}
    for event in events:
        if event.get("cat") in spans and "dur" in event:
            spans[event["cat"]].append((event["ts"], event["ts"] + event["dur"]))
    copies, kernels = _union(spans["gpu_memcpy"]), _union(spans["kernel"])
    both = _shared(copies, kernels)
    length = [sum(end - start for start, end in spans) / 1e6 for spans in (copies, kernels)]
    return {"copies": length[0], "kernels": length[1], "both": both / 1e6}


def _union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _shared(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
    """The length that two lists of disjoint ascending spans have in common."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        total += max(0.0, min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total


def link(megabytes: int = 512, repeats: int = 5) -> dict[str, float]:
    """Bytes per second between pinned host memory and the device: out, in, and both at once (the
    sum of both ways)."""
    import torch

    count = megabytes << 20
    host = [torch.empty(count, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(count, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copy(out: bool, in_: bool) -> float:
        best = float("inf")
        for _ in range(repeats):
            torch.cuda.synchronize()
            start = time.perf_counter()
            if out:
                with torch.cuda.stream(streams[0]):
                    host[0].copy_(device[0], non_blocking=True)
            if in_:
                with torch.cuda.stream(streams[1]):
                    device[1].copy_(host[1], non_blocking=True)
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        return count * (out + in_) / best

    return {"out": copy(True, False), "in": copy(False, True), "both": copy(True, True)}


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "device_memory": properties.total_memory,
        "host_memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "simulated": os.environ.get("SIMCUDA") == "1",
    }


def main() -> None:
    request = json.loads(sys.argv[1])
    if request == "machine":
        value = machine()
    elif request == "link":
        value = link()
    else:
        value = measure(Point(**request))
    print(json.dumps(value))


def request_of(point: Point) -> str:
    return json.dumps(dataclasses.asdict(point))


def leave() -> None:
    """End the process without Python's own end. A thread of autograd's may still hold the error of
    a backward pass that ran out of memory; it takes the interpreter to let go of it, and to take
    that while it ends is to end the process by std::terminate."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
    leave()
