# SPDX-License-Identifier: Apache-2.0
"""Waits of the engine that no mode of the device shows to be missing: its order checker does.

Each test puts two streams on one piece of memory, so that only the wait in question orders them.
"""

from __future__ import annotations

from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB
from lms_extension import set_bytes

MODES = lms_device.device.modes
N = MIB // 4


@pytest.fixture(params=MODES)
def mode(request: Any, lms: Any, device: Any) -> str:
    device.mode(request.param)
    return str(request.param)


def ramp(start: float) -> torch.Tensor:
    return torch.arange(N, dtype=torch.float32) + start


def evict(tensor: torch.Tensor) -> None:
    assert torch.ops.lms.evict(tensor)


def test_a_host_range_is_used_again_after_the_copy_in(mode: str, device: Any) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        x = ramp(1).cuda()
    with torch.cuda.stream(second):
        y = ramp(1000).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        evict(x)
        x.add_(1)  # comes in; its range is free once it is
    with torch.cuda.stream(second):
        evict(y)  # may take that range
    torch.cuda.synchronize()
    assert torch.equal(x.cpu(), ramp(2))
    assert torch.equal(y.cpu(), ramp(1000))
    assert device.races() == []


def test_a_range_goes_on_in_the_next_segment(mode: str, lms: Any, device: Any) -> None:
    """Its copies, out, in and out of order, do not: CUDA refuses that."""
    torch.ops.lms.trim_host()
    kept = [(torch.arange(30 * N, dtype=torch.float32) + i).cuda() for i in range(5)]
    assert lms.reclaim() >= 150 * MIB
    for i in (4, 2, 0, 1, 3):
        kept[i].add_(1)
    lms.reclaim()
    kept[2].zero_()
    for i, x in enumerate(kept):
        want = torch.zeros(30 * N) if i == 2 else torch.arange(30 * N, dtype=torch.float32) + i + 1
        assert torch.equal(x.cpu(), want)
    assert device.races() == []


def test_a_host_range_that_dies_while_it_is_written_is_kept(mode: str, device: Any) -> None:
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    evict(x)
    with torch.cuda.stream(side):  # has nothing to do with the copy
        del x
    torch.ops.lms.trim_host()  # gives back what is free
    torch.cuda.synchronize()
    assert device.races() == []


def test_a_host_range_that_dies_while_a_kernel_uses_it_is_kept(
    mode: str, device: Any, extension: Any
) -> None:
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    with torch.cuda.stream(side):
        y = ramp(1000).cuda()
    torch.cuda.synchronize()
    evict(x)
    assert extension.fill(x, 9) == ""  # in host memory
    del x
    with torch.cuda.stream(side):
        evict(y)  # may take the range
    torch.cuda.synchronize()
    assert torch.equal(y.cpu(), ramp(1000))
    assert device.races() == []


def test_what_evicts_waits_before_it_uses_the_host_buffer(
    mode: str, device: Any, extension: Any
) -> None:
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):  # not the stream that it was made on
        evict(x)
        assert extension.fill(x, 9) == ""
        x.view(torch.uint8).add_(1)
    torch.cuda.synchronize()
    assert bytes(x.cpu().view(torch.uint8).tolist()) == b"\n" * x.nbytes
    assert device.races() == []


def test_a_block_is_reused_after_its_bytes_were_put_back(mode: str, sim: Any) -> None:
    sim.set_queries("strict")  # to ask whether host memory is free must order nothing
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    torch.cuda.synchronize()
    evict(x)
    with torch.cuda.stream(side), pytest.raises(RuntimeError):  # not its home
        x.copy_(torch.zeros(3, 2, device="cuda"))
    del x  # goes back to its home, where y takes its block
    y = torch.full((N,), 5.0, device="cuda")
    torch.cuda.synchronize()
    assert (y.cpu() == 5).all()
    assert sim.races() == []


def test_a_stream_that_the_allocator_alone_knows_is_waited_for(
    mode: str, device: Any, extension: Any
) -> None:
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    torch.cuda.synchronize()
    pointer, error = extension.pointer(x)
    assert error == ""
    assert extension.record(x, side) == ""
    with torch.cuda.stream(side):
        set_bytes(pointer, 9, x.nbytes)
    evict(x)
    torch.cuda.synchronize()
    assert bytes(x.cpu().view(torch.uint8).tolist()) == b"\t" * x.nbytes
    assert device.races() == []


def test_a_missing_wait_fails_a_program(sim: Any, program: Any) -> None:
    """The checker is on in the processes that tests start, too."""
    with pytest.raises(AssertionError, match="simcuda: RACE"):
        program(
            """
            import torch
            x = torch.ones(4, device="cuda")
            with torch.cuda.stream(torch.cuda.Stream()):
                x.add_(1)
            """
        )
