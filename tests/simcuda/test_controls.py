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


def test_abort(run: Run) -> None:
    code = "import simcuda, torch\nsimcuda.device._runtime.cudaGraphCreate(None, 0)"
    done = run(code, "--strict", "abort")
    assert done.returncode == -signal.SIGABRT
    assert "REFUSED call of cudaGraphCreate" in done.stderr
