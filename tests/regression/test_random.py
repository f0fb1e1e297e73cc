# SPDX-License-Identifier: Apache-2.0
"""Random programs in every mode of the device, and in chaos mode."""

from __future__ import annotations

from typing import Any

import lms_device
import pytest
import torch
from lms_device import LARGE
from lms_random import Program

MODES = (*lms_device.device.modes, "chaos")


def seeds(default: int, full: int) -> list[Any]:
    return [s if s < default else pytest.param(s, marks=pytest.mark.slow) for s in range(full)]


@pytest.mark.parametrize("seed", seeds(2, 60))
@pytest.mark.parametrize("mode", MODES)
def test_random_programs(lms: Any, device: Any, mode: str, seed: int) -> None:
    if mode == "chaos":
        torch.ops.lms.set_chaos(True)
    device.mode("lazy" if mode == "chaos" and "lazy" in MODES else mode)
    lms.measure_waits(seed % 2 == 1)
    program = Program(seed, device.limit, on=True)
    program.run(250)
    program.drop_graph()
    waited = [n for name, n in lms.stats().items() if name.startswith("lms.waited.")]
    assert min(waited) >= 0 and (max(waited) == 0 or seed % 2 == 1)
    assert lms.stats()["lms.paged_out"] > 10


@pytest.mark.parametrize("seed", seeds(1, 12))
@pytest.mark.parametrize("mode", MODES)
def test_the_first_enable_in_a_random_program(program: Any, mode: str, seed: int) -> None:
    """Aliases by DLPack were made before it."""
    out = program(
        f"""
        import torch
        from lms_random import Program
        total = torch.cuda.get_device_properties(0).total_memory
        limit = lambda size: torch.cuda.set_per_process_memory_fraction(min(1.0, size / total))
        program = Program({seed}, limit, on=False)
        program.run(100)
        program.drop_graph()
        print("equal")
        """,
        memory=LARGE,
        mode="lazy" if mode == "chaos" else mode,
        env={"LMS_DEBUG": "chaos"} if mode == "chaos" else None,
    )
    assert "equal" in out
