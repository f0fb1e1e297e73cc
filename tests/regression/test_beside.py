# SPDX-License-Identifier: Apache-2.0
"""Beside what a program had before, and what it does with the allocator itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB
from lms_tensors import block


def test_tensors_made_before_the_first_enable(program: Any) -> None:
    """They move, are freed, wait for the streams they were recorded on, and grow under pressure."""
    out = program(
        """
        import torch
        side = torch.cuda.Stream()
        kept = [torch.full((1 << 19,), float(i), device="cuda") for i in range(10)]  # 20 MiB
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            doubled = kept[0] * 2
        kept[0].record_stream(side)
        torch.cuda.lms.enable(min_size=0)
        kept[1].record_stream(side)
        with torch.cuda.stream(side):
            tripled = kept[1] * 3
        kept += [torch.full((1 << 19,), float(i), device="cuda") for i in range(10, 20)]
        assert torch.cuda.lms.stats()["lms.paged_out"] > 0
        assert all((x == i).all().item() for i, x in enumerate(kept))
        assert all(torch.ops.lms.evict(x) or torch.ops.lms.on_host(x) for x in kept[:10])
        kept[2].resize_(1 << 20)  # by the allocator the storage was made with
        assert (kept[2][: 1 << 19] == 2).all().item()
        torch.cuda.synchronize()
        assert (doubled == 0).all().item() and (tripled == 3).all().item()
        before = torch.cuda.memory_allocated()
        kept[3] + 1
        kept[3] = None
        assert torch.cuda.memory_allocated() <= before
        kept.clear()
        del doubled, tripled
        torch.cuda.lms.disable()
        assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
        print("fine")
        """,
        memory=48 * MIB,
        mode="lazy",
    )
    assert "fine" in out


def test_it_is_loaded_beside_a_thread_that_allocates(program: Any, sim: Any) -> None:
    """That has the allocator's lock, and wants the loader's: what its first allocation makes of a
    thread's own."""
    out = program(
        """
        import threading, time
        import simcuda, torch
        cached = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
        source, target = torch.ones(1 << 18).pin_memory(), torch.zeros(1 << 18, device="cuda")
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        simcuda.device.set_bandwidth(source.numel() * 4)  # the copy takes a second
        with torch.cuda.stream(side):
            target.copy_(source, non_blocking=True)
        cached.record_stream(side)
        del cached
        made = []

        def allocate():  # waits for the copy, under the allocator's lock
            made.append(torch.empty(50 << 20, dtype=torch.uint8, device="cuda"))

        thread = threading.Thread(target=allocate)
        thread.start()
        time.sleep(0.3)
        assert not made, "it did not wait"
        torch.cuda.lms.enable(min_size=0)
        thread.join()
        simcuda.device.set_bandwidth(0)
        assert made and target.sum().item() == 1 << 18
        print("loaded")
        """,
        memory=64 * MIB,
        mode="lazy",
        fresh=True,
        timeout=60,
    )
    assert "loaded" in out


def test_out_of_memory_observers_see_what_the_user_sees(program: Any) -> None:
    out = program(
        """
        import simcuda, torch
        seen = []
        torch.cuda.init()
        torch.cuda.lms.enable(min_size=0)
        torch._C._cuda_attach_out_of_memory_observer(lambda *a: seen.append(a))
        simcuda.device.fail_next_mallocs(2)  # another process was quicker, and than a retry, too
        kept = [torch.full((1 << 19,), float(i), device="cuda") for i in range(30)]
        assert not seen and torch.cuda.memory_stats()["num_ooms"] == 0
        try:
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            print("seen", len(seen), torch.cuda.memory_stats()["num_ooms"])
        """,
        memory=32 * MIB,
    )
    assert "seen 1 1" in out


def test_recorded_history(lms: Any, device: Any) -> None:
    """The recorder of stacks runs Python, and must not under the engine's lock."""
    device.limit(40 * MIB)
    torch.cuda.memory._record_memory_history(max_entries=10000, stacks="python")
    try:
        kept = [block(2, i) for i in range(30)]
        traces = torch.cuda.memory._snapshot()["device_traces"][0]
        assert any(entry["frames"] for entry in traces if entry["action"] == "alloc")
        assert all((t == i).all().item() for i, t in enumerate(kept))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


@pytest.mark.skipif(not hasattr(torch.cuda, "MemPool"), reason="this PyTorch has no MemPool")
def test_blocks_of_the_users_own_pool_stay(lms: Any, device: Any) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        mine = block(4, 7)
    other = block(4, 8)
    assert not torch.ops.lms.evict(mine)
    assert torch.ops.lms.evict(other)
    assert (mine == 7).all().item() and (other == 8).all().item()
    del mine
    torch.cuda.synchronize()
    del pool


@pytest.mark.skipif(not hasattr(torch.cuda, "MemPool"), reason="this PyTorch has no MemPool")
def test_a_shortage_while_a_memory_pool_is_used(program: Any) -> None:
    """Nothing moves then, and the allocator refuses to give segments back: once it has waited in
    vain for the pool's end it is a shortage like any other, and over with the pool."""
    out = program(
        """
        import threading, torch
        torch.cuda.lms.enable(min_size=0)
        kept = [torch.full((10 << 18,), float(i), device="cuda") for i in range(4)]
        said = []

        def work():
            try:
                said.append(torch.cat(kept[:2]).sum().item() == 10 << 18)
            except torch.OutOfMemoryError as error:
                said.append("cannot move while a torch.cuda.MemPool is in use" in str(error))

        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert torch.cuda.lms.stats()["lms.paged_out"] == 0
        work()
        assert torch.cuda.lms.stats()["lms.paged_out"] > 0
        print(*said)
        """,
        memory=48 * MIB,
    )
    assert "True True" in out


PLUGGABLE = """
    import ctypes, subprocess, sys, torch
    source = r'''
    #include <stddef.h>
    int cudaMalloc(void **, size_t); int cudaFree(void *);
    void *mine(ptrdiff_t size, int device, void *stream) {
      void *p = 0; cudaMalloc(&p, size); return p;
    }
    void not_mine(void *p, ptrdiff_t size, int device, void *stream) { cudaFree(p); }
    '''
    library = sys.argv[1]
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-xc", "-", "-o", library],
                   input=source, text=True, check=True)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "mine", "not_mine")
"""


def test_a_pluggable_allocator_is_refused(program: Any, tmp_path: Path) -> None:
    """It has no blocks to look at: nothing would ever move."""
    out = program(
        PLUGGABLE
        + """
    torch.cuda.memory.change_current_allocator(allocator)
    torch.cuda.init()
    try:
        torch.cuda.lms.enable()
    except RuntimeError as error:
        print(error)
    assert not torch.cuda.lms.is_enabled()
    x = torch.full((1 << 18,), 3.0, device="cuda")
    print("works", (x == 3).all().item())
        """,
        str(tmp_path / "mine.so"),
    )
    assert "Large Model Support cannot be enabled: the allocator in use is not PyTorch's" in out
    assert "or the pluggable allocator" in out and "works True" in out


@pytest.mark.skipif(not hasattr(torch.cuda, "MemPool"), reason="this PyTorch has no MemPool")
def test_a_pool_with_a_pluggable_allocator_stays(program: Any, tmp_path: Path) -> None:
    """Its blocks came from somewhere else, and go back there."""
    out = program(
        PLUGGABLE
        + """
    torch.cuda.lms.enable(min_size=0)
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        mine = torch.full((1 << 20,), 7.0, device="cuda")
    kept = [torch.full((1 << 20,), float(i), device="cuda") for i in range(20)]  # 80 MiB
    torch.cuda.lms.reclaim()
    assert not torch.ops.lms.on_host(mine) and torch.ops.lms.on_host(kept[0])
    assert (mine == 7).all().item() and all((t == i).all().item() for i, t in enumerate(kept))
    del mine, pool
    torch.cuda.synchronize()
    print("stays")
        """,
        str(tmp_path / "mine.so"),
        memory=48 * MIB,
    )
    assert "stays" in out


def test_the_device_refuses_nothing(lms: Any, device: Any, sim: Any) -> None:
    """Beside the plug-in: it asks first how much is free. Some releases warn of a refusal."""
    if not lms_device.is_plugin():
        pytest.skip("the patched allocator tries, and nothing is said of it")
    for capacity in (34, 42, 44, 46, 50):
        lms_device.reset()
        device.limit(capacity * MIB)
        lms.enable(min_size=0)
        rows = [block(size) for size in (3, 7, 5, 2, 6)]
        for i in range(6):
            order = torch.sort(rows[i % 5])
            rows[i % 5] = order.values + order.indices.float().mean()
        assert lms.stats()["lms.paged_out"] > 0 and device.counters()["malloc_failed"] == 0
        del rows, order
