# SPDX-License-Identifier: Apache-2.0
"""Reclaiming inside the caching allocator: every route, every limit, every configuration."""

from __future__ import annotations

import resource
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import lms_device
import pytest
import torch
from lms_device import LARGE, MIB
from lms_tensors import block, operators

ROUTES = (
    "freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "reclaim_all", "cudamalloc_retry",
)  # fmt: skip


def taken(function: Any) -> dict[str, int]:
    """The routes of the allocations that `function` makes."""
    torch.cuda.lms.reset_accumulated_stats()
    result = function()
    stats = torch.cuda.memory_stats()
    del result
    counts = {route: stats[f"alloc_distribution.{route}"] for route in ROUTES}
    return {route: count for route, count in counts.items() if count}


def intact(tensors: list[torch.Tensor]) -> bool:
    """Whether block i holds only the value i. Looks on the CPU: a full device has no room to."""
    return all((t.cpu() == lms_device.value(i)).all() for i, t in enumerate(tensors))


def test_route_freelist_and_cudamalloc(lms: Any) -> None:
    assert taken(lambda: torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")) == {
        "cudamalloc": 1
    }
    assert taken(lambda: torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")) == {"freelist": 1}


def test_routes_are_counted_while_off(device: Any) -> None:
    assert taken(lambda: torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")) == {
        "cudamalloc": 1
    }
    assert taken(lambda: torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")) == {"freelist": 1}


def test_route_reclaim_one(lms: Any, device: Any) -> None:
    device.limit(20 * MIB)
    kept = [block(5, i) for i in range(4)]  # one segment of 20 MiB, full
    assert taken(lambda: torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")) == {
        "reclaim_one": 1
    }
    assert lms.stats()["reclaimed"] == 1  # no more than needed
    assert torch.ops.lms.on_host(kept[0])  # the least recently used
    assert intact(kept)


def test_route_reclaim_fragments(lms: Any, device: Any) -> None:
    device.limit(20 * MIB)
    kept = [block(2, i) for i in range(10)]
    assert taken(lambda: torch.empty(6 * MIB, dtype=torch.uint8, device="cuda")) == {
        "reclaim_fragments": 1
    }
    assert [torch.ops.lms.on_host(t) for t in kept] == [True] * 3 + [False] * 7
    assert intact(kept)


def test_a_hole_beside_free_memory_costs_least(lms: Any, device: Any) -> None:
    device.limit(20 * MIB)
    kept = [block(2, i) for i in range(10)]
    kept[2] = torch.empty(0)  # a free block of 2 MiB
    request = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    moved = [i for i, t in enumerate(kept) if i != 2 and torch.ops.lms.on_host(t)]
    assert moved == [1]  # beside the free block, although 0 is older
    assert lms.stats()["reclaimed_bytes"] == 2 * MIB
    del request


def test_route_cudamalloc_retry(lms: Any, device: Any) -> None:
    """Whole segments go back to the device when no hole can be made."""
    device.limit(24 * MIB)
    kept = [block(12, i) for i in range(2)]  # a segment each
    counts = taken(lambda: torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    assert counts == {"cudamalloc_retry": 1}
    del counts
    assert lms.stats()["reclaimed"] == 2
    assert intact(kept)


def test_route_reclaim_all(lms: Any, sim: Any) -> None:
    """When a choice made room and the device still refuses, everything idle goes."""
    sim.capacity = 24 * MIB
    kept = [block(12, i) for i in range(2)]
    # The first request, and the one after the choice: the third succeeds.
    sim.fail_next_mallocs(2)
    counts = taken(lambda: torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    assert counts == {"reclaim_all": 1}
    assert intact(kept)


def test_memory_that_was_freed_on_another_stream_is_taken(lms: Any, device: Any) -> None:
    """Though that stops the device: once as much has left for want of it as that is worth."""
    device.limit(402 * MIB)
    with torch.cuda.stream(torch.cuda.Stream()):
        cold = [block(2) for _ in range(150)]
    del cold
    hot = [block(2) for _ in range(60)]  # 100 MiB are left for them
    before = lms.stats()["lms.paged_in"]
    for _ in range(10):
        for x in hot:
            x.add_(1)
    assert lms.stats()["lms.paged_in"] - before <= 40  # of 600 uses; it was 200


def test_small_and_large_pool(lms: Any, device: Any) -> None:
    """Memory that one pool holds serves the other."""
    device.limit(20 * MIB)
    small = [block(0.25, i) for i in range(72)]  # segments of 2 MiB
    large = [block(4, i) for i in range(3)]  # want a segment of 20 MiB
    assert intact(small) and intact(large)
    again = [block(0.25, i) for i in range(72)]
    assert intact(again) and intact(large) and intact(small)


@pytest.mark.parametrize("kind", ["fused", "foreach"])
@pytest.mark.values
def test_lists_larger_than_the_device(lms: Any, device: Any, kind: str) -> None:
    """An optimiser passes all parameters, gradients and moments in one call."""
    device.limit(40 * MIB)
    lms.disable()
    lms.enable()
    params = [torch.nn.Parameter(block(2, i)) for i in range(20)]  # 160 MiB with their moments
    for p in params:
        p.grad = torch.ones_like(p)
    optimiser = torch.optim.Adam(params, lr=0.5, **{kind: True})
    optimiser.step()
    norm = torch._foreach_norm(params)
    want = [torch.nn.Parameter(p.detach().new_full((4,), i).cpu()) for i, p in enumerate(params)]
    for p in want:
        p.grad = torch.ones_like(p)
    torch.optim.Adam(want, lr=0.5).step()
    assert [float(p[-1].item()) for p in params] == [float(p[-1]) for p in want]
    assert len(norm) == 20 and float(norm[19]) > float(norm[5])


def test_lists_that_do_not_match_fail_in_parts_as_without(lms: Any, device: Any) -> None:
    """A part may have as many tensors as there are numbers."""
    device.limit(40 * MIB)
    lms.disable()
    lms.enable()
    some = [block(2, i) for i in range(20)]
    mul_ = torch._foreach_mul_
    for numbers in ([2.0], [2.0, 3.0], [2.0] * 5):
        with pytest.raises(RuntimeError, match="same number of elements as scalar list"):
            mul_(some, numbers)
    if lms_device.torch_version() >= (2, 1):  # they may be in a tensor
        with pytest.raises(RuntimeError, match="length 20 but got 1"):
            torch._foreach_addcmul_(some, some, some, torch.tensor([2.0]))
        with pytest.raises(RuntimeError, match="scalars to be contiguous"):
            torch._foreach_addcmul_(some, some, some, torch.ones(40)[::2])
    assert lms_device.is_dry or [float(x[0].item()) for x in some] == list(range(20))


@pytest.mark.values
@pytest.mark.skipif(
    lms_device.torch_version() < (2, 3), reason="what refuses such a list has no CPU kernel"
)
def test_lists_that_an_operator_refuses_change_nothing(lms: Any, device: Any) -> None:
    """The parts before the one with the tensor of the host would do."""
    device.limit(40 * MIB)
    lms.disable()
    lms.enable()
    some = [block(2, 4) for _ in range(10)]
    host = torch.ones(16)
    found, scale = (torch.full((), x, device="cuda") for x in (0.0, 0.5))
    with pytest.raises(RuntimeError, match="device"):
        torch._amp_foreach_non_finite_check_and_unscale_([*some, host], found, scale)
    assert [float(x[0].item()) for x in (*some, host)] == [4] * 10 + [1]
    torch._amp_foreach_non_finite_check_and_unscale_(some, found, scale)
    assert all(float(x[0].item()) == 2 for x in some)


@pytest.mark.values
@pytest.mark.skipif(lms_device.torch_version() < (2, 1), reason="they take dense tensors alone")
def test_lists_with_sparse_tensors(lms: Any, device: Any) -> None:
    device.limit(40 * MIB)
    lms.disable()
    lms.enable()
    sparse = torch.eye(4, device="cuda").to_sparse()
    some = [block(2, 1), sparse]
    doubled = torch._foreach_mul(some, 2.0)
    assert float(doubled[0][0].item()) == 2 and torch.equal(
        doubled[1].to_dense().cpu(), torch.eye(4) * 2
    )


@pytest.mark.values
def test_lists_of_results_larger_than_the_device(lms: Any, device: Any) -> None:
    """Lists of tensors and of numbers are cut at the same places, and results keep their order."""
    device.limit(40 * MIB)
    lms.disable()
    lms.enable()
    some = [block(2, i) for i in range(20)]
    sums = torch._foreach_add(some, some, alpha=2)  # 80 MiB with the results
    more = torch._foreach_add(some, [float(100 * i) for i in range(20)])
    assert [float(t[-1].item()) for t in sums] == [3.0 * i for i in range(20)]
    assert [float(t[0].item()) for t in more] == [101.0 * i for i in range(20)]


def test_what_is_not_known_is_told(lms: Any, device: Any) -> None:
    """What no operator has made, or used, does not move before it is pinned."""
    device.limit(64 * MIB)
    storages = [torch.UntypedStorage(10 * MIB, device="cuda") for _ in range(4)]
    assert lms.reclaim() == 0 and lms.stats()["lms.unknown_bytes"] == 40 * MIB
    assert "not known, and cannot move: 40.0 MiB (workspaces, or made before" in lms.summary()
    text = shortage(lambda: block(30))
    assert "40.00 MiB are not of tensors" in text and "torch.cuda.lms.pin() makes these" in text
    kept = [torch.empty(0, device="cuda").set_(storage) for storage in storages]
    with lms.pin(*kept):
        pass
    assert lms.stats()["lms.unknown_bytes"] == 0
    assert "not known" not in lms.summary()
    block(30).sum()


@pytest.mark.skipif(
    lms_device.torch_version() < (2, 1), reason="its allocator does not count what is asked for"
)
def test_what_blocks_have_over_is_not_unknown(lms: Any, device: Any) -> None:
    """The rest of a segment that is too small to be another block."""
    kept = [torch.empty(2 * MIB - 60000 * i, dtype=torch.int8, device="cuda") for i in range(1, 9)]
    assert torch.cuda.memory_allocated() >= sum(t.nbytes for t in kept)
    assert lms.stats()["lms.unknown_bytes"] == 0
    assert "not known" not in lms.summary()


def past_factories(like: torch.Tensor) -> torch.Tensor:
    """As kernels of PyTorch's take memory for their results from its allocator."""
    storage = torch.UntypedStorage(like.nbytes, device="cuda")
    return torch.empty(0, device="cuda").set_(storage, 0, like.shape).fill_(9)


def test_what_threads_made_while_it_was_off_is_no_leak(lms: Any) -> None:
    """Of threads that have ended, and of what they had made little is left."""
    lms.enable(min_size=0)
    lms.disable()
    x = torch.ones(64, device="cuda")
    kept: list[Any] = []

    def short() -> None:
        kept[:] = [x + 1 for _ in range(60)]  # dies when the next thread has made its own

    def resident_after(threads: int) -> int:
        for _ in range(threads):
            thread = threading.Thread(target=short)
            thread.start()
            thread.join()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident_after(200)
    assert resident_after(800) - before < 2 * MIB  # 7 MiB with what each storage has


@pytest.mark.values
def test_what_was_made_while_it_was_off_can_move(lms: Any, device: Any) -> None:
    """Results of operators, empty ones, gradients, also of another stream, of a thread that has
    ended, and of what took its memory past every factory, from the smallest size on that moves."""
    lms.enable(min_size=4 * MIB)
    lms.disable()
    made = {"result": block(4, 1) + 1, "empty": torch.empty(MIB, device="cuda")}
    weight = torch.ones(MIB, device="cuda", requires_grad=True)
    (weight * 3).sum().backward()
    made["gradient"] = weight.grad
    with torch.cuda.stream(torch.cuda.Stream()):
        made["side stream"] = torch.full((MIB,), 5.0, device="cuda")
    thread = threading.Thread(target=lambda: made.update(thread=block(4, 6)))
    thread.start()
    thread.join()
    with operators("lms_made") as library:
        library.define("past_factories(Tensor like) -> Tensor")
        library.impl("past_factories", past_factories, "CUDA")
        made["kernel"] = torch.ops.lms_made.past_factories(made["gradient"])
    small = block(2, 7)
    for _ in range(200):  # what has died by then is not looked at for long
        block(4)
    made["empty"].fill_(8)
    lms.enable()
    lms.reclaim()
    assert [name for name, t in made.items() if not torch.ops.lms.on_host(t)] == []
    assert not torch.ops.lms.on_host(small) and small.sum() == 7 * MIB // 2
    want = {"result": 2, "empty": 8, "gradient": 3, "side stream": 5, "thread": 6, "kernel": 9}
    assert {name: float(t[-1]) for name, t in made.items()} == want


@pytest.mark.parametrize("operator", ["out of none", "out of three", "resize_", "resize_as_"])
def test_what_does_not_fit_has_its_sizes(lms: Any, device: Any, operator: str) -> None:
    device.limit(16 * MIB)
    result = torch.ones(0 if operator == "out of none" else 3, device="cuda")
    shape = tuple(result.shape)
    large = torch.empty(1, device="cuda").expand(8 * MIB)
    call = {
        "resize_": lambda: result.resize_(8 * MIB),
        "resize_as_": lambda: result.resize_as_(large),
    }.get(operator, lambda: torch.arange(8 * MIB, out=result, dtype=torch.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a result with elements is resized
        assert "out of memory" in shortage(call)
    assert tuple(result.shape) == shape and result.stride() == (1,)
    assert result.tolist() == [lms_device.value(1)] * len(result)


def test_device_limit_is_hard(lms: Any, device: Any) -> None:
    lms.enable(device_limit=40 * MIB)
    torch.cuda.reset_peak_memory_stats()
    kept = [block(2, i) for i in range(60)]
    assert torch.cuda.max_memory_reserved() <= 40 * MIB
    assert intact(kept)
    with pytest.raises(torch.OutOfMemoryError, match=r"Device limit: 40\.00 MiB"):
        block(48)
    assert intact(kept)
    lms.enable(device_limit=0)
    block(48)
    assert torch.cuda.max_memory_reserved() > 40 * MIB


def test_device_limit_below_what_is_reserved(lms: Any, device: Any) -> None:
    kept = [block(2, i) for i in range(30)]
    reserved = torch.cuda.memory_reserved()
    lms.enable(device_limit=20 * MIB)
    kept += [block(2, 30 + i) for i in range(10)]
    assert torch.cuda.memory_reserved() <= reserved
    assert intact(kept)


def test_soft_limit(lms: Any, device: Any) -> None:
    """IBM's: beyond it reclaiming comes before reserving, but nothing fails."""
    torch.cuda.set_limit_lms(20 * MIB)
    kept = [block(2, i) for i in range(40)]
    assert torch.cuda.memory_reserved() == 20 * MIB
    assert intact(kept)
    big = block(32)  # nothing to reclaim makes room for it within the limit
    assert torch.cuda.memory_reserved() > 20 * MIB
    torch.cuda.set_limit_lms(0)
    more = [block(2, i) for i in range(20)]
    assert intact(kept) and intact(more)
    del big


def test_memory_fraction_still_holds(lms: Any, device: Any) -> None:
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(40 * MIB / total)
    try:
        kept = [block(2, i) for i in range(40)]
        assert torch.cuda.memory_reserved() <= 40 * MIB
        assert intact(kept)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.values
def test_out_of_memory_says_what_was_pinned(lms: Any, device: Any) -> None:
    device.limit(60 * MIB)
    kept = [block(10, i) for i in range(8)]
    lms.exclude(kept[0])
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.cat(kept[1:])  # 70 MiB of operands
    text = str(caught.value)
    for part in (
        "Large Model Support could not make room for 10.00 MiB on GPU 0, of which",
        "are pinned by running operators (largest 10.00 MiB)",
        "10.00 MiB are excluded",
        "Device limit: none, host limit: none",
        "minimum size: 0.00 MiB",
        "Use smaller inputs for the operator that failed",
    ):
        assert part in text
    del caught
    assert intact(kept)
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    lms.include(kept[0])
    total = sum(float(t.sum()) for t in kept)
    assert total == sum(range(8)) * 10 * MIB // 4


def test_out_of_memory_says_who_is_in_the_way(lms: Any, device: Any) -> None:
    device.limit(64 * MIB)
    hold = [block(10) for _ in range(6)]
    with lms.pin(*hold), pytest.raises(torch.OutOfMemoryError) as caught:
        block(6)
    text = str(caught.value)
    if not lms_device.is_plugin():  # PyTorch's own message is of the segment that it would take
        assert "Tried to allocate 6.00 MiB" in text
    assert "could not make room for 6.00 MiB on GPU 0, of which 60.00 MiB of 64.00 MiB" in text
    assert "60.00 MiB are pinned by torch.cuda.lms.pin()" in text
    assert "Let go of what the operator does not use" in text
    assert "smaller inputs" not in text


def shortage(work: Callable[[], Any]) -> str:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        work()
    return str(caught.value)


@pytest.mark.native  # beside the plug-in they lie in segments of another size, and it fits
def test_out_of_memory_names_what_is_in_pieces(lms: Any, device: Any) -> None:
    device.limit(20 * MIB)
    kept = [block(2) for _ in range(10)]
    with lms.pin(*kept[::2]):
        text = shortage(lambda: block(6))
    assert "in 0 storages are pinned by running operators, 10.00 MiB are pinned by" in text
    assert (
        "Enough is free, but not in one piece that this stream may use: let go of what the "
        "operator does not use and cannot move, as named above, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    ) in text


@pytest.mark.native  # beside the plug-in they lie in segments of another size, and it fits
def test_out_of_memory_beside_memory_of_another_stream(lms: Any, device: Any) -> None:
    """What lies in a segment of a stream's pool keeps all of it from the others."""
    device.limit(20 * MIB)
    with lms.pin(block(2)), torch.cuda.stream(torch.cuda.Stream()):
        text = shortage(lambda: block(2))
    assert "Enough is free, but not in one piece that this stream may use" in text


def test_out_of_memory_does_not_ask_for_what_is_set(program: Any) -> None:
    out = program(
        """
        import torch
        torch.cuda.lms.enable(min_size=0)
        kept = [torch.empty(2 << 20, dtype=torch.uint8, device="cuda") for _ in range(10)]
        with torch.cuda.lms.pin(*kept[::2]):
            try:
                torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                print(str(error).partition("not in one piece that this stream may use")[2])
        """,
        memory=20 * MIB,
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )
    said = [line.partition(". ")[0] for line in out.splitlines()]  # some releases warn, too
    assert any(line.endswith("cannot move, as named above, or use smaller inputs") for line in said)


def test_out_of_memory_of_an_operator_that_would_not_fit_alone(lms: Any, device: Any) -> None:
    """What sort and topk have made so far is theirs, though nobody knows it yet."""
    device.limit(62 * MIB)
    kept = [block(10, i) for i in range(2)]
    x = block(16)
    for work in (lambda: x.sort(), lambda: x.topk(len(x))):
        text = shortage(work)
        assert "made by this operator" in text and "it would fit alone" not in text
        assert "use smaller inputs for the operator that failed" in text
    assert intact(kept)


def test_out_of_memory_of_what_never_fits(lms: Any, device: Any) -> None:
    """A segment is of whole 2 MiB."""
    device.limit(21 * MIB)
    text = shortage(lambda: block(20.5))
    assert "in one piece" not in text and "fit alone" not in text
    assert "Use smaller inputs" in text


def test_out_of_memory_at_the_host_limit(lms: Any, device: Any) -> None:
    device.limit(40 * MIB)
    lms.enable(host_limit="1MiB")
    kept = [block(10, i) for i in range(3)]
    text = shortage(lambda: block(20))
    assert "Host memory is at its limit: raise it with torch.cuda.lms.enable(host_limit" in text
    assert "in one piece" not in text and "smaller inputs" not in text
    assert intact(kept)


def test_out_of_memory_accounts_for_what_nobody_knows(lms: Any, device: Any) -> None:
    device.limit(64 * MIB)
    raw = torch.cuda.caching_allocator_alloc(40 * MIB)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"40\.00 MiB are not of tensors that it"):
            block(30)
    finally:
        torch.cuda.caching_allocator_delete(raw)


@pytest.mark.values
def test_out_of_memory_names_exposed_pointers(lms: Any, device: Any) -> None:
    device.limit(40 * MIB)
    held = block(10)
    held.data_ptr()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(36)
    text = str(caught.value)
    assert "10.00 MiB cannot move because their pointers are exposed" in text
    assert "torch.cuda.lms.release_pointer lets them go" in text
    del caught
    assert (held.cpu() == 1).all()
    lms.release_pointer(held)
    block(36)


@pytest.mark.values
def test_a_page_in_ahead_of_need_moves_nothing(lms: Any, device: Any) -> None:
    device.limit(40 * MIB)
    kept = [block(10, i) for i in range(5)]
    before = lms.stats()
    assert torch.ops.lms.on_host(kept[0])
    assert not torch.ops.lms.page_in_if_free(kept[0])
    after = lms.stats()
    assert after["reclaimed"] == before["reclaimed"] == 1
    assert after["lms.paged_in"] == 0
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    last = kept.pop()
    assert (last.cpu() == 4).all()
    del last
    assert torch.ops.lms.page_in_if_free(kept[0])
    assert not torch.ops.lms.on_host(kept[0])
    assert intact(kept)
    assert lms.stats()["pinned.all.current"] == 0


@pytest.mark.values
def test_small_tensors_move_before_memory_is_out(device: Any) -> None:
    device.limit(16 * MIB)
    torch.cuda.lms.enable(min_size=MIB)
    small = [block(0.5, i) for i in range(24)]
    assert not any(torch.ops.lms.on_host(t) for t in small)
    large = block(10)  # 12 MiB of 16 are small tensors'
    assert all(torch.ops.lms.on_host(t) for t in small)
    assert large.sum().item() == large.numel() and intact(small)


def test_small_tensors_that_cannot_move_are_named(device: Any) -> None:
    device.limit(16 * MIB)
    torch.cuda.lms.enable(min_size=MIB, host_limit=MIB)
    small = [block(0.5, i) for i in range(24)]
    with pytest.raises(torch.OutOfMemoryError, match=r"MiB are below the minimum size") as caught:
        block(10)
    assert "Host memory is at its limit" in str(caught.value)
    del caught
    assert intact(small)


@pytest.mark.values
def test_out_of_memory_in_backward(lms: Any, device: Any) -> None:
    """Raised on the autograd thread, seen by the caller, and the next step works."""
    x = torch.full((4 * MIB,), 2.0, device="cuda", requires_grad=True)  # 16 MiB
    y = (x * x).sum()
    torch.cuda.empty_cache()
    device.limit(30 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        y.backward()  # x and a product of its size
    device.limit(LARGE)
    (x * x).sum().backward()
    assert (x.grad == 4).all().item()


def test_out_of_memory_leaves_no_pins(lms: Any, device: Any) -> None:
    kept = [block(10, i) for i in range(8)]
    lms.reclaim()
    torch.cuda.empty_cache()
    device.limit(35 * MIB)
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            torch.cat(kept)
        assert lms.stats()["pinned.all.current"] == 0
    assert intact(kept)


def test_pins_that_do_not_fit_are_not_tried_again_and_again(lms: Any, device: Any) -> None:
    """As they would be if what a try has pinned were taken for what another thread lets go of."""
    kept = [block(10, i) for i in range(5)]
    lms.reclaim()
    torch.cuda.empty_cache()
    device.limit(35 * MIB)
    before = lms.stats()["lms.paged_in"]
    with pytest.raises(torch.OutOfMemoryError), lms.pin(*kept):
        pass
    assert lms.stats()["lms.paged_in"] - before < 100
    assert lms.stats()["pinned.all.current"] == 0
    assert intact(kept)


def test_host_limit(lms: Any, device: Any) -> None:
    device.limit(40 * MIB)
    lms.enable(host_limit=20 * MIB)
    kept: list[torch.Tensor] = []
    with pytest.raises(torch.OutOfMemoryError) as caught:
        for i in range(40):
            kept.append(block(2, i))
    assert "Host memory is at its limit: raise it with torch.cuda.lms.enable(host_limit=" in str(
        caught.value
    )
    assert "host limit: 20.00 MiB" in str(caught.value)
    del caught
    stats = lms.stats()
    assert 16 * MIB <= stats["lms.host.reserved_bytes_peak"] <= 20 * MIB
    assert stats["lms.host_refused"] > 0
    assert len(kept) >= 25
    lms.enable(host_limit=0)  # with no room on either side nothing can change places
    assert intact(kept)
    kept += [block(2, i) for i in range(len(kept), 40)]
    assert intact(kept)


def test_host_memory_is_not_a_childs(lms: Any) -> None:
    x = block(1, 0)
    lms.reclaim()
    flags = [
        line.split()[1:]
        for line in Path("/proc/self/smaps").read_text().split("\n")
        if line.startswith("VmFlags:")
    ]
    assert any("dc" in mapping and "wr" in mapping for mapping in flags)  # not copied by a fork
    assert intact([x])


def test_a_child_of_a_fork_waits_for_no_lock(program: Any, sim: Any) -> None:
    """Another thread has the engine's at the fork, and no thread of the child will give it back."""
    out = program(
        """
        import os, signal, threading, time
        import simcuda, torch
        torch.cuda.lms.enable(min_size=0)
        ready = threading.Event()

        def reclaim():
            kept = [torch.ones(1 << 19, device="cuda") for _ in range(4)]
            simcuda.device.set_bandwidth(8 << 20)  # a quarter of a second for each
            ready.set()
            torch.cuda.lms.reclaim()
            simcuda.device.set_bandwidth(0)

        thread = threading.Thread(target=reclaim)
        thread.start()
        ready.wait()
        time.sleep(0.2)
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            torch.ones(2).add(1)
            assert not torch.ops.lms.active()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        thread.join()
        print("ended", status, torch.ops.lms.active())
        """
    )
    assert "ended 0 True" in out


@pytest.mark.values
def test_a_child_of_a_fork_uses_no_device(program: Any, sim: Any) -> None:
    """It lets go of what is out, which is its parent's; what would need the device says so, as all
    of CUDA does there; the rest works. Each child is forked while another thread has the lock."""
    out = program(
        """
        import faulthandler, os, threading
        import simcuda, torch
        lms = torch.cuda.lms
        lms.enable(min_size=0)
        outside, resident = (torch.ones(1 << 10, device="cuda") for _ in range(2))
        pointer = resident.data_ptr()
        lms.exclude(resident)
        kept = [torch.ones(1 << 17, device="cuda") for _ in range(2)]
        lms.reclaim()

        def refused(call):
            try:
                call()
            except RuntimeError as error:
                assert "Cannot re-initialize CUDA in forked subprocess" in str(error), error
            else:
                raise AssertionError("not refused")

        def drop():
            global outside
            used = torch.ops.lms.stats(0)["lms.host.used_bytes"]
            del outside
            assert torch.ops.lms.stats(0)["lms.host.used_bytes"] == used

        def profiled():
            with torch.autograd.profiler.profile():
                torch.ones(1)

        with lms.pin(resident):
            held = lms.pin(resident)
            held.__enter__()
        actions = {
            "drop": drop,
            "let go": lambda: held.__exit__(None, None, None),
            "enable": lambda: lms.enable(min_size=1),  # takes note, as long as nobody uses CUDA
            "disable": lms.disable,
            "exclude": lambda: refused(lambda: lms.exclude(outside)),
            "set": lambda: torch.cuda.set_limit_lms(1 << 20),
            "settings": lms.settings,
            "pointer": lambda: resident.data_ptr() == pointer or 1 / 0,
            "another pointer": lambda: outside.data_ptr(),
            "statistics": lambda: (lms.stats(), torch.cuda.memory_stats()),
            "summary": lambda: "the child of a fork" in lms.summary() or 1 / 0,
            "reclaim": lambda: lms.reclaim() == 0 or 1 / 0,
            "fuser": lambda: torch._C._jit_override_can_fuse_on_gpu(True),
            "profile": profiled,
            "thread": lambda: threading.Thread(target=lambda: torch.ones(2).add(1)).start(),
            "end": exit,
        }

        def reclaim(ready):
            # The first operator of a thread takes a lock of PyTorch's profiler, which no fork waits
            # for: a child that profiles would never get it.
            torch.ones(1)
            simcuda.device.set_bandwidth(16 << 20)
            ready.set()
            lms.reclaim()
            simcuda.device.set_bandwidth(0)

        for name, action in actions.items():
            for each in kept:
                each.add_(0)
            ready = threading.Event()
            thread = threading.Thread(target=reclaim, args=[ready])
            thread.start()
            ready.wait()
            child = os.fork()
            if child == 0:
                # The stacks of what hangs, before the test's own limit ends it without a word.
                faulthandler.dump_traceback_later(60, exit=True)
                try:
                    action()
                except SystemExit:
                    raise
                except BaseException as error:
                    os.write(1, f"{name}: {error!r}\\n".encode())
                    os._exit(1)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            thread.join()
            assert status == 0, (name, status)
        held.__exit__(None, None, None)
        assert float(outside.sum()) == 1 << 10 and not torch.ops.lms.on_host(resident)
        print("all", len(actions))
        """
    )
    assert "all 16" in out


def test_a_child_of_a_fork_waits_for_no_thread(program: Any, sim: Any) -> None:
    """Other threads are nearly always within the caching allocator, whose locks stay locked in a
    child that is forked then. An unpatched PyTorch hangs before the 20th."""
    out = program(
        """
import torch
torch.cuda.lms.enable(min_size=0)
kept = [torch.ones(1 << 17, device="cuda") for _ in range(10)]
"""
        + forks.BESIDE_THREADS
        + "print(statuses)"
    )
    assert str([0] * 100) in out


@pytest.mark.values
def test_a_fork_within_an_operator(program: Any, sim: Any) -> None:
    """In chaos mode all would leave when it ends."""
    out = program(
        """
        import os, signal, torch
        library = torch.library.Library("lms_forks", "DEF")
        library.define("fork(Tensor x) -> Tensor")
        library.impl("fork", lambda x: (x + 1, children.append(os.fork()))[0], "CUDA")
        torch.cuda.lms.enable(min_size=0)
        children = []
        kept = [torch.ones(1 << 10, device="cuda") for _ in range(4)]
        for x in kept:
            y = torch.ops.lms_forks.fork(x)
            if children[-1] == 0:
                signal.alarm(10)
                kept.clear()
                del x, y
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(children[-1], 0)[1]) == 0
            assert float(y.sum()) == 2 << 10
        print("done")
        """,
        env={"LMS_DEBUG": "chaos"},
    )
    assert "done" in out


def test_host_memory_comes_ahead_of_need(lms: Any) -> None:
    """By a thread: up to a sixteenth more than was in use at a time."""
    torch.ops.lms.trim_host()
    kept = [block(32, i) for i in range(4)]
    lms.reclaim()
    end = time.monotonic() + 60
    while lms.stats()["lms.host.reserved_bytes"] < 192 * MIB:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert intact(kept)


def test_kept_copies_make_way_at_the_host_limit(lms: Any, device: Any) -> None:
    kept = [block(2, i) for i in range(8)]
    lms.enable(host_limit=16 * MIB)
    assert lms.reclaim() == 16 * MIB
    assert intact(kept)  # read: all copies are kept, host memory is full
    assert lms.stats()["lms.host.used_bytes"] == 16 * MIB
    other = [block(2, i) for i in range(4)]
    for t in other:
        assert torch.ops.lms.evict(t)
    assert intact(other) and intact(kept)


def test_pinned_memory_that_the_machine_refuses(lms: Any, sim: Any) -> None:
    sim.set_host_capacity(8 * MIB)
    sim.capacity = 40 * MIB
    kept: list[torch.Tensor] = []
    with pytest.raises(torch.OutOfMemoryError):
        for i in range(40):
            kept.append(block(2, i))
    sim.set_host_capacity(0)
    assert intact(kept)
    kept += [block(2, i) for i in range(len(kept), 40)]
    assert intact(kept)


def pressure() -> list[torch.Tensor]:
    """Evictions, page-ins, holes, fragments and segments in one."""
    kept = [block(2, i) for i in range(24)]
    kept[3].mul_(1)
    kept.append(torch.full((12 * MIB // 4,), 24.0, device="cuda"))
    kept[20].add_(torch.zeros_like(kept[20]))
    return kept


@pytest.mark.parametrize(
    "skip", [pytest.param(n, marks=[pytest.mark.slow] if n % 6 else []) for n in range(0, 60, 3)]
)
@pytest.mark.parametrize("count", [1, 2])
def test_device_allocations_that_fail(lms: Any, sim: Any, skip: int, count: int) -> None:
    """Any device allocation may fail: an out-of-memory error or none, and nothing is lost."""
    sim.capacity = 40 * MIB
    sim.fail_next_mallocs(count, skip=skip)
    try:
        assert intact(pressure())
    except torch.OutOfMemoryError as error:
        del error
    sim.fail_next_mallocs(0)
    assert lms.stats()["pinned.all.current"] == 0
    assert intact(pressure())


@pytest.mark.parametrize("skip", range(3))
def test_host_allocations_that_fail(lms: Any, sim: Any, skip: int) -> None:
    sim.capacity = 40 * MIB
    sim.fail_next_host_allocs(1, skip=skip)
    try:
        assert intact(pressure())
    except torch.OutOfMemoryError as error:
        del error
    sim.fail_next_host_allocs(0)
    assert intact(pressure())


@pytest.mark.parametrize("skip", range(0, 24, 2))
def test_copies_that_fail(lms: Any, sim: Any, skip: int) -> None:
    """A copy that the driver refuses is an error of the operator; its tensors keep their bytes."""
    kept = [block(2, i) for i in range(12)]
    sim.fail_next_copies(1, skip=skip)
    failed = 0
    for _ in range(2):
        try:
            for t in kept:
                torch.ops.lms.evict(t)
            for t in kept:
                t + 1
        except RuntimeError as error:
            failed += 1
            del error
    sim.fail_next_copies(0)
    assert failed == 1
    assert lms.stats()["pinned.all.current"] == 0
    assert intact(kept)


@pytest.mark.values
def test_streams_of_copies_that_cannot_be_made(program: Any, sim: Any) -> None:
    """The driver may have no memory left for one: another has to do, if there is any."""
    out = program(
        """
        import simcuda, torch
        torch.cuda.lms.enable(min_size=0)
        kept = [torch.full((1 << 18,), float(i), device="cuda") for i in range(8)]
        torch.cuda.Stream()  # PyTorch makes its own at once
        for possible in range(2):  # with one way alone nothing leaves
            simcuda.device.fail_next_streams(10**6, skip=possible)
            try:
                torch.ops.lms.evict(kept[0])
                raise SystemExit("there is no stream")
            except RuntimeError as error:
                print("raised:", str(error).splitlines()[0])
        simcuda.device.fail_next_streams(10**6, skip=1)
        torch.ops.lms.evict(kept[0]), kept[0].add_(0)
        for t in kept:
            t.add_(1)
        for t in reversed(kept):  # each can leave before the one that leaves first
            torch.ops.lms.evict(t)
        assert all((t == i + 1).all() for i, t in enumerate(kept))
        print("intact", flush=True)
        """,
        mode="lazy",
    )
    assert "raised: CUDA error: out of memory" in out and "intact" in out


CONFIGURATIONS = (
    "expandable_segments:True",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:21",
    "roundup_power2_divisions:4",
    "expandable_segments:True,garbage_collection_threshold:0.5,max_split_size_mb:32",
)


@pytest.fixture
def configured(program: Any, configuration: str) -> Any:
    """`program` with the allocator so configured."""
    env = {"PYTORCH_CUDA_ALLOC_CONF": configuration}
    if "expandable" in configuration and not program(
        "import torch; torch.ones(9, device='cuda'); print('usable')", env=env
    ).endswith("usable\n"):
        pytest.skip("the device has no virtual memory management")
    return lambda code, memory: program(code, memory=memory, env=env)


@pytest.mark.parametrize(
    "configuration",
    [*(pytest.param(c, marks=pytest.mark.slow) for c in CONFIGURATIONS[:-1]), CONFIGURATIONS[-1]],
)
@pytest.mark.values
def test_allocator_configurations(configured: Any) -> None:
    out = configured(
        """
        import torch
        from lms_models import train
        torch.set_num_threads(1)
        torch.cuda.lms.enable(min_size=0)
        kept = [torch.full((1 << 19,), float(i), device="cuda") for i in range(40)]
        big = [torch.full((3 << 20,), float(i), device="cuda") for i in range(4)]
        a, b = train("wide", "adam", "cpu"), train("wide", "adam", "cuda")
        assert (a.losses, a.digests) == (b.losses, b.digests)
        assert all((t == i).all().item() for i, t in enumerate(kept))
        assert all((t == i).all().item() for i, t in enumerate(big))
        assert torch.cuda.lms.stats()["lms.paged_out_bytes"] > 64 << 20
        print("equal")
        """,
        64 * MIB,
    )
    assert "equal" in out


@pytest.mark.parametrize("configuration", ["expandable_segments:False", "expandable_segments:True"])
@pytest.mark.values
def test_another_streams_memory_is_given_back(configured: Any) -> None:
    """As much as is missing, not everything idle."""
    out = configured(
        """
        import torch
        torch.cuda.lms.enable(min_size=0)
        kept = []
        for i in range(3):
            with torch.cuda.stream(torch.cuda.Stream()):
                kept.append(torch.full((5 << 20,), float(i), device="cuda"))
        more = torch.full((5 << 20,), 9.0, device="cuda")
        print("moved", [torch.ops.lms.on_host(t) for t in kept])
        assert all((t.cpu() == i).all().item() for i, t in enumerate(kept))
        """,
        64 * MIB,
    )
    assert "moved [True, False, False]" in out


@pytest.mark.parametrize("configuration", ["expandable_segments:True"])
@pytest.mark.values
def test_memory_that_is_not_mapped_is_no_hole(configured: Any) -> None:
    """A segment's address space goes on behind what the device has memory for."""
    out = configured(
        """
        import torch
        torch.cuda.lms.enable(min_size=0)
        kept = [torch.full((5 << 20,), float(i), device="cuda") for i in range(3)]
        kept[0].add_(0), kept[1].add_(0)  # so that the last block is the cheapest
        more = torch.full((6 << 20,), 9.0, device="cuda")
        print("moved", [torch.ops.lms.on_host(t) for t in kept])
        assert all((t.cpu() == i).all().item() for i, t in enumerate(kept))
        """,
        64 * MIB,
    )
    assert "moved [False, True, True]" in out


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
            "remove backend:cudaMallocAsync from PYTORCH_CUDA_ALLOC_CONF",
        ),
        (
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            "PYTORCH_NO_CUDA_MEMORY_CACHING turns the caching allocator off; unset it",
        ),
    ],
)
def test_other_allocators_are_refused(program: Any, env: dict[str, str], reason: str) -> None:
    out = program(
        """
        import torch
        torch.cuda.init()
        try:
            torch.cuda.lms.enable()
        except RuntimeError as error:
            print(error)
        assert not torch.cuda.lms.is_enabled()
        """,
        env=env,
        fresh=True,  # the backend is chosen when the library is loaded
    )
    assert "Large Model Support cannot be enabled" in out
    assert reason in out


def test_memory_snapshot_and_history(lms: Any, device: Any) -> None:
    """The recorder may want the GIL, which must not be waited for under the engine's lock."""
    device.limit(40 * MIB)
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        kept = [block(2, i) for i in range(40)]
        assert intact(kept)
        snapshot = torch.cuda.memory._snapshot()
        assert snapshot["segments"] and snapshot["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


@pytest.mark.values
@pytest.mark.parametrize("waits", [False, True], ids=["", "a block waits for a stream"])
def test_no_more_segments_are_given_back_than_is_needed(lms: Any, sim: Any, waits: bool) -> None:
    """Of those that are free, large ones and small ones; and nothing of that is counted as used."""
    sim.capacity = 58 * MIB
    idle, *free = (block(10, i) for i in range(5))
    small = [torch.ones(MIB // 4, device="cuda") for _ in range(2)]  # a segment
    used, kept = (torch.ones(MIB // 8, device="cuda") for _ in range(2))
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    del free[1:], small
    free.clear()
    if waits:
        sim.set_queries("strict")  # until somebody waits for the stream
        used.record_stream(side)
        with torch.cuda.stream(side):
            used.add_(1)
        del used
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    assert before["reserved_bytes.all.current"] == 54 * MIB
    large = block(14, 5)
    after = torch.cuda.memory_stats()
    assert after["reserved_bytes.all.current"] == 58 * MIB
    assert after["segment.all.freed"] == before["segment.all.freed"] + 1
    assert after["reserved_bytes.all.freed"] == before["reserved_bytes.all.freed"] + 10 * MIB
    for name in ("allocation", "active"):
        assert after[f"{name}.all.allocated"] == before[f"{name}.all.allocated"] + 1
    assert after["allocation.all.freed"] == before["allocation.all.freed"]
    assert after["allocated_bytes.all.peak"] == after["allocated_bytes.all.current"]
    assert lms.stats()["reclaimed"] == 0
    assert intact([idle]) and (large == 5).all() and (kept == 1).all()


def test_segment_no_larger_than_needed(lms: Any, device: Any) -> None:
    """Requests of 1 to 10 MiB usually get a segment of 20 MiB; what fits must not fail of it."""
    device.limit(24 * MIB)
    parts = [torch.full((12 << 10,), float(i), device="cuda") for i in range(200)]  # 9.4 MiB
    whole = torch.stack(parts)  # all of them and as much again
    assert intact(list(whole))
    assert intact(parts)
    assert torch.cuda.memory_stats()["alloc_distribution.reclaim_all"] == 1


def test_a_segment_that_is_no_larger_than_needed_counts_what_is_used(lms: Any, device: Any) -> None:
    """Beside the plug-in a block of 10 MiB is taken and given back, to have a segment of that."""
    device.limit(52 * MIB)
    kept = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
    with lms.pin(*kept):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        made = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    after = torch.cuda.memory_stats()
    assert after["segment.all.allocated"] == before["segment.all.allocated"] + 1
    for key in ("allocation", "active"):
        assert after[f"{key}.all.allocated"] == before[f"{key}.all.allocated"] + 1
        assert after[f"{key}.all.freed"] == before[f"{key}.all.freed"]
    counted = lms_device.torch_version() >= (2, 1)  # 1.13 does not count what is asked for
    requested = ["requested_bytes"] if counted else []
    for key in ("allocated_bytes", "active_bytes", *requested):
        assert after[f"{key}.all.peak"] == before[f"{key}.all.current"] + made.nbytes
        assert after[f"{key}.all.allocated"] == before[f"{key}.all.allocated"] + made.nbytes


def test_a_request_that_no_device_could_meet(lms: Any) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="more than 1EB"):
        torch.empty(1 << 60, dtype=torch.uint8, device="cuda")


def test_a_tensor_in_host_memory_dies_after_an_error(program: Any, sim: Any) -> None:
    """The error is raised where it is asked for, not where memory is given back."""
    out = program(
        """
        import simcuda, torch
        torch.cuda.lms.enable(min_size=0)
        kept = [torch.full((1 << 18,), float(i), device="cuda") for i in range(4)]
        torch.cuda.lms.reclaim()
        kept[0].sum(), kept[1].add_(1)  # one keeps its copy
        simcuda.device.break_context()
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print("raised:", str(error).splitlines()[0])
        kept.clear()
        torch.ops.lms.trim_host()
        print("alive", flush=True)
        __import__("os")._exit(0)
        """
    )
    assert "raised: CUDA error" in out and "alive" in out


# ---- what nobody needs any more


@pytest.mark.values
def test_copies_of_the_dead_make_no_host_memory_grow(lms: Any, device: Any) -> None:
    """A tensor that was read has a host copy until it dies, and not longer."""
    for i in range(200):
        x = block(1, i)
        assert torch.ops.lms.evict(x)
        assert x.sum().item() == i * x.numel()
        del x
    assert lms.stats()["lms.host.reserved_bytes_peak"] == 64 * MIB  # the smallest there is


@pytest.mark.parametrize(
    ("how", "chaos"),
    [(how, False) for how in ("resize_", "set_", "typed", "set_storage")]
    + [("resize_", True), ("typed", True)],  # a kernel of set_ looks at the pointer
)
@pytest.mark.values
def test_to_free_what_is_out_takes_no_room(lms: Any, device: Any, how: str, chaos: bool) -> None:
    device.limit(64 * MIB)
    torch.ops.lms.set_chaos(chaos)
    lms.disable()
    lms.enable()
    x = block(30, 7)
    torch.ops.lms.evict(x)
    assert torch.ops.lms.on_host(x)
    y = block(60)
    with lms.pin(y):
        before = lms.stats()
        if how == "resize_":
            x.untyped_storage().resize_(0)
            assert x.untyped_storage().nbytes() == 0
        elif how == "typed":
            x.storage().resize_(0)
        elif how == "set_":
            x.set_()
        else:
            x.set_(torch.UntypedStorage(0, device="cuda"))
        after = lms.stats()
        assert after["lms.paged_in"] == before["lms.paged_in"]
        assert after["lms.on_host"] == 0
        assert x.untyped_storage().data_ptr() == 0
    x.untyped_storage().resize_(4 * MIB)
    x.set_(x.untyped_storage(), 0, (MIB,)) if how.startswith("set") else None
    x.view(-1)[:MIB].fill_(5)
    del y
    assert (x.view(-1)[:MIB].cpu() == 5).all()


@pytest.mark.values
def test_what_leaves_while_it_is_freed(
    lms: Any, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread moves it out after it was seen to be in, and takes its place."""
    device.limit(64 * MIB)
    x, ops, pins, others = block(30, 7), torch.ops.lms, lms.library.Hold(), []

    class Beside:
        def __getattr__(self, name: str) -> Any:
            return getattr(ops, name)

        def drop_if_out(self, storage: Any) -> bool:
            dropped = bool(ops.drop_if_out(storage))
            if not others:
                assert ops.evict(x)
                others.append(block(60))
                pins.take(others)
            return dropped

    monkeypatch.setattr(lms.library, "ops", Beside)
    x.untyped_storage().resize_(0)
    monkeypatch.undo()
    pins.release()
    assert x.untyped_storage().nbytes() == 0
    assert lms.stats()["lms.on_host"] == 0


# ---- what no operator has touched


@pytest.mark.parametrize("make", ["empty", "empty_strided", "empty_like", "new_empty", "inference"])
def test_what_is_empty_can_move(lms: Any, device: Any, make: str) -> None:
    like = block(1 / 64)
    made = {
        "empty": lambda: torch.empty(MIB, device="cuda"),
        "empty_strided": lambda: torch.empty_strided((MIB,), (1,), device="cuda"),
        "empty_like": lambda: torch.empty_like(like, memory_format=torch.preserve_format),
        "new_empty": lambda: like.new_empty(MIB),
        "inference": lambda: torch.inference_mode()(torch.empty)(MIB, device="cuda"),
    }[make]()
    lms.reclaim()
    assert torch.ops.lms.on_host(made)
    assert torch.empty(3).device.type == "cpu" and torch.empty(0, 3, device="meta").is_meta


# ---- lists, when another process takes memory


@pytest.mark.values
@pytest.mark.parametrize("whole", [True, False])
def test_lists_when_the_device_has_less_than_before(lms: Any, sim: Any, whole: bool) -> None:
    """The size of a part is found when it is enabled; less may be free when a list comes."""
    if not whole:
        torch.ops.lms.set_part_bytes(20 * MIB)
    a = [block(2, i) for i in range(10)]
    b = [block(2, 1) for _ in range(10)]
    lms.reclaim()
    torch.cuda.empty_cache()
    sim.capacity = 12 * MIB
    torch._foreach_add_(a, b)
    sim.capacity = 1 << 30
    assert all((t == i + 1).all().item() for i, t in enumerate(a))


def test_a_list_that_never_fits_says_so(lms: Any, sim: Any) -> None:
    a, b = [block(20, 1) for _ in range(2)], [block(20, 1) for _ in range(2)]
    lms.reclaim()
    torch.cuda.empty_cache()
    sim.capacity = 30 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        torch._foreach_add_(a, b)
    sim.capacity = 1 << 30
    assert intact([torch.zeros(0), *a[:1]])


@pytest.mark.values
def test_a_python_operator_lets_its_dead_go(lms: Any, device: Any) -> None:
    pinned = 0

    @torch.library.custom_op("lms_tests::many", mutates_args=())
    def many(x: torch.Tensor) -> torch.Tensor:
        nonlocal pinned
        for _ in range(3000):
            x = x + 1
        pinned = torch.cuda.lms.stats()["pinned.all.current"]
        return x

    assert many(torch.zeros(4, device="cuda"))[0].item() == 3000
    assert pinned < 1000


@pytest.mark.skipif(
    not hasattr(torch.cuda.memory, "caching_allocator_enable"), reason="came with PyTorch 2.4"
)
def test_memory_that_is_not_cached(lms: Any, device: Any) -> None:
    """It is the device's own, whenever it dies. What is cached moves, and dies, meanwhile, too."""
    lms.enable(device_limit=64 * MIB)
    before = torch.cuda.memory_allocated()
    cached = [block(10, i) for i in range(8)]
    torch.cuda.memory.caching_allocator_enable(False)
    try:
        x = torch.ones(1 << 18, device="cuda")
        del cached[3], cached[0]
        values = [float(t.add_(1).sum()) for t in cached]
        each = cached[0].numel()
        assert lms_device.is_dry or values == [(i + 1) * each for i in (1, 2, 4, 5, 6, 7)]
        assert lms.reclaim() >= 10 * MIB
        lms.disable()
        with pytest.raises(RuntimeError, match=r"caching_allocator_enable\(False\) has turned"):
            lms.enable()
    finally:
        torch.cuda.memory.caching_allocator_enable(True)
    lms.enable()
    x.record_stream(torch.cuda.Stream())
    del cached
    assert lms.reclaim() == 0
    assert lms_device.is_dry or float(x.sum()) == 1 << 18
    del x
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.skipif(lms_device.torch_version() < (2, 15), reason="came with PyTorch 2.15")
def test_segments_of_a_size_that_the_user_sets(program: Any) -> None:
    """The device limit holds for them."""
    out = program(
        """
        import torch
        torch.cuda.lms.enable(device_limit="30MiB")
        try:
            x = torch.ones(2 << 18, device="cuda")
        except torch.OutOfMemoryError:
            pass
        print("reserved:", torch.cuda.max_memory_reserved() >> 20)
        """,
        env={"PYTORCH_ALLOC_CONF": "large_segment_size_mb:40"},
    )
    assert int(out.split("reserved:")[1].split()[0]) <= 30
