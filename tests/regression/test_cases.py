# SPDX-License-Identifier: Apache-2.0
"""Every case gives the same bits under chaos, and while another thread moves tensors out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import lms_device
import pytest
import torch
from lms_cases import CASES, Case

MODES = lms_device.device.modes
NAMES = [pytest.param(n, marks=[pytest.mark.values] * case.values) for n, case in CASES.items()]


def frozen(value: Any) -> Any:
    """`value` with its tensors as bytes, to compare exactly: NaN equals NaN, -0.0 is not 0.0."""
    if isinstance(value, torch.Tensor):
        host = value.detach().cpu().contiguous()
        flat = host.flatten().view(torch.uint8) if host.numel() else host
        return str(host.dtype), tuple(host.shape), bytes(flat.numpy())
    if isinstance(value, dict):
        return {k: frozen(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [frozen(v) for v in value]
    return value.replace(", device='cuda:0'", "") if isinstance(value, str) else value


def reference(case: Case) -> Any:
    """What it gives on the CPU, or where it needs a GPU's kernels without Large Model Support."""
    on = "cuda" if case.same_device else lms_device.device.reference
    assert not torch.cuda.lms.is_enabled()
    return frozen(case.run(on))


@cache
def expected(name: str) -> Any:
    return reference(CASES[name])


@contextmanager
def storm() -> Iterator[None]:
    """Another thread moves out all that is idle, again and again."""
    stop = threading.Event()

    def evict() -> None:
        while not stop.is_set():
            torch.cuda.lms.reclaim()

    thread = threading.Thread(target=evict)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("name", NAMES)
def test_unlimited(device: Any, name: str) -> None:
    """On, with room for everything: no case moves anything, nor changes."""
    want = expected(name)
    torch.cuda.lms.enable(min_size=0)
    assert frozen(CASES[name].run("cuda")) == want
    assert torch.cuda.lms.stats()["reclaimed"] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_chaos(device: Any, name: str, mode: str) -> None:
    want = expected(name)
    device.mode(mode)
    torch.cuda.lms.api.load().set_chaos(True)
    torch.cuda.lms.enable(min_size=0)
    result = CASES[name].run("cuda")
    assert torch.cuda.lms.stats()["lms.paged_out"] > 0
    assert frozen(result) == want


@pytest.mark.parametrize(
    "mode",
    [
        m if m in ("lazy", "late-write", "device") else pytest.param(m, marks=pytest.mark.slow)
        for m in MODES
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_storm(device: Any, name: str, mode: str) -> None:
    want = expected(name)
    device.mode(mode)
    torch.cuda.lms.enable(min_size=0)
    moved = rounds = 0
    with storm():
        while rounds < 3 or (moved < 20 and rounds < 2000):
            assert frozen(CASES[name].run("cuda")) == want
            rounds += 1
            moved = torch.cuda.lms.stats()["reclaimed"]
    assert moved > 0
