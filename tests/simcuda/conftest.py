# SPDX-License-Identifier: Apache-2.0
"""The simulated device in this process (mode and capacity change per test), and in others."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import simcuda
from simcuda.torchinfo import find_torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import balance
import lacking
import tiers

TOOLS = Path(simcuda.__file__).resolve().parent.parent
MIB = 1 << 20


def pytest_configure(config: pytest.Config) -> None:
    balance.register(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).resolve().parent
    mine = [item for item in items if here in item.path.parents]
    lacking.skip(mine)
    if "not slow" in config.getoption("markexpr", ""):  # the default tier
        left_out = tiers.in_other_modes(mine)
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def loaded() -> Any:
    """The torch module on a simulated device of 256 MiB."""
    if find_torch() is None:
        pytest.skip("torch is not installed here")
    simcuda.load(memory="256M", devices=2, children=False, order="report")
    import older_torch
    import torch

    older_torch.name()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # the collections below need not look at torch itself
    return torch


@pytest.fixture
def torch(loaded: Any) -> Iterator[Any]:
    """torch with an empty, fault-free device in mode immediate and with counters at 0. Races that
    the test does not clear fail it."""
    _reset(loaded)
    yield loaded
    _reset(loaded)
    races = simcuda.device.races()
    simcuda.device.clear_races()
    assert not races, "\n".join(map(str, races))


def _reset(torch: Any) -> None:
    device = simcuda.device
    for fail in (
        device.fail_next_mallocs,
        device.fail_next_host_allocs,
        device.fail_next_streams,
        device.fail_next_copies,
    ):
        fail(0)
    device.set_mode("immediate")
    device.set_queries("eager")
    device.set_bandwidth(0)
    device.set_host_capacity(0)
    device.capacity = 256 * MIB
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    simcuda.empty_host_cache(torch)
    torch.cuda.reset_peak_memory_stats()
    device.reset_peak()
    device.reset_counters()


@pytest.fixture(params=simcuda.MODES)
def mode(request: pytest.FixtureRequest, torch: Any) -> str:
    """Each mode in turn, set on the device; queries lag where something can be pending."""
    simcuda.device.set_mode(request.param, lag=0 if request.param == "immediate" else 2)
    return str(request.param)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script in a process of its own: `run(code, "--memory", "64M", env={...})`."""

    def run(
        code: str,
        *options: str,
        plain: bool = False,
        env: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(code))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SIMCUDA_")}
        inherited.pop("SIMCUDA", None)
        for keep in ("SIMCUDA_CACHE", "SIMCUDA_CUDA_INCLUDE"):
            if keep in os.environ:
                inherited[keep] = os.environ[keep]
        inherited["PYTHONPATH"] = str(TOOLS)
        simulated = [] if plain else ["-m", "simcuda", *options]
        return subprocess.run(
            [sys.executable, *simulated, str(script), *arguments],
            env={**inherited, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run
