# SPDX-License-Identifier: Apache-2.0
"""Programs of users' give the same bits in chaos mode, while another thread moves all, and while
Large Model Support is turned off and on between any two of their operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import lms_device
import pytest
import torch
from lms_programs import NOT_IN_CHAOS_MODE, PROGRAMS
from test_cases import frozen, reference, storm
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.values

MODES = lms_device.device.modes
COMPILED = {"compiled_in_parts", "operators_of_ones_own"}


@cache
def expected(name: str) -> Any:
    torch.cuda.lms.api.load()  # which then knows what a graph is captured with
    return reference(PROGRAMS[name])


def in_modes(names: set[str], first: int = 0) -> list[Any]:
    """In the default tier each program in every other mode, and each mode with every other one."""
    return [
        pytest.param(name, mode, marks=[pytest.mark.slow] if (i + j + first) % 2 else [])
        for i, name in enumerate(name for name in PROGRAMS if name in names)
        for j, mode in enumerate(MODES)
    ]


class Between(TorchDispatchMode):
    """Does something before, and after, each operator."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.act = act

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.cuda.is_current_stream_capturing():
            return f(*args, **(kwargs or {}))
        self.act()
        out = f(*args, **(kwargs or {}))
        self.act()
        return out


@pytest.mark.parametrize(("name", "mode"), in_modes(set(PROGRAMS) - NOT_IN_CHAOS_MODE))
def test_chaos(device: Any, name: str, mode: str) -> None:
    want = expected(name)
    device.mode(mode)
    torch.cuda.lms.api.load().set_chaos(True)
    torch.cuda.lms.enable(min_size=0)
    assert frozen(PROGRAMS[name].run("cuda")) == want


# Compiling takes seconds, and has no moments of its own.
@pytest.mark.parametrize(("name", "mode"), in_modes(set(PROGRAMS) - COMPILED, 1))
def test_storm(device: Any, name: str, mode: str) -> None:
    want = expected(name)
    device.mode(mode)
    torch.cuda.lms.enable(min_size=0)
    with storm():
        for _ in range(3):
            assert frozen(PROGRAMS[name].run("cuda")) == want


# What is compiled has no operators of its own between which something could be done.
@pytest.mark.parametrize(("name", "mode"), in_modes(set(PROGRAMS) - COMPILED))
def test_switched(device: Any, name: str, mode: str) -> None:
    want = expected(name)
    device.mode(mode)
    lms = torch.cuda.lms
    lms.enable(min_size=0)
    chosen = random.Random(name + mode)

    def enable() -> None:
        try:
            lms.enable(min_size=0)
        except RuntimeError as refused:  # beside an operator by which PyTorch begins a capture
            assert "while a CUDA graph is captured" in str(refused)

    def act() -> None:
        way = chosen.random()
        if way < 0.2:
            lms.disable()
        elif way < 0.5:
            enable()
        elif way < 0.8:
            lms.reclaim()

    with Between(act):
        got = PROGRAMS[name].run("cuda")
    assert frozen(got) == want
