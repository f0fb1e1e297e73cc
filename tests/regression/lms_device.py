# SPDX-License-Identifier: Apache-2.0
"""The device under the tests: simulated, computing or dry, or a real GPU, behind one interface.

`device` is set by `use` before any test module is imported. Sizes are bytes.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
LARGE = 1 << 30
PROFILE = os.environ.get("SIMCUDA_PROFILE") or "v100-32gb-pcie3"  # of a dry device

try:
    import simcuda
except ImportError:  # not installed in this environment: the one beside us
    sys.path.insert(0, str(HERE.parents[1] / "tools"))
    import simcuda

TOOLS = Path(simcuda.__file__).resolve().parent.parent


class SimulatedDevice:
    kind = "sim"
    modes: tuple[str, ...] = simcuda.MODES
    reference = "cpu"  # what results are compared with, bit for bit

    def __init__(self, **settings: Any) -> None:
        simcuda.load(memory=LARGE, mode="immediate", children=False, order="report", **settings)

    def limit(self, size: int) -> None:
        """Leave the device this much memory in all."""
        simcuda.device.capacity = size

    def mode(self, name: str) -> None:
        simcuda.device.set_mode(name, lag=0 if name == "immediate" else 2)

    def counters(self) -> dict[str, int]:
        return simcuda.device.counters()

    def races(self) -> list[str]:
        """Pairs of operations that nothing orders, as the device's order checker saw them."""
        return [str(race) for race in simcuda.device.races()]

    def reset(self) -> None:
        sim = simcuda.device
        for fail in (
            sim.fail_next_mallocs,
            sim.fail_next_host_allocs,
            sim.fail_next_streams,
            sim.fail_next_copies,
        ):
            fail(0)
        self.mode("immediate")
        sim.set_queries("eager")
        sim.clear_races()
        sim.set_bandwidth(0)
        sim.set_host_capacity(0)
        sim.capacity = LARGE
        sim.reset_counters()


class DryDevice(SimulatedDevice):
    """Every value is 0, so that results are compared in vain: tests that are about them are marked
    `values`. Without workspaces, which are as large as the suites' models."""

    kind = "dry"
    modes = ("immediate",)
    reference = "cuda"

    def __init__(self) -> None:
        super().__init__(dry=True, profile=PROFILE, values="off", workspaces="off")

    def mode(self, name: str) -> None:
        pass  # its commands take virtual time


class RealDevice:
    kind = "cuda"
    modes = ("device",)
    reference = "cuda"  # without a limit: a GPU's kernels round unlike the CPU's

    def limit(self, size: int) -> None:
        import torch

        torch.cuda.set_per_process_memory_fraction(
            min(1.0, size / torch.cuda.get_device_properties(0).total_memory)
        )

    def mode(self, name: str) -> None:
        pass

    def races(self) -> list[str]:
        return []  # a GPU does not tell

    def counters(self) -> dict[str, int]:
        """A GPU counts no copies; what the engine says it queued."""
        import torch

        stats = torch.cuda.lms.stats()
        return {"d2h_bytes": stats["lms.paged_out_bytes"], "h2d_bytes": stats["lms.paged_in_bytes"]}

    def reset(self) -> None:
        import torch

        torch.cuda.set_per_process_memory_fraction(1.0)


device: SimulatedDevice | RealDevice
is_dry = False


def use(kind: str) -> None:
    global device, is_dry
    kinds = {"sim": SimulatedDevice, "dry": DryDevice, "cuda": RealDevice}
    device = kinds[kind]()
    is_dry = kind == "dry"


def value(computed: float) -> float:
    """What is read where this was computed."""
    return 0 if is_dry else computed


def child_command(kind: str, python: str, memory: int, mode: str) -> list[str]:
    """How to start a Python program on a device of its own."""
    if kind == "cuda":
        return [python]
    settings = child_settings(memory, mode).items()
    return [python, "-m", "simcuda", *(word for k, v in settings for word in (f"--{k}", v))]


def child_settings(memory: int, mode: str) -> dict[str, str]:
    """Of the simulated device of such a program."""
    lag = "0" if mode == "immediate" else "2"
    return {"memory": str(memory), "mode": mode, "lag": lag, "order": "report"}


def child_environment() -> dict[str, str]:
    """This process's, without its own device's settings, and with our modules on the path."""
    kept = ("SIMCUDA_CACHE", "SIMCUDA_CUDA_INCLUDE")
    drop = ("SIMCUDA", "PYTORCH_LMS", "LMS_DEBUG", "PYTORCH_CUDA_ALLOC_CONF")
    dry = {"SIMCUDA_DRY": "1", "SIMCUDA_PROFILE": PROFILE, "SIMCUDA_VALUES": "off"}
    dry["SIMCUDA_WORKSPACES"] = "off"
    env = {
        k: v
        for k, v in os.environ.items()
        if k in kept or not (k.startswith("SIMCUDA_") or k in drop)
    }
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(
            [*filter(None, [os.environ.get("PYTHONPATH")]), str(TOOLS), str(HERE), str(HERE.parent)]
        ),
        "SIMCUDA_QUIET": "1",
        **(dry if is_dry else {}),
        "OMP_NUM_THREADS": "1",
        # The plug-in comes with torch, off, as the patched wheel has it.
        **({"PYTORCH_LMS": "0"} if is_plugin() else {}),
    }


def torch_version() -> tuple[int, ...]:
    """Its major and minor number."""
    import torch

    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def is_plugin() -> bool:
    """Whether Large Model Support comes from torch_lms beside an official torch."""
    return importlib.util.find_spec("torch_lms") is not None


_modules_seen = 0


def _collect() -> None:
    """Collect garbage, as every test does; what imports brought stays, and is looked at once."""
    global _modules_seen
    gc.collect()
    if len(sys.modules) != _modules_seen:
        _modules_seen = len(sys.modules)
        gc.freeze()


def reset() -> None:
    """Large Model Support off, no limits, nothing cached, nothing pending."""
    import torch

    if isinstance(device, SimulatedDevice):
        simcuda.device.capacity = LARGE
    # A capture that fails to begin leaves torch.cuda.graph's own stream current.
    torch.cuda.set_stream(torch.cuda.default_stream())
    lms = torch.cuda.lms
    lms.disable()
    lms.api.store(device_limit=0, soft_limit=0, host_limit=0, min_size=lms.api.DEFAULT_MIN_SIZE)
    _collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    simcuda.empty_host_cache(torch)
    if lms.library.loaded():
        lms.library.ops().set_chaos(False)
        lms.library.ops().trim_host()
    device.reset()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def leftovers() -> dict[str, Any]:
    """What the engine still holds although all tensors of the test are gone: {} if all is well.

    An autograd thread lets go of its last gradient a moment after backward has returned.
    """
    global _modules_seen
    import torch

    names = ("pinned.all.current", "pinned_bytes.all.current", "lms.on_host", "lms.host.used_bytes")
    deadline = time.monotonic() + 5
    while True:
        gc.collect()
        torch.cuda.synchronize()
        stats = torch.cuda.lms.stats()
        held = {name: stats[name] for name in names if stats.get(name)}
        if not held or time.monotonic() > deadline:
            return held
        gc.unfreeze()  # what an earlier test left may be frozen
        _modules_seen = 0  # so that the next test freezes again: each would look at all of torch
        time.sleep(0.02)
