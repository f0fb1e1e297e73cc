# SPDX-License-Identifier: Apache-2.0
"""Counters, faults, strictness."""

from __future__ import annotations

import ctypes
import signal
from typing import Any

import pytest
from conftest import MIB, Run

import simcuda

pytestmark = pytest.mark.engine
device = simcuda.device


def counted(**expected: int) -> bool:
    counters = device.counters()
    return {k: counters[k] for k in expected} == expected


def test_copies_are_counted_by_direction_and_kind_of_host_memory(torch: Any, mode: str) -> None:
    pageable, pinned = torch.zeros(MIB), torch.zeros(MIB).pin_memory()
    size = pageable.nbytes
    device.reset_counters()
    x, y = pageable.cuda(), pinned.cuda(non_blocking=True)
    assert counted(h2d=2, h2d_bytes=2 * size, h2d_pinned_bytes=size, h2d_pageable_bytes=size)
    x.cpu()
    pinned.copy_(y, non_blocking=True)
    assert counted(d2h=2, d2h_bytes=2 * size, d2h_pinned_bytes=size, d2h_pageable_bytes=size)
    x.clone()
    assert counted(d2d=1, d2d_bytes=size, h2d=2, d2h=2, ops=0)
    x.add_(y)
    assert counted(ops=1, d2d=1)
    device.reset_counters()
    assert not any(device.counters().values())


def test_copies_are_counted_by_stream(torch: Any) -> None:
    host, side = torch.zeros(1000).pin_memory(), torch.cuda.Stream()
    x = host.cuda()
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)
    default = torch.cuda.default_stream().cuda_stream
    assert device.stream_copies(default)["h2d_bytes"] == 4000
    copies = device.stream_copies(side.cuda_stream)
    assert (copies["h2d"], copies["d2h"], copies["d2h_bytes"]) == (0, 1, 4000)


def test_allocations_and_syncs_are_counted(torch: Any) -> None:
    torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    assert counted(malloc=1, free=1)
    before = device.counters()
    torch.cuda.synchronize()
    torch.cuda.current_stream().synchronize()
    after = device.counters()
    assert after["device_syncs"] == before["device_syncs"] + 1
    assert after["stream_syncs"] == before["stream_syncs"] + 1


def test_failed_malloc_is_retried_by_torch(torch: Any) -> None:
    torch.cuda.reset_peak_memory_stats()
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    device.fail_next_mallocs(1)
    torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries + 1
    device.fail_next_mallocs(2)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")


def test_failed_malloc_after_some(torch: Any) -> None:
    torch.cuda.empty_cache()
    device.fail_next_mallocs(2, skip=1)
    torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")


def test_failed_host_alloc(torch: Any) -> None:
    device.fail_next_host_allocs(1)
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(MIB, pin_memory=True)
    torch.empty(MIB, pin_memory=True)


def test_failed_stream(torch: Any) -> None:
    device.fail_next_streams(1)
    stream, runtime = ctypes.c_void_p(), device._runtime
    assert runtime is not None
    assert runtime.cudaStreamCreate(ctypes.byref(stream)) == 2  # out of memory
    assert runtime.cudaGetLastError() == 2
    assert runtime.cudaStreamCreate(ctypes.byref(stream)) == 0
    assert runtime.cudaStreamDestroy(stream) == 0


def test_failed_copy(torch: Any) -> None:
    x = torch.ones(4)
    device.fail_next_copies(1)
    with pytest.raises(RuntimeError, match="CUDA error: unknown error"):
        x.cuda()
    assert torch.equal(x.cuda().cpu(), x)


def test_kernel_launch_is_refused_by_name(torch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    runtime = device._runtime
    assert runtime is not None
    host = ctypes.create_string_buffer(1)
    name = ctypes.c_char_p(b"_ZN4mine10add_kernelEPfi")
    runtime.__getattr__("__cudaRegisterFunction")(None, host, None, name, -1, *[None] * 5)

    class Dim3(ctypes.Structure):
        _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))

    one = Dim3(1, 1, 1)
    assert runtime.cudaLaunchKernel(host, one, one, None, ctypes.c_size_t(0), None) == 98
    with pytest.raises(RuntimeError, match=r"device refuses: kernel launch mine::add_kernel"):
        torch.cuda.check_error(98)
    assert runtime.cudaGetLastError() == 98
    assert "simcuda: REFUSED kernel launch mine::add_kernel" in capfd.readouterr().err
    assert counted(refused_launches=1)


def test_operator_without_cpu_kernel_is_refused_by_name(torch: Any) -> None:
    x = torch.ones(2, 3, 4).cuda()
    with pytest.raises(NotImplementedError, match="aten::cudnn_grid_sampler"):
        torch.cudnn_grid_sampler(x, x)


def new_stream(runtime: Any) -> ctypes.c_void_p:
    stream, non_blocking = ctypes.c_void_p(), 1
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), non_blocking) == 0
    return stream


def test_a_destroyed_stream_is_refused(torch: Any) -> None:
    runtime, event, target = device._runtime, ctypes.c_void_p(), torch.zeros(4, device="cuda")
    stream = new_stream(runtime)
    external = torch.cuda.ExternalStream(stream.value)
    assert runtime.cudaEventCreate(ctypes.byref(event)) == 0
    assert runtime.cudaStreamDestroy(stream) == 0
    pointer, size = ctypes.c_void_p(target.data_ptr()), ctypes.c_size_t(4)
    for error in (
        runtime.cudaStreamDestroy(stream),
        runtime.cudaStreamQuery(stream),
        runtime.cudaStreamSynchronize(stream),
        runtime.cudaStreamWaitEvent(stream, event, 0),
        runtime.cudaEventRecord(event, stream),
        runtime.cudaMemsetAsync(pointer, 1, size, stream),
        runtime.cudaMemcpyAsync(pointer, pointer, size, 3, stream),
        runtime.cudaStreamIsCapturing(stream, ctypes.byref(ctypes.c_int())),
    ):
        assert error == 400  # cudaErrorInvalidResourceHandle
    runtime.cudaGetLastError()
    with (
        torch.cuda.stream(external),
        pytest.raises(RuntimeError, match="invalid resource handle"),
    ):
        target.add_(1)
    runtime.cudaEventDestroy(event)
    assert target.tolist() == [0] * 4


def test_what_a_destroyed_stream_was_given_runs(torch: Any) -> None:
    """Later: destroying one waits for nothing."""
    device.set_mode("lazy", lag=2)
    stream = new_stream(device._runtime)
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.value)):
        x.copy_(torch.ones(4).pin_memory(), non_blocking=True)
        done = torch.cuda.Event()
        done.record()
    assert device._runtime.cudaStreamDestroy(stream) == 0
    assert not done.query()
    done.synchronize()
    assert x.tolist() == [1] * 4


def test_an_event_of_another_device_is_refused(torch: Any) -> None:
    """On a stream to be recorded; to be waited for it may be any device's."""
    streams = [torch.cuda.Stream(f"cuda:{index}") for index in range(2)]
    for mine, other in ((0, 1), (1, 0)):
        event = torch.cuda.Event()
        event.record(streams[mine])  # made on the device of the stream that records it first
        with pytest.raises((RuntimeError, ValueError), match=r"(?i)device|resource handle"):
            event.record(streams[other])
        handle, stream = ctypes.c_void_p(event.cuda_event), streams[other].cuda_stream
        assert device._runtime.cudaEventRecord(handle, ctypes.c_void_p(stream)) == 400
        device._runtime.cudaGetLastError()
        streams[other].wait_event(event)


def test_call_without_simulation_is_refused_by_name(
    torch: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    runtime = device._runtime
    assert runtime is not None
    assert runtime.cudaGraphCreate(None, 0) == runtime.cuModuleLoadData(None, None) == 801
    assert runtime.cudaGetLastError() == 801
    err = capfd.readouterr().err
    assert "REFUSED call of cudaGraphCreate" in err and "REFUSED call of cuModuleLoadData" in err
    assert counted(unsupported_calls=2)


def test_stand_in_library_is_refused_by_name(torch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    major = torch.version.cuda.split(".")[0]
    assert ctypes.CDLL(f"libcublas.so.{major}").cublasCreate_v2(None) == 15
    assert "REFUSED call of cublasCreate_v2" in capfd.readouterr().err


@pytest.mark.slow
def test_abort(run: Run) -> None:
    code = "import simcuda, torch\nsimcuda.device._runtime.cudaGraphCreate(None, 0)"
    done = run(code, "--strict", "abort")
    assert done.returncode == -signal.SIGABRT
    assert "REFUSED call of cudaGraphCreate" in done.stderr
