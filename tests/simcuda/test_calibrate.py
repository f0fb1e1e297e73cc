# SPDX-License-Identifier: Apache-2.0
"""A profile that is measured. The arithmetic is shown on dry devices, whose figures are known."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import TOOLS

from simcuda import SimcudaError, profile
from simcuda.calibrate import line
from simcuda.profiles import Native, Profile, to_toml
from simcuda.torchinfo import find_torch

MIB = 1 << 20


def calibrate(file: Path, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = ("SIMCUDA_CACHE", "SIMCUDA_CUDA_INCLUDE")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SIMCUDA") or k in kept}
    return subprocess.run(
        [sys.executable, "-m", "simcuda", "calibrate", str(file), *options],
        env={**inherited, "PYTHONPATH": str(TOOLS), **settings},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


# As no GPU is: no two figures are alike, and none is what is taken for granted.
ODD = replace(
    profile("a100-80gb-pcie4"),
    memory=40 << 30,
    host=300 << 30,
    context=0,
    flops={"fp64": 9e12, "fp32": 17e12, "tf32": 140e12, "half": 270e12},
    bandwidth=1500e9,
    link_in=21e9,
    link_out=26e9,
    duplex=800,
    host_pin=3e9,
    convolution_workspace=48 * MIB,
    nanoseconds={
        "kernel": 2500, "copy": 9000, "op": 3300, "call": 700, "malloc": 230_000,
        "host_malloc": 410_000,
    },
    efficiency={"matmul": 0.8, "convolution": 0.55, "attention": 0.4, "memory": 0.9, "link": 0.7},
)  # fmt: skip


def figures(of: Profile) -> dict[str, float]:
    """All that a program on the dry device could notice."""
    native = of.native()
    found = {name: getattr(native, name) for name, _ in Native._fields_}
    for kind in of.flops:
        found[kind] *= found["matmul"]
    for name in ("convolution", "attention"):
        found[name] /= native.matmul
    del found["matmul"]
    return {**found, "available": of.available, "host": of.host}


@pytest.mark.slow
@pytest.mark.parametrize("one", [ODD, profile("v100-32gb-pcie3")], ids=lambda one: one.name)
def test_a_dry_device_gives_back_its_own_profile(one: Profile, tmp_path: Path) -> None:
    if find_torch() is None:
        pytest.skip("torch is not installed here")
    known, out = tmp_path / "known.toml", tmp_path / "found.toml"
    known.write_text(to_toml(one))
    assert figures(profile(str(known))) == figures(one)
    done = calibrate(out, "--dry", str(known))
    assert done.returncode == 0, done.stderr
    found = profile(str(out))
    assert found.measured and not one.measured
    assert figures(found) == pytest.approx(figures(one), rel=2e-3)


def test_a_line_is_fitted() -> None:
    fitted = line([(n, 3e-6 + n / 12e9) for n in (1e6, 2e6, 5e6)])
    assert (fitted.fixed, fitted.rate) == (pytest.approx(3e-6), pytest.approx(12e9))
    off = line([(1e6, 1e6 / 12e9 * 1.01), (4e6, 4e6 / 12e9 * 0.99), (9e6, 9e6 / 12e9)])
    assert off.rate == pytest.approx(12e9, rel=0.02)
    assert line([(1e6, 0.9e-3), (2e6, 2e-3)]).fixed == 0  # nothing takes less than no time
    with pytest.raises(SimcudaError, match=r"because more took no longer .*; leave it to this"):
        line([(1e6, 1e-3), (2e6, 1e-3)])


def test_without_a_gpu_nothing_is_calibrated(tmp_path: Path) -> None:
    done = calibrate(tmp_path / "a.toml")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "simcuda: nothing can be calibrated because torch " in done.stderr
    done = calibrate(tmp_path / "a.json")
    assert done.returncode == 2
    assert "a.json cannot be a profile because of its name; let it end with .toml" in done.stderr


@pytest.mark.slow
def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    if find_torch() is None:
        pytest.skip("torch is not installed here")
    done = calibrate(tmp_path / "none" / "a.toml", "--dry", "v100-32gb-pcie3")
    assert done.returncode == 2 and "a.toml cannot be written: No such file" in done.stderr
