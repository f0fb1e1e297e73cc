# SPDX-License-Identifier: Apache-2.0
"""PyTorch 1.5 and 1.4 for CUDA 10 on the device, with a Python that they are for: memory, streams
and copies, and no kernels. The overlay is taken where `lmsbuild wheel` has made one, else the
official wheel. `python -m pytest tests/simcuda/test_old_torch.py`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pythons import interpreter

from simcuda import torchinfo

TOOLS = Path(torchinfo.__file__).resolve().parents[1]
WORK = Path(os.environ.get("LMSBUILD_WORK") or TOOLS.parent / "work")
PYTHON = "3.8"
PRELUDE = """
import json
import torch
import simcuda
device = simcuda.device

def say(**facts):
    print(json.dumps(facts))

def same(tensors):
    return all(torch.equal(t.cpu(), ramp + i) for i, t in enumerate(tensors))

ramp = torch.arange(1 << 18, dtype=torch.float32)  # of 1 MiB
"""
Run = Callable[..., Any]

pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.fixture(scope="module", params=["1.5.0", "1.4.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def overlay(version: str) -> list[Path]:
    """That of Large Model Support, if it is there."""
    return sorted((WORK / f"pytorch-v{version}" / "wheels").glob("torch-*-cp38-*.whl"))


@pytest.fixture(scope="module")
def run(version: str, overlay: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program on a device of 32 MiB; what it says last."""
    folder = tmp_path_factory.mktemp("old")
    python = folder / "env/bin/python"
    subprocess.run([interpreter(PYTHON), "-m", "venv", folder / "env"], check=True)
    headers = torchinfo.Torch(folder, version, "10.2").header_wheels
    torch = str(overlay[-1]) if overlay else f"torch=={version}"
    wheels = [torch, "numpy<1.20", "future", *headers]
    subprocess.run([python, "-m", "pip", "install", "-q", *wheels], check=True)

    def run(code: str) -> Any:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SIMCUDA_")}
        program = folder / "program.py"
        program.write_text(PRELUDE + code)
        done = subprocess.run(
            [python, "-m", "simcuda", "--memory", "32M", "--order", "report", program],
            env={**kept, "PYTHONPATH": str(TOOLS)}, capture_output=True, text=True, timeout=1800,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "RACE" not in done.stderr, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_memory_and_copies(run: Run) -> None:
    said = run(
        """
side = torch.cuda.Stream()
there = [(ramp + i).cuda() for i in range(8)]
with torch.cuda.stream(side):
    pinned = ramp.pin_memory()
    there.append((pinned + 8).cuda(non_blocking=True))
    side.synchronize()
used = torch.cuda.memory_allocated()
equal = same(there)
del there
torch.cuda.empty_cache()
say(used=used, equal=equal, name=torch.cuda.get_device_name(0), left=device.used)
"""
    )
    assert said == {
        "used": 9 << 20, "equal": True, "name": "simcuda: simulated CUDA device", "left": 0,
    }  # fmt: skip


def test_more_than_the_device_is_out_of_memory(run: Run) -> None:
    said = run(
        """
there = []
try:
    for i in range(100):
        there.append((ramp + i).cuda())
except RuntimeError as error:
    say(error=str(error), fit=len(there))
"""
    )
    assert said["error"].startswith("CUDA out of memory") and 20 <= said["fit"] <= 32


def test_a_kernel_is_refused_by_name(run: Run) -> None:
    said = run(
        """
try:
    ramp.cuda() + ramp.cuda()
except RuntimeError as error:
    say(error=str(error))
"""
    )
    assert "the simulated device refuses: kernel launch" in said["error"]
    assert "add_kernel_cuda" in said["error"]


def test_storages_leave_and_come_back(run: Run, overlay: list[Path], version: str) -> None:
    """Three times the device."""
    if not overlay:
        pytest.skip(f"needs the overlay, which `lmsbuild wheel v{version} --python 3.8` makes")
    said = run(
        """
early = [(ramp + i).cuda() for i in range(4)]
torch.cuda.lms.enable(min_size=0)
equal = same(early)
left = torch.cuda.lms.reclaim()
used = torch.cuda.memory_allocated()
equal = equal and same(early)
many = [(ramp + i).cuda() for i in range(96)]
moved = torch.cuda.memory_stats()["reclaimed_bytes"]
again = same(many) and same(many)
pointer = many[0].data_ptr()
held = torch.cuda.lms.reclaim() and many[0].data_ptr() == pointer
torch.cuda.lms.release_pointer(many[0])
del many[9:]
torch.cuda.lms.disable()
say(left=left, used=used, equal=equal, moved=moved, again=again, held=held, off=same(many))
"""
    )
    assert said.pop("moved") >= 60 << 20
    assert said == {
        "left": 4 << 20, "used": 0, "equal": True, "again": True, "held": True, "off": True,
    }  # fmt: skip
