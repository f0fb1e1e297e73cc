# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import mmap
import signal
from typing import Any

import pytest
from conftest import MIB, Run

import simcuda

pytestmark = pytest.mark.engine
device = simcuda.device


def test_out_of_memory_at_capacity(torch: Any) -> None:
    kept = [torch.empty(32 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    assert device.used == device.peak == device.capacity == 256 * MIB
    assert torch.cuda.mem_get_info() == (0, 256 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=r"capacity of 256\.00 MiB|256\.00 MiB total"):
        torch.empty(1, device="cuda")
    del kept[0]
    torch.empty(1, device="cuda")
    assert device.counters()["malloc_failed"] >= 1


def test_capacity_may_be_cut_below_what_is_used(torch: Any) -> None:
    kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    device.capacity = 32 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    assert device.used == kept.nbytes


def test_memory_is_charged_in_granules(torch: Any) -> None:
    runtime = simcuda.device._runtime
    assert runtime is not None
    pointers = [ctypes.c_void_p(), ctypes.c_void_p()]
    runtime.cudaMalloc(ctypes.byref(pointers[0]), ctypes.c_size_t(1))
    assert device.used == 512
    runtime.cudaMalloc(ctypes.byref(pointers[1]), ctypes.c_size_t(MIB))
    assert device.used == 512 + 2 * MIB
    for pointer in pointers:
        assert runtime.cudaFree(pointer) == 0
    assert device.used == 0
    assert runtime.cudaFree(pointers[0]) == runtime.cudaGetLastError() != 0  # twice


def test_fresh_memory_is_poisoned(torch: Any) -> None:
    assert torch.empty(1000, device="cuda").isnan().all()


def test_devices_have_memory_of_their_own(torch: Any) -> None:
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:1")
    assert (device.used, device[1].used) == (0, 64 * MIB)


def test_host_memory_limit(torch: Any) -> None:
    device.set_host_capacity(8 * MIB)
    kept = torch.empty(8 * MIB, dtype=torch.uint8, pin_memory=True)
    assert device.host_used == 8 * MIB
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(1, pin_memory=True)
    del kept


def test_registered_host_memory(torch: Any) -> None:
    """It counts as pinned, once; a copy takes one registration, a kernel goes on to the next."""
    runtime = device._runtime
    assert runtime is not None
    memory = mmap.mmap(-1, 3 * MIB)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first, second = ctypes.c_void_p(begin), ctypes.c_void_p(begin + MIB)
    size = ctypes.c_size_t
    before = device.host_used
    assert runtime.cudaHostRegister(first, size(MIB), 0) == 0
    assert runtime.cudaHostRegister(second, size(MIB), 0) == 0
    assert device.host_used == before + 2 * MIB
    for offset, bytes_ in ((0, MIB), (4096, 4096), (MIB + 4096, 2 * MIB)):
        at = ctypes.c_void_p(begin + offset)
        assert runtime.cudaHostRegister(at, size(bytes_), 0) == 712  # registered already
    assert runtime.cudaGetLastError() == 712

    x = torch.arange(2 * MIB // 4, dtype=torch.int32, device="cuda")
    to, kind = ctypes.c_void_p(x.data_ptr()), 2
    assert runtime.cudaMemcpy(first, to, size(2 * MIB), kind) == 1  # invalid value
    assert runtime.cudaGetLastError() == 1
    assert runtime.cudaMemcpy(first, to, size(MIB), kind) == 0
    half = ctypes.c_void_p(x.data_ptr() + MIB)
    assert runtime.cudaMemcpy(second, half, size(MIB), kind) == 0
    assert memory[: 2 * MIB] == x.cpu().numpy().tobytes()
    addressable = runtime.__getattr__("simcuda_addressable")
    assert addressable(first, size(2 * MIB)) == 2
    assert addressable(first, size(2 * MIB + 1)) == 0

    assert runtime.cudaHostUnregister(first) == 0
    assert runtime.cudaHostUnregister(second) == 0
    assert runtime.cudaHostUnregister(second) == 713
    assert device.host_used == before
    device.fail_next_host_allocs(1)
    assert runtime.cudaHostRegister(first, size(MIB), 0) == 2
    device.set_host_capacity(before + MIB)
    assert runtime.cudaHostRegister(first, size(2 * MIB), 0) == 2
    assert runtime.cudaHostRegister(first, size(MIB), 0) == 0
    assert runtime.cudaHostUnregister(first) == 0
    assert runtime.cudaGetLastError() == 2


FREED = """
    import ctypes, torch
    x = torch.ones(1 << 20, device="cuda")
    pointer = x.data_ptr()
    assert ctypes.c_float.from_address(pointer).value == 1
    del x
    torch.cuda.empty_cache()
    filler = [bytearray(1 << 20) for _ in range(50)]  # must not land where the device memory was
    print("freed", flush=True)
    ctypes.c_float.from_address(pointer).value
"""


@pytest.mark.parametrize("expandable", [False, True])
def test_freed_memory_faults(run: Run, expandable: bool) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if expandable else {}
    done = run(FREED, env=env)
    assert done.stdout == "freed\n", done.stderr
    assert done.returncode == -signal.SIGSEGV


def test_expandable_segments(run: Run) -> None:
    done = run(
        """
        import simcuda, torch
        a = [torch.full((1 << 20,), float(i), device="cuda") for i in range(12)]
        assert all(bool((t == i).all()) for i, t in enumerate(a))
        assert 48 << 20 <= simcuda.device.used <= 64 << 20, simcuda.device.used
        try:
            a += [torch.empty(1 << 20, device="cuda") for _ in range(12)]
        except torch.OutOfMemoryError:
            print("out of memory")
        del a
        torch.cuda.empty_cache()
        print(simcuda.device.used)
        """,
        "--memory",
        "64M",
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )
    assert done.stdout == "out of memory\n0\n", done.stderr


def test_illegal_access_is_refused_by_name(torch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(4, device="cuda")
    host = torch.ones(4)
    wrong = torch._C._construct_storage_from_data_pointer(host.data_ptr(), x.device, 16)
    bad = torch.empty(0, device="cuda").set_(wrong, 0, (4,))
    with pytest.raises(RuntimeError, match="illegal memory access by aten::add"):
        bad + x
    assert "REFUSED an illegal memory access by aten::add" in capfd.readouterr().err


def test_a_storage_may_point_at_pinned_host_memory(torch: Any, mode: str) -> None:
    host = torch.arange(4.0).pin_memory()
    storage = torch._C._construct_storage_from_data_pointer(
        host.data_ptr(), torch.device("cuda:0"), 16
    )
    mapped = torch.empty(0, device="cuda").set_(storage, 0, (4,))
    before = device.counters()["mapped_accesses"]
    assert torch.equal((mapped * 2).cpu(), torch.arange(4.0) * 2)
    mapped.add_(1)
    mapped[1] = 7
    assert torch.equal(mapped.cpu(), torch.tensor([1.0, 7.0, 3.0, 4.0]))
    torch.cuda.synchronize()
    assert torch.equal(host, torch.tensor([1.0, 7.0, 3.0, 4.0]))
    assert device.counters()["mapped_accesses"] > before


def test_what_is_only_read_stays_copy_on_write(torch: Any, mode: str) -> None:
    x = torch.arange(6.0).cuda()
    lazy = x._lazy_clone()
    cow = torch._C._is_cow_tensor
    assert cow(x) and cow(lazy)
    torch.cat([lazy + x, lazy.view(2, 3).t().contiguous().flatten(), lazy[2:4]])
    lazy.cpu(), lazy.sum().item(), lazy.clone(), torch._foreach_add([lazy], 1), repr(lazy)
    torch.nn.functional.layer_norm(lazy, (6,))
    assert cow(x) and cow(lazy)
    lazy.add_(1)
    assert not cow(lazy)
    assert torch.equal(x.cpu(), torch.arange(6.0))
    assert torch.equal(lazy.cpu(), torch.arange(6.0) + 1)


def test_what_is_written_without_a_word_in_the_schema_is_no_longer_shared(torch: Any) -> None:
    mean = torch.zeros(3, device="cuda")
    shared = mean._lazy_clone()
    x = torch.randn(4, 3).cuda()
    var = torch.ones(3, device="cuda")
    torch.nn.functional.batch_norm(x, shared, var, training=True)
    assert torch.equal(mean.cpu(), torch.zeros(3))
    assert not torch.equal(shared.cpu(), torch.zeros(3))


def test_what_is_written_without_a_word_is_as_it_was_where_the_results_find_no_room(
    torch: Any, mode: str
) -> None:
    """As on a GPU, whose kernel runs when its results have memory."""
    mean, var = torch.zeros(1 << 19, device="cuda"), torch.ones(1 << 19, device="cuda")
    x = torch.full((4, 1 << 19), 2.0, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    device.capacity = device.used
    filling = []
    with pytest.raises(torch.cuda.OutOfMemoryError):
        while True:
            filling.append(torch.empty(1 << 17, device="cuda"))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.nn.functional.batch_norm(x, mean, var, training=True)
    assert torch.equal(mean.cpu(), torch.zeros(1 << 19))
    assert torch.equal(var.cpu(), torch.ones(1 << 19))


def test_a_pointer_that_throws_surfaces(torch: Any) -> None:
    x = torch.ones(4, device="cuda")
    good = torch.ones(4, device="cuda")
    torch._C._set_throw_on_mutable_data_ptr(x)
    assert torch.equal((x + good).cpu(), torch.full((4,), 2.0))
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        x.add_(1)
    assert torch.equal((good + 1).cpu(), torch.full((4,), 2.0))  # the stream is free again


def test_peak_can_be_reset(torch: Any) -> None:
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    assert (device.used, device.peak) == (0, 64 * MIB)
    device.reset_peak()
    assert device.peak == 0
