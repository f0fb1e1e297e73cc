# SPDX-License-Identifier: Apache-2.0
"""Runs one program on the device and writes down what the device saw of it.

Started by its path inside an environment: only the standard library is at hand, the framework, and
simcuda for PyTorch. The one argument is a JSON object, see `main`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

_SAMPLE_SECONDS = 0.002
_KEPT_SAMPLES = 4000


class _SimulatedMeter:
    """Counters of the simulated device itself. Progress is counted in operations, not in time."""

    unit = "operations on the simulated device"

    def __init__(self, memory: int) -> None:
        import simcuda

        self._device = simcuda.load(memory=memory)

    def sample(self) -> list[float]:
        counters = self._device.counters()
        return [
            counters["ops"], self._device.used, counters["d2h_bytes"], counters["h2d_bytes"]
        ]  # fmt: skip

    def start(self) -> None:
        pass

    def result(self) -> dict[str, Any]:
        counters = self._device.counters()
        return {
            "capacity": self._device.capacity,
            "peak": self._device.peak,
            "out_bytes": counters["d2h_bytes"],
            "in_bytes": counters["h2d_bytes"],
            "counters": counters,
        }


class _DryMeter(_SimulatedMeter):
    """Of the profile that the environment names. Progress is in the device's own, modelled time."""

    unit = "seconds (modelled)"

    def sample(self) -> list[float]:
        return [self._device.times()["now"] / 1e9, *super().sample()[1:]]

    def result(self) -> dict[str, Any]:
        import simcuda

        profile = simcuda.profile(os.environ["SIMCUDA_PROFILE"])
        seconds = self._device.times()["now"] / 1e9
        return {**super().result(), "seconds": seconds, "whole": profile.available}


class _PoolMeter:
    """TensorFlow's CPU device: the preloaded library that watches its pool."""

    unit = "seconds"

    def __init__(self, memory: int) -> None:
        self._capacity = memory
        self._began = time.monotonic()
        self._values = (ctypes.c_uint64 * 4)()
        self._read = ctypes.CDLL(None).pool_meter_read

    def sample(self) -> list[float]:
        self._read(self._values)
        held, _, out, back = self._values
        return [time.monotonic() - self._began, held, out, back]

    def start(self) -> None:
        pass

    def result(self) -> dict[str, Any]:
        self._read(self._values)
        _, peak, out, back = self._values
        return {"capacity": self._capacity, "peak": peak, "out_bytes": out, "in_bytes": back}


class _GpuMeter:
    """A GPU's own numbers: memory from the driver, copies from the profiler (CUPTI)."""

    unit = "seconds"

    def __init__(self, memory: int) -> None:
        import torch

        self._torch = torch
        self._began = time.monotonic()
        free, total = torch.cuda.mem_get_info()
        self._before = total - free
        self._capacity = min(memory, total) if memory else total
        self._peak = 0
        if memory:
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total))
        self._profiler: Any = None

    def start(self) -> None:
        profiler = self._torch.profiler
        self._profiler = profiler.profile(activities=[profiler.ProfilerActivity.CUDA])
        self._profiler.start()

    def sample(self) -> list[float]:
        free, total = self._torch.cuda.mem_get_info()
        used = total - free - self._before
        self._peak = max(self._peak, used)
        return [time.monotonic() - self._began, used, 0, 0]

    def result(self) -> dict[str, Any]:
        self._torch.cuda.synchronize()
        self._profiler.stop()
        copied = {"DtoH": 0, "HtoD": 0}
        for event in self._profiler.profiler.kineto_results.events():
            for way in copied:
                if f"Memcpy {way}" in event.name():
                    copied[way] += event.nbytes()
        return {
            "capacity": self._capacity,
            "peak": self._peak,
            "out_bytes": copied["DtoH"],
            "in_bytes": copied["HtoD"],
        }


class _Torch:
    def __init__(self) -> None:
        import torch

        self._cuda, self.version, self.full = (
            torch.cuda, torch.__version__, torch.OutOfMemoryError
        )  # fmt: skip

    def result(self) -> dict[str, Any]:
        # Bytes of live tensors: what the program needs, without what the allocator holds on to.
        found = {"needed": self._cuda.max_memory_allocated()}
        with contextlib.suppress(AttributeError):
            found["summary"] = self._cuda.lms.summary()
        return found


class _TensorFlow:
    def __init__(self) -> None:
        import tensorflow

        self._public, self.version = tensorflow.experimental, tensorflow.__version__
        self.full = tensorflow.errors.ResourceExhaustedError

    def result(self) -> dict[str, Any]:
        if not hasattr(self._public, "lms_summary"):
            return {"needed": 0}
        return {
            "needed": self._public.get_peak_bytes_in_use(0),
            "summary": self._public.lms_summary(),
        }


_METERS: dict[str, Any] = {
    "sim": _SimulatedMeter, "dry": _DryMeter, "cuda": _GpuMeter, "cpu": _PoolMeter,
}  # fmt: skip


def main() -> None:
    """Keys: framework, script, arguments, device (sim, dry, cuda or cpu), memory (bytes, 0: all),
    result (a path)."""
    order = json.loads(sys.argv[1])
    meter = _METERS[order["device"]](order["memory"])
    samples: list[list[float]] = []
    done = threading.Event()

    def sampler() -> None:
        while not done.wait(_SAMPLE_SECONDS):
            samples.append(meter.sample())

    frameworks: dict[str, Any] = {"pytorch": _Torch, "tensorflow": _TensorFlow}
    framework = frameworks[order["framework"]]()
    meter.start()
    thread = threading.Thread(target=sampler, daemon=True)
    thread.start()
    outcome, message = "finished", ""
    sys.argv = [order["script"], *order["arguments"]]
    try:
        runpy.run_path(order["script"], run_name="__main__")
    except framework.full as error:
        outcome, message = "out of memory", str(error)
    except Exception as error:
        outcome, message = "failed", f"{type(error).__name__}: {error}"
        traceback.print_exc()
    done.set()
    thread.join()
    samples.append(meter.sample())  # a short run has no other
    result = {
        "outcome": outcome,
        "message": message,
        "version": framework.version,
        "unit": meter.unit,
        **framework.result(),
        **meter.result(),
        "samples": samples[:: max(1, len(samples) // _KEPT_SAMPLES)],
    }
    Path(order["result"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
