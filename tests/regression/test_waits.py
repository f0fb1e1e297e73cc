# SPDX-License-Identifier: Apache-2.0
"""Waits of the engine that no mode of the device shows to be missing: its order checker does.

Each test puts two streams on one piece of memory, so that only the wait in question orders them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB
from lms_extension import copy_bytes, set_bytes
from lms_tensors import evict, page_in, ramp

MODES = lms_device.device.modes
N = MIB // 4


@pytest.fixture(params=MODES)
def mode(request: Any, lms: Any, device: Any) -> str:
    device.mode(request.param)
    return str(request.param)


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


def test_a_host_range_that_dies_while_it_is_read_is_kept(mode: str, device: Any) -> None:
    """Its storage has left again without a copy, and dies on a stream that knows nothing of its
    page-in."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = ramp(1).cuda()
    y = ramp(1000).cuda()
    evict(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        total = x.sum()  # comes in; its host copy is kept
        evict(x)
    del x
    torch.cuda.current_stream().synchronize()
    evict(y)  # may take the range
    torch.cuda.synchronize()
    assert total.cpu() == ramp(1).sum()
    assert torch.equal(y.cpu(), ramp(1000))
    assert device.races() == []


def test_a_host_range_that_is_not_read_again_is_kept(mode: str, device: Any) -> None:
    """The same, but another stream's operator overwrites the storage, in another block."""
    n, side = 4 * N, torch.cuda.Stream()
    with torch.cuda.stream(side):
        x, between, out, rest = (ramp(i, size).cuda() for i, size in enumerate((n, n, n, 2 * n)))
    y = ramp(1000, n).cuda()
    evict(x)
    evict(out)  # leaves a block that owes nothing of what comes after
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        total = x.sum()
        evict(x)
        there = torch.empty(n, device="cuda")  # in the block that it has left
    x.zero_()
    torch.cuda.current_stream().synchronize()
    evict(y)  # may take the range
    torch.cuda.synchronize()
    assert total.cpu() == ramp(0, n).sum()
    assert torch.equal(y.cpu(), ramp(1000, n))
    assert (x.cpu() == 0).all()
    assert torch.equal(out.cpu(), ramp(2, n))
    assert device.races() == []
    del between, rest, there


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
    assert x.cpu().view(torch.uint8).unique().tolist() == [10]
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
    assert x.cpu().view(torch.uint8).unique().tolist() == [9]
    assert device.races() == []


# ---- by the last uses of what moves


@pytest.fixture
def strict(device: Any) -> None:
    """To ask whether something is over must order nothing."""
    if device.kind != "cuda":
        import simcuda

        simcuda.device.set_queries("strict")


def press(lms: Any, sim: Any) -> None:
    """Something has had to make way."""
    sim.capacity = 24 * MIB
    kept = [large(i) for i in range(6)]
    sim.capacity = lms_device.LARGE
    assert len(kept) == 6 and lms.stats()["lms.paged_out"] > 0
    del kept
    torch.cuda.empty_cache()


@pytest.fixture
def moved(mode: str, strict: None, lms: Any, device: Any) -> str:
    """Uses are followed once something has moved, and beside the plug-in what free memory owes once
    something has had to make way."""
    if device.kind != "cuda" and lms_device.is_plugin():
        import simcuda

        press(lms, simcuda.device)
    evict(ramp(0).cuda())
    return mode


def large(value: float) -> torch.Tensor:
    """Of the allocator's large pool: four of these fill a segment."""
    return torch.full((5 * N,), float(value), device="cuda")


def test_a_page_out_waits_for_the_last_use(moved: str, device: Any) -> None:
    x = ramp(1).cuda()
    x.mul_(2)
    evict(x)
    assert torch.equal(x.cpu(), ramp(1) * 2)
    assert device.races() == []


def test_a_page_in_waits_for_the_last_use_of_its_block(moved: str, device: Any) -> None:
    """Of a storage that left without a copy."""
    x, y = large(1), large(10)
    evict(y)
    evict(x)
    x.sum()  # comes in, and keeps its copy
    torch.cuda.synchronize()
    host = torch.zeros(5 * N).pin_memory()
    host.copy_(x, non_blocking=True)
    evict(x)
    page_in(y)  # where x was
    torch.cuda.synchronize()
    assert (host == 1).all()
    assert (y.cpu() == 10).all()
    assert device.races() == []


def test_a_page_in_waits_for_the_copy_out_of_its_block(moved: str, device: Any) -> None:
    x, y = large(1), large(2)
    evict(y)
    z = large(3)  # where y was
    torch.cuda.synchronize()
    x.mul_(2)
    evict(x)
    page_in(y)  # where x was, or still is
    torch.cuda.synchronize()
    assert (x.cpu() == 2).all()
    assert (y.cpu() == 2).all()
    assert (z.cpu() == 3).all()
    assert device.races() == []


@pytest.fixture
def leaving(moved: str) -> list[torch.Tensor]:
    """One that is being copied out, while another has its block and a larger one owes nothing."""
    x, between = large(1), large(2)
    hole = torch.full((10 * N,), 3.0, device="cuda")
    torch.cuda.synchronize()
    evict(x)
    del hole
    between.add_(1)  # the mark that the hole waits for
    return [x, between, large(4)]


def test_a_page_in_waits_for_its_own_page_out(leaving: list[torch.Tensor], device: Any) -> None:
    x, _, y = leaving
    page_in(x)
    torch.cuda.synchronize()
    assert (x.cpu() == 1).all()
    assert (y.cpu() == 4).all()
    assert device.races() == []


def test_a_range_is_free_after_the_page_out_to_it(leaving: list[torch.Tensor], device: Any) -> None:
    """Also of bytes that are overwritten instead of brought in."""
    side = torch.cuda.Stream()
    x, _, y = leaving
    with torch.cuda.stream(side):
        x.zero_()
    side.synchronize()  # which has nothing else to do with the copy
    torch.ops.lms.trim_host()
    torch.cuda.synchronize()
    assert (x.cpu() == 0).all()
    assert (y.cpu() == 4).all()
    assert device.races() == []


def test_a_block_freed_while_it_comes_in_is_reused_after_that(moved: str, device: Any) -> None:
    """Its home has not waited for what another stream brought in."""
    side = torch.cuda.Stream()
    x = large(1)
    evict(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        page_in(x)
    del x
    y = large(2)
    torch.cuda.synchronize()
    assert (y.cpu() == 2).all()
    assert device.races() == []


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_a_merged_block_owes_what_its_parts_owe(moved: str, device: Any, first: bool) -> None:
    x, y = large(1), large(2)
    if not first:
        x, y = y.fill_(1), x
    torch.cuda.synchronize()
    evict(x)
    del y
    z = torch.full((10 * N,), 3.0, device="cuda")  # where both were
    torch.cuda.synchronize()
    assert (x.cpu() == 1).all()
    assert (z.cpu() == 3).all()
    assert device.races() == []


def test_a_part_of_a_block_owes_what_the_whole_owes(moved: str, device: Any) -> None:
    x = torch.full((10 * N,), 1.0, device="cuda")
    torch.cuda.synchronize()
    evict(x)
    y = large(2)
    torch.cuda.synchronize()
    assert (x.cpu() == 1).all()
    assert (y.cpu() == 2).all()
    assert device.races() == []


def test_a_page_in_waits_for_who_freed_its_block(moved: str, device: Any) -> None:
    """By the next mark of the stream, of a large one."""
    x = large(1)
    evict(x)
    y = large(2)
    torch.cuda.synchronize()
    host = torch.zeros(5 * N).pin_memory()
    host.copy_(y, non_blocking=True)
    del y
    page_in(x)
    torch.cuda.synchronize()
    assert (host == 2).all()
    assert (x.cpu() == 1).all()
    assert device.races() == []


def test_a_mark_asked_for_is_after_all_that_was_queued(moved: str, device: Any) -> None:
    """The one that a free asks for may be set by the next operator."""
    x = large(1)
    evict(x)
    y, z = large(2), large(3)
    torch.cuda.synchronize()
    host = torch.zeros(5 * N).pin_memory()
    host.copy_(y, non_blocking=True)
    del y
    z.add_(1)
    page_in(x)
    torch.cuda.synchronize()
    assert (host == 2).all()
    assert (x.cpu() == 1).all()
    assert device.races() == []


def test_the_home_stream_is_waited_for_whatever_used_it_there(moved: str, device: Any) -> None:
    """Operators have used it elsewhere alone since it came in."""
    side = torch.cuda.Stream()
    x, y = large(1), large(10)
    evict(y)
    evict(x)
    host = torch.zeros(5 * N).pin_memory()
    torch.cuda.synchronize()
    with torch.cuda.stream(side), torch.cuda.lms.pin(x):
        side.synchronize()
        with torch.cuda.stream(torch.cuda.default_stream()):
            copy_bytes(host.data_ptr(), torch._C._TensorBase.data_ptr(x), x.nbytes)
    with torch.cuda.stream(side):
        x.sum()
    evict(x)
    page_in(y)
    torch.cuda.synchronize()
    assert (host == 1).all()
    assert (y.cpu() == 10).all()
    assert device.races() == []


def test_who_evicts_is_waited_for_where_a_pin_was(moved: str, device: Any) -> None:
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    torch.cuda.synchronize()
    with torch.cuda.lms.pin(x):
        pointer = torch._C._TensorBase.data_ptr(x)
        with torch.cuda.stream(side):
            set_bytes(pointer, 9, x.nbytes)
    with torch.cuda.stream(side):
        evict(x)
    torch.cuda.synchronize()
    assert x.cpu().view(torch.uint8).unique().tolist() == [9]
    assert device.races() == []


def test_what_was_freed_before_anything_made_way_is_waited_for(program: Any) -> None:
    out = program(
        """
        import simcuda, torch
        torch.cuda.lms.enable(min_size=0)
        simcuda.device.set_queries("strict")
        def large(value):
            return torch.full((5 << 18,), value, device="cuda")
        x = large(1.0)
        assert torch.ops.lms.evict(x)
        torch.cuda.empty_cache()
        y, kept, *idle = (large(float(i)) for i in range(2, 6))  # a whole segment
        torch.cuda.synchronize()
        host = torch.zeros(5 << 18).pin_memory()
        host.copy_(y, non_blocking=True)
        del y
        simcuda.device.capacity = 20 << 20
        with torch.cuda.lms.pin(kept):  # beside which y's place remains
            more = torch.zeros(10 << 18, device="cuda")
        simcuda.device.capacity = 1 << 30
        assert torch.cuda.lms.stats()["lms.paged_out"] > 1
        del more
        with torch.cuda.lms.pin(x):
            pass
        torch.cuda.synchronize()
        assert (host == 2).all() and (x.cpu() == 1).all() and (kept.cpu() == 3).all()
        print("waited")
        """,
        fresh=True,
    )
    assert "waited" in out


def test_unmapped_memory_owes_nothing(program: Any) -> None:
    out = program(
        """
        import simcuda, torch
        torch.cuda.lms.enable(min_size=0)
        simcuda.device.capacity = 24 << 20
        kept = [torch.ones(5 << 18, device="cuda") for _ in range(6)]  # something makes way
        simcuda.device.capacity = 1 << 30
        del kept
        torch.cuda.empty_cache()
        first = torch.ones(1 << 20, device="cuda")
        assert torch.ops.lms.evict(first)
        x = torch.full((1 << 22,), 3.0, device="cuda")
        torch.cuda.synchronize()
        assert torch.ops.lms.evict(x)
        torch.cuda.empty_cache()
        assert (x == 3).all().item()
        print("moved")
        """,
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        fresh=True,
    )
    assert "moved" in out


def test_what_is_unmapped_on_another_device_is_over(program: Any) -> None:
    """There a kernel on the default stream is all that still uses it."""
    out = program(
        """
        import torch
        torch.cuda.lms.enable(min_size=0)

        def use_and_drop():
            x = torch.ones(1 << 20, device="cuda:0")
            torch.cuda.synchronize(0)
            x.add_(1)

        use_and_drop()
        with torch.cuda.device(1):
            kept = [torch.ones(1 << 20, device="cuda") for _ in range(9)]
            with torch.cuda.stream(torch.cuda.Stream()):
                y = torch.full((3 << 20,), 5.0, device="cuda")  # in the place of all the others
                assert (y == 5).all().item()
            use_and_drop()
            try:
                torch.ones(12 << 20, device="cuda")  # more than there is
            except torch.cuda.OutOfMemoryError:
                print("unmapped", torch.cuda.memory_reserved(0))
        """,
        memory=40 * MIB,
        mode="lazy",
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "SIMCUDA_DEVICES": "2"},
        fresh=True,
    )
    assert "unmapped 0" in out


# ---- which block


@pytest.fixture
def pressed(lms: Any, sim: Any) -> Any:
    """Something has had to make way, and a query says "done" only of what was waited for."""
    press(lms, sim)
    sim.set_queries("strict")
    return sim


def address(tensor: torch.Tensor) -> int:
    with torch.cuda.lms.pin(tensor):
        return int(torch._C._TensorBase.data_ptr(tensor))


def test_a_page_in_takes_the_block_that_went_idle_first(pressed: Any) -> None:
    out = large(0)
    evict(out)
    torch.cuda.synchronize()
    a, b, c, d = (large(i) for i in range(4))  # a whole segment
    places = [address(a), address(c)]
    assert places == sorted(places)  # of blocks that fit alike, the allocator takes the first
    del c
    d.add_(1)
    del a
    assert address(out) == places[1]
    assert b.numel() == d.numel()


def test_a_page_in_takes_what_went_idle_first_of_many(pressed: Any) -> None:
    """The last that the allocator would take, behind the plug-in, too."""
    out = large(0)
    evict(out)
    torch.cuda.synchronize()
    made = sorted((large(i) for i in range(32)), key=address)  # eight whole segments
    places = [address(made[i]) for i in range(0, 32, 2)]
    for i in range(30, -1, -2):
        made[1].add_(1)
        made[i] = made[1]
    assert address(out) == places[-1]


def test_a_page_in_looks_at_large_blocks_as_at_small_ones(pressed: Any) -> None:
    """Behind the plug-in, which takes what it passes over: not bit by bit."""
    out = large(0)
    evict(out)
    torch.cuda.synchronize()
    other, *kept = (large(i) for i in range(4))  # where it was, too
    early, late = (torch.empty(size * N, device="cuda") for size in (350, 340))
    place = address(early)
    other.add_(1)  # sets the mark that it is freed with
    del early
    other.add_(1)
    del late
    assert address(out) == place
    assert len(kept) == 3


def test_what_computes_takes_a_block_without_a_pending_copy(pressed: Any) -> None:
    a, b, c, d = (large(i) for i in range(4))
    places = [address(a), address(c)]
    assert places == sorted(places)
    torch.cuda.synchronize()
    evict(a)
    del c
    assert address(large(5)) == places[1]
    assert b.numel() == d.numel()


def test_what_computes_takes_no_block_that_is_far_too_large(pressed: Any) -> None:
    huge = torch.full((64 * N,), 1.0, device="cuda")
    a, b, c, d = (large(i) for i in range(4))
    place = address(a)
    torch.cuda.synchronize()
    del huge
    evict(a)
    assert address(large(5)) == place
    assert b.numel() == c.numel() == d.numel()


def test_what_a_page_in_did_not_take_is_not_counted(pressed: Any) -> None:
    out = large(0)
    evict(out)
    torch.cuda.synchronize()
    kept = {i: large(i) for i in range(4)}
    for i in (1, 3, 0):
        kept[2].add_(1)
        del kept[i]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    address(out)
    after = torch.cuda.memory_stats()
    for name in ("allocation", "active"):
        assert after[f"{name}.all.allocated"] == before[f"{name}.all.allocated"] + 1
        assert after[f"{name}.all.freed"] == before[f"{name}.all.freed"]
        assert after[f"{name}.all.peak"] == after[f"{name}.all.current"]
    requested = ["requested_bytes"] if hasattr(torch, "compile") else []  # 1.13 does not count them
    for name in ("allocated_bytes", "active_bytes", *requested):
        assert after[f"{name}.large_pool.peak"] == after[f"{name}.large_pool.current"]
    assert after["reserved_bytes.all.peak"] == before["reserved_bytes.all.peak"]
    most = after["allocated_bytes.all.peak"]
    kept.clear()
    assert torch.cuda.max_memory_allocated() == most
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()


def free_in_pieces() -> tuple[int, int]:
    """Free blocks that are a part of a segment, and their bytes."""
    sizes = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "inactive" and len(segment["blocks"]) > 1
    ]
    return len(sizes), sum(sizes)


@pytest.mark.parametrize("freed", [(1, 0, 2), (1, 2, 0), (1, 0, 2, 3)], ids=str)
def test_a_page_in_takes_the_part_of_a_block_that_went_idle_first(
    pressed: Any, freed: tuple[int, ...]
) -> None:
    """What one block was made of is waited for apart; the rest of it stays one or two blocks."""
    out = large(0)
    evict(out)
    torch.cuda.synchronize()
    kept = {i: large(i) for i in range(4)}  # a whole segment
    places = [address(kept[i]) for i in range(4)]
    assert places == sorted(places)
    other = torch.ones(N, device="cuda")
    for i in freed:
        other.add_(1)  # the next mark is another
        del kept[i]
    assert address(out) == places[freed[0]]
    stats = torch.cuda.memory_stats()
    found = stats["inactive_split.all.current"], stats["inactive_split_bytes.all.current"]
    assert found == free_in_pieces()
    assert (out.cpu() == 0).all()
    del out, other
    kept.clear()
    assert pressed.races() == []
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats()["inactive_split_bytes.large_pool.current"] == 0


def test_a_page_in_takes_a_part_though_what_lies_before_it_fits_elsewhere(pressed: Any) -> None:
    out = large(0)
    evict(out)
    torch.cuda.synchronize()
    sizes = (3, 5, 5, 7, 4, 5, 5, 6)  # MiB, of two whole segments
    kept = [torch.full((size * N,), 1.0, device="cuda") for size in sizes]
    place, before = address(kept[1]), address(kept[0])
    assert before + 3 * MIB == place
    kept[4] = kept[1] = kept[2]
    kept[3].add_(1)  # sets the mark that the others were freed with
    kept[0] = kept[2]
    assert address(out) == place
    assert address(torch.ones(3 * N, device="cuda")) == before
    assert (out.cpu() == 0).all()
    assert pressed.races() == []


def test_what_lies_before_the_part_owes_what_it_owed(pressed: Any) -> None:
    out = large(0)
    evict(out)
    torch.cuda.synchronize()
    kept = [large(i) for i in range(4)]
    place, before = address(kept[1]), address(kept[0])
    assert before < place
    kept[1] = kept[2]
    kept[3].add_(1)  # sets the mark that kept[1] was freed with
    left = kept[0].add_(1)
    evict(left)
    assert address(out) == place
    again = large(5)
    assert address(again) == before
    torch.cuda.synchronize()
    assert (left.cpu() == 1).all()
    assert pressed.races() == []


def test_what_computes_takes_the_part_of_a_block_without_a_pending_copy(pressed: Any) -> None:
    kept = [large(i) for i in range(4)]
    place = address(kept[1])
    torch.cuda.synchronize()
    evict(kept[0])
    kept[1] = kept[2]
    assert address(large(5)) == place
    torch.cuda.synchronize()
    assert pressed.races() == []


# ---- kernels that no operator tells of


RPC = """distributed.rpc.init_rpc("one", rank=0, world_size=1, rpc_backend_options=
                torch.distributed.rpc.TensorPipeRpcBackendOptions(init_method="file://" + file))"""


@pytest.mark.parametrize(
    "call",
    # The second refuses to send from the same device twice: NCCL of PyTorch 1.13 frees memory twice
    # where a device does not say what it asks.
    ["cuda.comm.broadcast(x, [0, 1])", "cuda.nccl.broadcast([x, x])", RPC],
    ids=["comm", "nccl", "rpc"],
)
def test_what_launches_in_c_is_noticed(program: Any, tmp_path: Path, call: str) -> None:
    out = program(
        f"""
        import os, sys, torch, torch.cuda.comm, torch.cuda.nccl, torch.distributed.rpc
        file = sys.argv[1]
        torch.cuda.lms.enable(min_size=0)
        x = torch.ones(1 << 20, device="cuda")
        assert torch.ops.lms.evict(x)
        assert not torch.ops.lms.unseen_kernels()
        try:
            torch.{call}
        except Exception as error:  # what a simulated device refuses
            print(error)
        assert torch.ops.lms.unseen_kernels()
        print("noticed", flush=True)
        os._exit(0)  # RPC waits for nobody
        """,
        str(tmp_path / "rendezvous"),
        env={"SIMCUDA_DEVICES": "2"},
    )
    assert "noticed" in out


def test_the_home_stream_waits_before_it_uses_the_host_buffer(
    mode: str, strict: None, device: Any, extension: Any
) -> None:
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        evict(x)
    assert extension.fill(x, 9) == ""
    torch.cuda.synchronize()
    assert x.cpu().view(torch.uint8).unique().tolist() == [9]
    assert device.races() == []


@pytest.mark.parametrize("by", ["home", "user"])
def test_a_page_in_waits_for_kernels_on_the_host_buffer(
    mode: str, strict: None, device: Any, extension: Any, by: str
) -> None:
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    torch.cuda.synchronize()
    evict(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.current_stream() if by == "home" else side):
        assert extension.fill(x, 9) == ""
    with torch.cuda.stream(side):
        page_in(x)
    torch.cuda.synchronize()
    assert x.cpu().view(torch.uint8).unique().tolist() == [9]
    assert device.races() == []


def test_the_home_stream_waits_for_what_another_brought_in(
    mode: str, strict: None, device: Any, extension: Any
) -> None:
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    torch.cuda.synchronize()
    evict(x)
    with torch.cuda.stream(side):
        page_in(x)
    assert extension.fill(x, 9) == ""
    torch.cuda.synchronize()
    assert x.cpu().view(torch.uint8).unique().tolist() == [9]
    assert device.races() == []


def test_what_a_kernel_of_an_extension_writes_leaves_with_it(
    moved: str, device: Any, extension: Any
) -> None:
    x = large(1)
    x.sum()  # the last use that is known
    torch.cuda.synchronize()
    assert extension.fill(x, 9) == ""
    evict(x)
    torch.cuda.synchronize()
    assert x.cpu().view(torch.uint8).unique().tolist() == [9]
    assert device.races() == []


@pytest.mark.parametrize("kept", [True, False])
def test_a_kernel_of_an_extension_is_waited_for(
    moved: str, device: Any, extension: Any, kept: bool
) -> None:
    """It is loaded, so that there may be some: also one that only reads, which no barrier sees."""
    x, y = large(1), large(10)
    evict(y)
    if kept:
        evict(x)
    x.sum()
    torch.cuda.synchronize()
    pointer, error = extension.pointer(x)
    assert error == "" and pointer is not None
    host = torch.zeros(5 * N).pin_memory()
    copy_bytes(host.data_ptr(), pointer, x.nbytes)
    evict(x)
    page_in(y)
    torch.cuda.synchronize()
    assert (host == 1).all()
    assert (y.cpu() == 10).all()
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


def test_an_overwrite_waits_for_the_copy_in_of_its_block(moved: str, device: Any) -> None:
    """That of the tensor that had it, and died, on a stream that has not waited for it."""
    home, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(home):
        x, y = large(1), large(2)
    evict(x)
    evict(y)
    torch.cuda.synchronize()
    page_in(x)
    del x
    with torch.cuda.stream(other):
        y.zero_()
    torch.cuda.synchronize()
    assert not y.cpu().any()
    assert device.races() == []


@pytest.mark.parametrize("last", ["copy", "kernel"])
def test_a_host_range_is_waited_for_at_the_limit(
    mode: str, device: Any, sim: Any, extension: Any, last: str
) -> None:
    """Nothing else can be had, so the host waits for what uses the range of the dead."""
    sim.set_queries("strict")
    torch.cuda.lms.enable(min_size=0, host_limit="64MiB")
    torch.ops.lms.trim_host()
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.full((10 << 20,), 1.0, device="cuda")
    with torch.cuda.stream(side):
        y = torch.full((10 << 20,), 2.0, device="cuda")
    torch.cuda.synchronize()
    evict(x)
    if last == "kernel":
        assert extension.fill(x, 9) == ""  # in host memory
        del x
    else:
        with torch.cuda.stream(other):
            del x
    with torch.cuda.stream(side):
        evict(y)
    torch.cuda.synchronize()
    assert (y == 2).all()
    assert device.races() == []


def test_a_page_out_that_fails_in_parts_is_over(mode: str, sim: Any) -> None:
    """The parts that were queued still write to host memory, which is given back."""
    torch.ops.lms.trim_host()
    kept = [torch.full((30 * N,), float(i), device="cuda") for i in range(3)]
    torch.cuda.synchronize()
    evict(kept[0])
    evict(kept[1])
    torch.cuda.synchronize()
    sim.fail_next_copies(1, skip=1)
    with pytest.raises(RuntimeError):
        torch.ops.lms.evict(kept[2])  # from one segment of host memory into the next
    del kept[:2]
    torch.ops.lms.trim_host()
    assert (kept[0] == 2).all()


def test_a_page_in_that_fails_in_parts_is_over(mode: str, sim: Any) -> None:
    """The parts that were queued still write to a block that others get."""
    torch.ops.lms.trim_host()
    kept = [torch.full((30 * N,), float(i), device="cuda") for i in range(3)]
    torch.cuda.synchronize()
    for x in kept:
        evict(x)
    torch.cuda.synchronize()
    sim.fail_next_copies(1, skip=1)
    with pytest.raises(RuntimeError):
        page_in(kept[2])
    y = torch.full((30 * N,), 9.0, device="cuda")
    assert (y == 9).all() and (kept[2] == 2).all()


def test_a_default_stream_waits_whatever_device_is_current(program: Any, sim: Any) -> None:
    """That of every device has the same handle."""
    out = program(
        """
        import torch
        torch.zeros(1, device="cuda:1")
        torch.cuda.lms.enable(min_size=0)
        home, side = torch.cuda.Stream(0), torch.cuda.Stream(0)
        with torch.cuda.stream(home):
            x = torch.arange(1 << 18, device="cuda:0").add_(0)
        torch.cuda.synchronize(0)
        assert torch.ops.lms.evict(x)
        with torch.cuda.stream(side):
            x * 1  # it comes in for that
        with torch.cuda.device(1):
            y = x * 1  # on the default stream of its own
        for stream in (side, torch.cuda.default_stream(0)):
            x.record_stream(stream)
        print("equal", torch.equal(y.cpu(), torch.arange(1 << 18)))
        """,
        env={"SIMCUDA_DEVICES": "2"},
        mode="lazy",
    )
    assert "equal True" in out
