# SPDX-License-Identifier: Apache-2.0
"""Ordering: correct programs pass in every mode, and each kind of missing wait shows in one."""

from __future__ import annotations

from typing import Any

import pytest

import simcuda

pytestmark = pytest.mark.engine
N = 1 << 20


def swap_out(torch: Any, record_stream: bool) -> bool:
    """Copy a tensor out on a side stream and free it; its block is used again at once."""
    x = torch.arange(float(N)).cuda()
    torch.cuda.synchronize()
    host, side, current = (
        torch.empty(N).pin_memory(),
        torch.cuda.Stream(),
        torch.cuda.current_stream(),
    )
    side.wait_stream(current)
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)
    if record_stream:
        x.record_stream(side)
    pointer = x.data_ptr()
    del x
    y = torch.full((N,), -1.0, device="cuda")
    assert record_stream or y.data_ptr() == pointer
    side.synchronize()
    return bool(torch.equal(host, torch.arange(float(N))))


def swap_in(torch: Any, wait: bool) -> bool:
    """Copy a tensor in on a side stream and use it on the current one."""
    z = torch.empty(N, device="cuda")
    source, side = (torch.arange(float(N)) + 7).pin_memory(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        z.copy_(source, non_blocking=True)
    if wait:
        torch.cuda.current_stream().wait_stream(side)
    return bool(torch.equal((z * 1.0).cpu(), source))


def two_streams(torch: Any, wait: bool) -> bool:
    """Compute on one stream what another goes on with."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.arange(float(N)).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        y = x * 2
    if wait:
        second.wait_stream(first)
    with torch.cuda.stream(second):
        z = y + 1
    second.synchronize()
    return bool(torch.equal(z.cpu(), torch.arange(float(N)) * 2 + 1))


def overwrite(torch: Any, wait: bool) -> bool:
    """Copy into a tensor on a side stream while the current one may still have to write it."""
    x, side = torch.zeros(N, device="cuda"), torch.cuda.Stream()
    source = torch.ones(N).pin_memory()
    late = torch.full((N,), 5.0).pin_memory()
    torch.cuda.synchronize()
    x.copy_(late, non_blocking=True)
    if wait:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return bool(torch.equal(x.cpu(), torch.ones(N)))


def read_back(torch: Any, wait: bool) -> bool:
    """Copy out on a side stream what the current one has just computed."""
    x, side, host = torch.arange(float(N)).cuda(), torch.cuda.Stream(), torch.empty(N).pin_memory()
    torch.cuda.synchronize()
    y = x * 3
    if wait:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(y, non_blocking=True)
    side.synchronize()
    return bool(torch.equal(host, torch.arange(float(N)) * 3))


# What shows each missing wait. Immediate runs in program order and shows none.
PROGRAMS = {
    swap_out: {"lazy"},
    swap_in: {"lazy", "late-write"},
    two_streams: {"late-write"},
    overwrite: {"eager-copy"},
    read_back: {"late-write"},
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_correct_program_passes(torch: Any, mode: str, program: Any) -> None:
    assert program(torch, True)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_missing_wait_shows(torch: Any, mode: str, program: Any) -> None:
    assert program(torch, False) == (mode not in PROGRAMS[program])
    assert simcuda.device.races(), "the order checker sees it in every mode"
    simcuda.device.clear_races()


def test_queries_lag(torch: Any) -> None:
    simcuda.device.set_mode("lazy", lag=2)
    host, event = torch.empty(4).pin_memory(), torch.cuda.Event()
    host.copy_(torch.ones(4).cuda(), non_blocking=True)
    event.record()
    assert [event.query() for _ in range(4)] == [False, False, True, True]
    host.copy_(torch.ones(4).cuda(), non_blocking=True)
    stream = torch.cuda.current_stream()
    assert [stream.query() for _ in range(3)] == [False, False, True]
    assert simcuda.device.pending == 0


def test_sleeping_takes_its_time_on_its_stream(torch: Any, mode: str) -> None:
    side = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(side):
        start.record()
        torch.cuda._sleep(20_000_000)
        end.record()
    assert end.query() == (mode in ("immediate", "eager-copy"))
    end.synchronize()
    assert start.elapsed_time(end) >= 20


def test_streams_run_in_order_and_events_take_time(torch: Any) -> None:
    simcuda.device.set_mode("lazy")
    simcuda.device.set_bandwidth(100e6)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    host = torch.ones(N).pin_memory()
    target = torch.empty(N, device="cuda")
    start.record()
    target.copy_(host, non_blocking=True)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 4 * N / 100e6 * 1e3


def test_blocking_streams_wait_for_the_default_one(torch: Any) -> None:
    """The legacy default stream: torch's own streams are non-blocking, others need not be."""
    import ctypes

    simcuda.device.set_mode("lazy")
    runtime = simcuda.device._runtime
    assert runtime is not None
    x, host = torch.zeros(4, device="cuda"), torch.ones(4).pin_memory()
    handle = ctypes.c_void_p()
    runtime.cudaStreamCreate(ctypes.byref(handle))
    x.copy_(host, non_blocking=True)  # on the default stream
    back = torch.zeros(4).pin_memory()
    args = [ctypes.c_void_p(back.data_ptr()), ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(16), 4]
    runtime.cudaMemcpyAsync(*args, handle)
    runtime.cudaStreamSynchronize(handle)
    runtime.cudaStreamDestroy(handle)
    assert torch.equal(back, torch.ones(4))
