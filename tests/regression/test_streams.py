# SPDX-License-Identifier: Apache-2.0
"""Order of copies and kernels over several streams, in every mode of the device.

Values differ from one use to the next: stale data that equals the right data would hide a race.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB
from lms_extension import OwnedStream, set_bytes
from lms_tensors import evict, on_host, operators, page_in, ramp

MODES = lms_device.device.modes
N = MIB // 4


@pytest.fixture(params=MODES)
def mode(request: Any, lms: Any, device: Any) -> str:
    device.mode(request.param)
    return str(request.param)


def smear() -> None:
    """Leave another value in the free block that the next page-in takes."""
    torch.full((N,), -1.0, device="cuda")


def read_later(tensor: torch.Tensor) -> torch.Tensor:
    """Queue a copy to the host: it reads when its stream runs, and kernels at once."""
    host = torch.zeros_like(tensor, device="cpu").pin_memory()
    host.copy_(tensor, non_blocking=True)
    return host


@contextmanager
def on(stream: Any, *after: Any) -> Iterator[None]:
    """Work on `stream`, ordered after what is queued on the others."""
    for other in after:
        stream.wait_stream(other)
    with torch.cuda.stream(stream):
        yield


def test_out_waits_for_the_kernel(mode: str) -> None:
    for i in range(4):
        y = ramp(i).cuda() * 3
        evict(y)
        assert torch.equal(y.cpu(), ramp(i) * 3)


def test_out_waits_for_an_earlier_copy(mode: str) -> None:
    x, source = torch.zeros(N, device="cuda"), ramp(1).pin_memory()
    torch.cuda.synchronize()
    x.copy_(source, non_blocking=True)
    evict(x)
    assert torch.equal(x.cpu(), ramp(1))


def test_out_waits_for_every_stream_that_used_it(mode: str) -> None:
    """Also for one that only an operator of ours told of."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    with on(side, main):
        x.mul_(2)
        x.add_(1)
    evict(x)  # on the main stream, which does not wait for the side stream
    main.wait_stream(side)
    assert torch.equal(x.cpu(), ramp(1) * 2 + 1)


def test_a_block_is_reused_after_the_copy_out(mode: str) -> None:
    x = ramp(1).cuda()
    x.mul_(2)
    evict(x)
    y = torch.full((N,), -1.0, device="cuda")  # the same block
    y.mul_(3)
    assert torch.equal(x.cpu(), ramp(1) * 2)
    assert (y.cpu() == -3).all()


def test_a_block_is_reused_after_a_clean_eviction(mode: str) -> None:
    """No copy orders it: the streams that read it must."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    evict(x)
    with on(side, main):
        host = read_later(x)  # comes in, is read on the side stream only
    evict(x)
    w = torch.full((N,), -1.0, device="cuda")
    main.synchronize()
    side.synchronize()
    assert torch.equal(host, ramp(1))
    assert (w.cpu() == -1).all()


def test_compute_waits_for_the_copy_in(mode: str) -> None:
    x = ramp(1).cuda()
    for _ in range(2):
        evict(x)
        smear()
        y = x * 2
        assert torch.equal(y.cpu(), ramp(1) * 2)


def test_compute_elsewhere_waits_for_the_copy_in(mode: str) -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    evict(x)
    smear()
    with on(side, main):
        z = x * 3
    side.synchronize()
    assert torch.equal(z.cpu(), ramp(1) * 3)
    evict(x)
    smear()
    with on(side):
        page_in(x)
    w = x * 4  # the home stream does not wait for the side stream
    assert torch.equal(w.cpu(), ramp(1) * 4)


def test_a_third_stream_waits_for_the_copy_in(mode: str) -> None:
    """It was ordered after the tensor's making long ago, and only reads."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    evict(x)
    smear()
    side.wait_stream(main)
    page_in(x)
    with on(side):
        z = x * 3
    side.synchronize()
    assert torch.equal(z.cpu(), ramp(1) * 3)


def test_the_copy_in_waits_for_earlier_users_of_the_block(mode: str) -> None:
    x = ramp(1).cuda()
    evict(x)
    y = ramp(100).cuda()
    torch.cuda.synchronize()
    host = read_later(y)
    del y
    page_in(x)  # into the block of y
    torch.cuda.synchronize()
    assert torch.equal(host, ramp(100))
    assert torch.equal(x.cpu(), ramp(1))


def test_the_copy_in_waits_for_earlier_users_of_a_small_block(mode: str) -> None:
    """Below 1 MiB nothing is told of a free: all that is queued is waited for."""
    x = ramp(1, N // 2).cuda()
    evict(x)
    y = ramp(100, N // 2).cuda()
    torch.cuda.synchronize()
    host = read_later(y)
    del y
    page_in(x)  # into the block of y
    torch.cuda.synchronize()
    assert torch.equal(host, ramp(100, N // 2))
    assert torch.equal(x.cpu(), ramp(1, N // 2))


def test_a_copy_in_waits_for_who_used_its_block_here(mode: str) -> None:
    """On a stream that is not the one of the block's pool. Nobody was told, as nothing of the
    program's own uses that pool before it is ordered after."""
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    with on(side):
        x, w = ramp(1).cuda(), ramp(100).cuda()
    here.wait_stream(side)
    evict(x)
    evict(w)
    y = x * 3
    del x
    z = w + 1  # into the block of x
    side.wait_stream(here)
    assert torch.equal(y.cpu(), ramp(1) * 3)
    assert torch.equal(z.cpu(), ramp(100) + 1)


@pytest.mark.values
def test_a_copy_in_waits_for_who_used_its_block_before_its_last_owner(program: Any) -> None:
    """Which was made there, used by nobody, and has left."""
    out = program(
        """
        import torch
        torch.cuda.lms.enable(min_size=0)
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        z, x = (torch.full((1 << 19,), value, device="cuda") for value in (3.0, 1.0))
        kept = [torch.zeros(1 << 19, device="cuda") for _ in range(8)]
        torch.cuda.synchronize()
        assert torch.ops.lms.evict(z)
        kept.append(torch.zeros(1 << 19, device="cuda"))  # there is no room but that of x
        for one in (x, *kept):
            torch.cuda.lms.exclude(one)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.mul(x, 2, out=kept[0])
        del x
        taken = torch.empty(1 << 19, device="cuda")
        assert torch.ops.lms.evict(taken)
        with torch.cuda.stream(side):
            z.mul_(5)
        main.wait_stream(side)
        print((kept[0] == 2).all().item(), (z == 15).all().item())
        """,
        memory=22 << 20,
        mode="lazy",
    )
    assert "True True" in out


def test_an_overwritten_block_waits_for_its_earlier_users(mode: str) -> None:
    """zero_ on what is out needs no copy in, but the block has had other users."""
    side = torch.cuda.Stream()
    x = ramp(1).cuda()
    evict(x)
    y = ramp(100).cuda()
    torch.cuda.synchronize()
    host = read_later(y)
    del y
    with on(side):
        x.zero_()
    side.synchronize()
    torch.cuda.synchronize()
    assert torch.equal(host, ramp(100))
    assert (x.cpu() == 0).all()


def stream_of_block(tensor: torch.Tensor) -> int:
    with torch.cuda.lms.pin(tensor):
        pointer = torch._C._TensorBase.data_ptr(tensor)
        for segment in torch.cuda.memory_snapshot():
            if segment["address"] <= pointer < segment["address"] + segment["total_size"]:
                return int(segment["stream"])
    raise AssertionError("no segment has it")


def test_a_page_in_comes_from_the_pool_of_the_stream_it_was_made_on(mode: str) -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with on(side):
        x = ramp(1).cuda() * 2
    home = stream_of_block(x)
    assert home == side.cuda_stream
    evict(x)
    main.wait_stream(side)
    y = x + 1
    assert stream_of_block(x) == home
    assert torch.equal(y.cpu(), ramp(1) * 2 + 1)
    # Freed by the user, the block goes to the side stream, which waits for nobody.
    x.record_stream(main)
    del x
    with on(side):
        w = torch.full((N,), -1.0, device="cuda")
    assert torch.equal(y.cpu(), ramp(1) * 2 + 1)
    side.synchronize()
    assert (w.cpu() == -1).all()


def test_record_stream_is_carried_over(mode: str) -> None:
    """The user told once that another stream uses it; moved out and in, that still holds."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    x.record_stream(side)
    evict(x)
    x.add_(0)
    host = torch.empty(N).pin_memory()
    with on(side, main):
        host.copy_(torch.ops.aten.alias(x), non_blocking=True)
    del x
    y = torch.full((N,), -1.0, device="cuda")
    side.synchronize()
    assert torch.equal(host, ramp(1))
    assert (y.cpu() == -1).all()


@pytest.mark.parametrize("by", ["operator", "autograd"])
@pytest.mark.parametrize("state", ["on-host", "kept-copy"])
def test_record_stream(mode: str, extension: Any, state: str, by: str) -> None:
    """On a storage that is out, and on one whose pointer is wrapped for the write barrier."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    evict(x)
    if state == "kept-copy":
        x.sum()
    if by == "operator":
        x.record_stream(side)
    else:
        assert extension.record(x, side) == ""
    assert on_host(x) == (state == "on-host")  # it needs no room
    with on(side, main):
        host = read_later(x)
    del x
    z = torch.full((N,), -1.0, device="cuda")
    main.synchronize()
    side.synchronize()
    assert torch.equal(host, ramp(1))
    assert (z.cpu() == -1).all()


def test_a_write_on_another_stream_while_off(mode: str) -> None:
    """The engine saw nothing of it, and must wait for it all the same once it is on again."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    x.add_(0)
    torch.cuda.lms.disable()
    with on(side, main):
        x.mul_(2)
        x.add_(1)
    torch.cuda.lms.enable()
    evict(x)
    main.wait_stream(side)
    assert torch.equal(x.cpu(), ramp(1) * 2 + 1)


def test_record_stream_while_off(mode: str) -> None:
    """Also on a storage that still has a host copy, and a wrapped pointer, from before."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    evict(x)
    x.sum()
    torch.cuda.lms.disable()
    host = torch.empty(N).pin_memory()
    with on(side, main):
        host.copy_(x, non_blocking=True)
    x.record_stream(side)
    del x
    y = torch.full((N,), -1.0, device="cuda")
    main.synchronize()
    side.synchronize()
    assert torch.equal(host, ramp(1))
    assert (y.cpu() == -1).all()


def test_a_stream_of_before_after_it_was_turned_off(mode: str) -> None:
    """It had used the tensor, and has nothing to wait for but the copy in."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    with on(side, main):
        x.sum()
    evict(x)
    smear()
    torch.cuda.lms.disable()
    assert not torch.ops.lms.active()
    with torch.cuda.stream(side):
        host = read_later(x)
    side.synchronize()
    assert torch.equal(host, ramp(1))


def test_a_stream_of_before_after_another_thread_turned_it_off(mode: str, device: Any) -> None:
    """For want of room it stays half on, until an operator of that thread brings in the last."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    x = ramp(1).cuda()
    with on(side, main):
        x.sum()
    evict(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    device.limit(0)
    torch.cuda.lms.disable()
    assert torch.ops.lms.active() and torch.ops.lms.on_host(x)
    device.limit(lms_device.LARGE)
    smear()

    def use() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            read_later(x)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert not torch.ops.lms.active()
    with torch.cuda.stream(side):
        host = read_later(x)
    side.synchronize()
    assert torch.equal(host, ramp(1))


@pytest.mark.parametrize(
    "how", ["used", "small", "pinned", "exposed", "made", "unseen", "recorded"]
)
def test_a_stream_that_was_destroyed(mode: str, how: str) -> None:
    """What it was given is waited for, and its handle, which may be another's by now, not used."""
    main = torch.cuda.current_stream()
    if how == "small":
        torch.cuda.lms.enable(min_size="64MiB")  # ops do not say when they have used it
    if how == "unseen":
        torch.ops.lms.set_unseen_kernels("any")
    x = ramp(0).cuda()
    for i in range(3):
        owned = OwnedStream()
        with on(owned.stream, main):
            if how in ("made", "unseen"):
                x = x + 1
            elif how == "pinned":
                with torch.cuda.lms.pin(x):
                    x.add_(1)
            else:
                x.add_(1)
            if how == "exposed":
                x.data_ptr()
                torch.cuda.lms.release_pointer(x)
            elif how == "recorded":
                x.record_stream(owned.stream)
        done = owned.stream.record_event()
        owned.destroy()
        evict(x)
        main.wait_event(done)
        smear()
        host = read_later(x)
        main.synchronize()
        assert torch.equal(host, ramp(i + 1))
        evict(x)  # where it is told of at a free, PyTorch itself uses the handle


@pytest.mark.parametrize("first", lms_device.device.modes)
def test_copies_on_the_handle_of_a_stream_that_was_destroyed(
    program: Any, sim: Any, first: str
) -> None:
    """Before anything moved: the streams of the engine's copies are made by the first move."""
    out = program(
        """
        import simcuda, torch
        from lms_extension import OwnedStream
        from lms_tensors import evict, ramp
        torch.cuda.lms.enable(min_size=0)
        main = torch.cuda.current_stream()
        x, owned = ramp(0).cuda(), [OwnedStream() for _ in range(4)]
        for each in owned:
            each.stream.wait_stream(main)
            with torch.cuda.stream(each.stream):
                x.add_(1)
            main.wait_stream(each.stream)
        torch.cuda.synchronize()
        for each in owned:
            each.destroy()
        torch.cuda.synchronize()
        for _ in range(3):
            evict(x)
            x.add_(1)
        assert torch.equal(x.cpu(), ramp(7))
        assert simcuda.device.races() == []
        print("in order")
        """,
        mode=first,
    )
    assert "in order" in out


@pytest.mark.parametrize("first", lms_device.device.modes)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stream_of_before_the_first_enable_that_was_destroyed(
    program: Any, sim: Any, when: str, first: str
) -> None:
    """All that tells of it is what was made on it."""
    out = program(
        f"""
        import simcuda, torch
        from lms_extension import OwnedStream
        from lms_tensors import evict, ramp
        main, pool = torch.cuda.current_stream(), torch.cuda.Stream()
        owned = [OwnedStream() for _ in range(8)]  # the engine's get the handles of some
        made = []
        for i, stream in enumerate((main, pool, *(each.stream for each in owned))):
            with torch.cuda.stream(stream):
                made.append(ramp(i).cuda() + 1)
            main.wait_stream(stream)
        made = [x.mul_(1) for x in made]
        if {when == "before"}:
            for each in owned:
                each.destroy()
        torch.cuda.lms.enable(min_size=0)
        for x in made:
            x.add_(1)
        if {when == "after"}:
            for each, x in zip(owned, made[2:]):
                each.stream.wait_stream(main)
                with torch.cuda.stream(each.stream):
                    x.add_(0)
                main.wait_stream(each.stream)
                each.destroy()
        for _ in range(3):
            for x in made:
                evict(x)
                x.add_(1)
        free = [torch.full_like(x, 7) for x in made]
        for i, x in enumerate(made):
            assert torch.equal(x.cpu(), ramp(i + 5)), i
        del x, made
        free = [torch.full_like(x, 8) for x in free]
        assert all((x == 8).all().item() for x in free)
        assert simcuda.device.races() == []
        print("in order")
        """,
        mode=first,
        fresh=True,
    )
    assert "in order" in out


@pytest.mark.parametrize("first", lms_device.device.modes)
def test_memory_of_a_stream_of_before_the_first_enable_is_waited_for(
    program: Any, sim: Any, first: str
) -> None:
    """What is owed there is told by marks, from before the first operator there and after it."""
    out = program(
        """
        import simcuda, torch
        from lms_extension import OwnedStream
        from lms_tensors import block, evict
        owned = OwnedStream()
        with torch.cuda.stream(owned.stream):  # side by side
            x, y, z = (torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (6, 6, 8))
        owned.stream.synchronize()
        torch.cuda.lms.enable(min_size=0)
        main, other = torch.cuda.current_stream(), block(1)
        [block(8) for _ in range(8)]  # from now on it is known what free memory owes
        for _ in range(40):
            evict(other)
            other.add_(0)
        x.fill_(1), z.fill_(3)
        main.synchronize()
        evict(z), evict(x)
        x.max()
        evict(x)  # it is clean, and was used on another stream alone
        with torch.cuda.stream(owned.stream):
            taken = torch.empty_like(z)
            y.fill_(7)
            del y
        z.max()  # comes in where x and y were
        assert (z.cpu() == 3).all() and (x.cpu() == 1).all()
        torch.cuda.synchronize()
        assert (z.cpu() == 3).all()
        assert simcuda.device.races() == []
        print("in order")
        """,
        memory=64 * MIB,
        mode=first,
        fresh=True,
    )
    assert "in order" in out


@pytest.mark.native  # beside the plug-in PyTorch itself asks the stream
@pytest.mark.parametrize("first", lms_device.device.modes)
def test_a_stream_that_was_destroyed_is_not_asked_when_memory_is_unmapped(
    program: Any, sim: Any, first: str
) -> None:
    """With expandable segments what is given back waits for the stream that it was made for."""
    out = program(
        """
        import simcuda, torch
        from lms_extension import OwnedStream
        from lms_tensors import evict, ramp
        torch.cuda.lms.enable(min_size=0)
        main, owned = torch.cuda.current_stream(), OwnedStream()
        kept = [ramp(i).cuda() for i in range(12)]
        with torch.cuda.stream(owned.stream):
            x, y = torch.zeros(1 << 22, device="cuda"), torch.zeros(1 << 20, device="cuda")
            x.add_(1)
        del x
        main.wait_stream(owned.stream)
        owned.destroy()
        y.add_(1)
        evict(y)
        sums = [torch.full((3 << 20,), 7.0, device="cuda").sum() for _ in range(2)]
        more = torch.cat(kept)
        assert all(x.item() == 7 * (3 << 20) for x in sums)
        assert torch.equal(more.cpu(), torch.cat([ramp(i) for i in range(12)]))
        del kept, more
        assert torch.equal(y.cpu(), torch.ones(1 << 20))
        print("in order")
        """,
        memory=40 * MIB,
        mode=first,
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        fresh=True,
    )
    assert "in order" in out


def test_ops_that_use_little_share_an_event(program: Any, sim: Any) -> None:
    """To record one takes the host as long as a GPU takes for many of them. What waits for it
    waits for the last of them."""
    out = program(
        """
        import simcuda, torch
        from lms_tensors import evict, ramp
        torch.cuda.lms.enable(min_size=0)
        small, large = ramp(0).cuda(), torch.zeros(8 << 20, device="cuda")

        def records(tensor, ops):
            before = simcuda.device.counters()["event_records"]
            for _ in range(ops):
                tensor.add_(1)
            return simcuda.device.counters()["event_records"] - before

        assert records(small, 8) == 0, "nothing has moved"
        evict(large)
        assert records(large, 1) > 1
        assert records(small, 31) <= 2
        assert records(large, 4) == 4
        evict(small)
        torch.cuda.synchronize()
        assert torch.equal(small.cpu(), ramp(8 + 31))
        print("shared")
        """,
        memory=16 << 30,
        mode="late-write",
    )
    assert "shared" in out


def test_a_stream_of_pytorchs_by_another_name(mode: str) -> None:
    """As an ExternalStream of its handle, which other libraries make of a stream that they were
    given. What it was told before comes before what it is not asked for."""
    pool, main = torch.cuda.Stream(), torch.cuda.current_stream()
    evict(ramp(0).cuda())
    with on(pool, main):
        x = ramp(1).cuda()
        x.add_(1)
        page_in(x)  # whoever holds it may use it past every op
    with torch.cuda.stream(torch.cuda.ExternalStream(pool.cuda_stream)):
        memory = torch.cuda.caching_allocator_alloc(512)
    evict(x)
    smear()
    main.wait_stream(pool)
    assert torch.equal(x.cpu(), ramp(2))
    torch.cuda.caching_allocator_delete(memory)


@pytest.mark.parametrize("first", lms_device.device.modes)
def test_what_a_captured_stream_has_used_stays(program: Any, sim: Any, first: str) -> None:
    """Of a capture that PyTorch does not know. A mark that is set on the stream, for the ops of
    before, would be a part of the graph, and what waits for it, too."""
    out = program(
        """
        import ctypes, threading
        import simcuda, torch
        from lms_extension import cudart
        from lms_tensors import evict, ramp
        torch.cuda.lms.enable(min_size=0)
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        used, recorded, held, other = (ramp(i).cuda() for i in range(4))
        with torch.cuda.stream(side):
            left, out = ramp(4).cuda(), ramp(5).cuda()
        main.wait_stream(side)
        evict(left), evict(out)
        left.add_(0)  # back in, in the pool of its stream
        side.wait_stream(main)
        with torch.cuda.stream(side):
            used.add_(0)
        recorded.record_stream(side)
        with torch.cuda.lms.pin(held):
            pass
        moved, raised = {}, []

        def another():
            moved.update(used=torch.ops.lms.evict(used), recorded=torch.ops.lms.evict(recorded))
            moved.update(left=torch.ops.lms.evict(left), other=torch.ops.lms.evict(other))
            other.add_(0)
            try:
                out.add_(0)
            except RuntimeError as error:
                raised.append("is captured" in str(error))

        handle, graph, thread_local = ctypes.c_void_p(side.cuda_stream), ctypes.c_void_p(), 1
        assert cudart().cudaStreamBeginCapture(handle, thread_local) == 0
        thread = threading.Thread(target=another)
        thread.start()
        thread.join()
        with torch.cuda.stream(side):
            moved.update(held=torch.ops.lms.evict(held))
        assert cudart().cudaStreamEndCapture(handle, ctypes.byref(graph)) == 0
        assert [name for name in moved if moved[name]] == ["other"] and raised == [True], moved
        main.wait_stream(side)
        for i, x in enumerate((used, recorded, held, other, left, out)):
            evict(x) if i != 5 else None
            assert torch.equal(x.cpu(), ramp(i))
        assert simcuda.device.races() == []
        print("in order")
        """,
        memory=16 << 30,
        mode=first,
    )
    assert "in order" in out


@pytest.mark.parametrize("first", lms_device.device.modes)
def test_a_capture_on_a_stream_of_the_programs_own(program: Any, sim: Any, first: str) -> None:
    """Its marks are no part of the graph, and the handle may have been another's."""
    out = program(
        """
        import ctypes
        import simcuda, torch
        from lms_extension import OwnedStream, cudart
        from lms_tensors import evict, ramp
        torch.cuda.lms.enable(min_size=0)
        main, other = torch.cuda.current_stream(), ramp(0).cuda()
        evict(other)
        large = torch.zeros(8 << 20, device="cuda")

        def capture(stream):
            x, graph = large + 1, torch.cuda.CUDAGraph()
            y = torch.zeros_like(x)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                y.copy_(x * 2)
            x.fill_(3)
            graph.replay()
            assert (y == 6).all().item()

        owned = [OwnedStream() for _ in range(16)]
        capture(owned[0].stream)
        for each in owned:
            each.stream.wait_stream(main)
            with torch.cuda.stream(each.stream):
                other.add_(1)
            main.wait_stream(each.stream)
        handles = {each.stream.cuda_stream for each in owned}
        torch.cuda.synchronize()
        for each in owned:
            each.destroy()
        torch.cuda.synchronize()
        for stream in [torch.cuda.Stream() for _ in range(32)]:
            if stream.cuda_stream in handles:  # one of PyTorch's has it now
                handle, graph = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p()
                thread_local = 1
                assert cudart().cudaStreamBeginCapture(handle, thread_local) == 0
                with torch.cuda.stream(stream):
                    other.add_(1)
                assert cudart().cudaStreamEndCapture(handle, ctypes.byref(graph)) == 0
        assert torch.equal(other.cpu(), ramp(16))
        assert simcuda.device.races() == []
        print("in order")
        """,
        memory=16 << 30,
        mode=first,
    )
    assert "in order" in out


@pytest.mark.skipif(
    not hasattr(torch._C, "_dispatch_get_all_op_names"), reason="it names none before PyTorch 2"
)
def test_small_operators_are_called_without_boxes(lms: Any) -> None:
    """Nearly half of aten's that are intercepted, most of those of a training step among them."""
    unboxed = {}
    for name in torch._C._dispatch_get_all_op_names():
        for line in torch._C._dispatch_dump(name).splitlines() if name.startswith("aten::") else ():
            if line.startswith("BackendSelect:") and "interception_dispatcher" in line:
                unboxed[name.removeprefix("aten::")] = "(none)" not in line
    assert 0.45 < sum(unboxed.values()) / len(unboxed) < 0.52
    for name in ("add.Tensor", "mul_.Tensor", "mm", "addmm", "bmm", "_softmax", "gelu", "copy_"):
        assert unboxed[name], name
    for name in ("addcmul_", "addcdiv_", "lerp_.Scalar", "sqrt", "sum.dim_IntList", "where.self"):
        assert unboxed[name], name
    for name in ("embedding", "native_layer_norm", "nll_loss_forward"):
        assert unboxed[name], name
    for name in ("_foreach_add_.List", "_foreach_norm.Scalar", "_fused_adamw_", "_foreach_copy_"):
        assert unboxed[name], name


@pytest.mark.skipif(
    not hasattr(torch.library.Library, "_destroy"), reason="none is taken away before PyTorch 2"
)
def test_an_operator_of_aten_is_defined_anew(lms: Any) -> None:
    """A program's own, with another signature each time."""
    x = torch.ones(8, device="cuda")
    for schema, kernel, arguments in (
        ("(Tensor x) -> Tensor", lambda x: x.clone(), (x,)),
        ("(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y, (x, x)),
        ("(Tensor x, int n) -> Tensor", lambda x, n: x * n, (x, 2)),
    ):
        library = torch.library.Library("aten", "FRAGMENT")
        library.define(f"lms_anew{schema}")
        library.impl("lms_anew", kernel, "CUDA")
        made = torch.ops.aten.lms_anew(*arguments)
        library._destroy()
        assert lms_device.is_dry or float(made[0]) == len(arguments)


def test_views_are_left_alone(lms: Any) -> None:
    """They look at no memory: nothing intercepts them, and what is out stays out."""
    hooked = torch._C._dispatch_has_kernel_for_dispatch_key
    for view in ("view", "as_strided", "select.int", "slice.Tensor", "detach", "expand", "permute"):
        assert not hooked(f"aten::{view}", "BackendSelect")
    assert hooked("aten::add.Tensor", "BackendSelect")
    x = ramp(0).cuda()
    evict(x)
    part = x.view(2, -1)[1].expand(3, -1).permute(1, 0).detach()
    assert on_host(x)
    assert torch.equal(part[:, 2].cpu(), ramp(0).view(2, -1)[1])


@pytest.mark.parametrize("first", lms_device.device.modes)
@pytest.mark.parametrize("where", ["device", "host", "captured"])
def test_a_stream_destroyed_while_another_thread_held_what_it_used(
    program: Any, sim: Any, where: str, first: str
) -> None:
    """The storage dies when that thread lets go of it: PyTorch would ask the stream for an event
    then, and abort. The memory's next owner is after what the stream still does with it."""
    out = program(
        f"""
        import ctypes, threading, time
        import simcuda, torch
        from lms_extension import OwnedStream, cudart
        from lms_tensors import evict, ramp
        torch.cuda.lms.enable(min_size=0)
        main, owned = torch.cuda.current_stream(), OwnedStream()
        side, graph = torch.cuda.Stream(), ctypes.c_void_p()
        captured = ctypes.c_void_p(side.cuda_stream)
        x, y = ramp(0).cuda(), ramp(1).cuda()
        evict(x)
        simcuda.device.set_bandwidth(2 * x.nbytes)  # coming in takes half a second
        owned.stream.wait_stream(main)
        with torch.cuda.stream(owned.stream):
            y.copy_(ramp(2).pin_memory(), non_blocking=True)
        y.record_stream(owned.stream)
        if {where == "host"}:
            evict(y)
        if {where == "captured"}:  # the device cannot be waited for
            assert cudart().cudaStreamBeginCapture(captured, 0) == 0
        began, over = time.perf_counter(), []

        def drop():
            global y
            time.sleep(0.1)
            y = None
            owned.destroy()
            over.append(time.perf_counter())

        other = threading.Thread(target=drop)
        other.start()
        torch.cuda.lms.disable()
        turned_off = time.perf_counter()
        other.join()
        assert began < over[0] < turned_off, "it was not held meanwhile"
        if {where == "captured"}:
            assert cudart().cudaStreamEndCapture(captured, ctypes.byref(graph)) == 0
        x.add_(1)
        for _ in range(4):
            torch.empty_like(x).fill_(7)
        simcuda.device.set_bandwidth(0)
        assert torch.equal(x.cpu(), ramp(1))
        assert simcuda.device.races() == []
        print("in order")
        """,
        mode=first,
    )
    assert "in order" in out


@pytest.mark.parametrize("how", ["pin", "pointer"])
def test_a_kernel_past_operators_on_a_stream_that_was_destroyed(mode: str, how: str) -> None:
    main, owned, x = torch.cuda.current_stream(), OwnedStream(), ramp(1).cuda()
    with on(owned.stream, main):
        pointer = x.data_ptr()
        if how == "pin":
            torch.cuda.lms.release_pointer(x)
        with torch.cuda.lms.pin(x) if how == "pin" else nullcontext():
            set_bytes(pointer, 0, x.nbytes)
        if how == "pointer":
            torch.cuda.lms.release_pointer(x)
    done = owned.stream.record_event()
    owned.destroy()
    evict(x)
    main.wait_event(done)
    assert not x.cpu().any()


def given_memory(how: str, like: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """A tensor like `like` in memory that nothing has used: a new one or `old`, which has none."""
    storage = old.untyped_storage()
    if how == "empty":
        return torch.empty(N, device="cuda")
    if how == "like":
        return torch.empty_like(like)
    if how == "made storage":
        return old.set_(torch.UntypedStorage(like.nbytes, device="cuda"))
    if how == "resized storage":
        storage.resize_(like.nbytes)
        return old.set_(storage, 0, (N,))
    return old.resize_(N) if how == "resized" else torch.empty(N, out=old)


@pytest.mark.parametrize(
    "how", ["empty", "like", "made storage", "resized storage", "resized", "out"]
)
@pytest.mark.parametrize("within", ["alone", "within an operator"])
def test_new_memory_is_used_on_a_stream_of_before(mode: str, within: str, how: str) -> None:
    """That stream is ordered after all that used the memory, but for the copy out of it."""
    side, main, x = torch.cuda.Stream(), torch.cuda.current_stream(), ramp(1).cuda()
    old = ramp(2).cuda()
    with on(side, main):
        old.neg_()
    main.wait_stream(side)
    old.resize_(0).untyped_storage().resize_(0)
    side.wait_stream(main)
    evict(x)
    operands = [x, old]

    def use() -> torch.Tensor:
        y = given_memory(how, *operands)
        with on(side):
            y.fill_(7)
        return y

    if within == "alone":
        y = use()
    else:
        with operators("lms_streams") as library:
            library.define("use(Tensor x) -> Tensor")
            library.impl("use", lambda _: use(), "CUDA")
            y = torch.ops.lms_streams.use(torch.zeros(4, device="cuda"))
    side.synchronize()
    assert torch.equal(x.cpu(), ramp(1))
    assert torch.equal(y.cpu(), torch.full((N,), 7.0))
    operands.clear()  # PyTorch keeps `use`


@pytest.mark.parametrize("first", lms_device.device.modes)
def test_new_memory_of_expandable_segments_is_used_on_a_stream_of_before(
    program: Any, first: str
) -> None:
    """There the plug-in does not know what a block owes, but what may be owed."""
    out = program(
        """
        import simcuda, torch
        from lms_tensors import evict, ramp
        torch.cuda.lms.enable(min_size=0)
        side, x = torch.cuda.Stream(), ramp(1).cuda()
        side.wait_stream(torch.cuda.current_stream())
        evict(x)
        y = torch.empty_like(x)
        with torch.cuda.stream(side):
            y.fill_(7)
        side.synchronize()
        assert torch.equal(x.cpu(), ramp(1))
        assert simcuda.device.races() == []
        print("in order")
        """,
        mode=first,
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        fresh=True,
    )
    assert "in order" in out


@pytest.mark.parametrize("then", ["on", "turned off"])
@pytest.mark.parametrize("used", ["there", "on another"])
def test_memory_left_without_a_copy_is_used_on_a_stream_of_before(
    mode: str, sim: Any, used: str, then: str
) -> None:
    """There is no copy out to wait for, but what had used it last on the stream of its pool, or on
    another."""
    sim.set_queries("strict")  # to ask whether that is over must order nothing
    side, main, x = torch.cuda.Stream(), torch.cuda.current_stream(), ramp(1).cuda()
    user = main if used == "there" else torch.cuda.Stream()
    evict(x)
    side.wait_stream(main)
    with on(user, main):
        read = read_later(x)
    evict(x)
    y = torch.empty(N, device="cuda")
    if then == "turned off":
        del x  # which else comes in, after all that its stream has been made to wait for
        torch.cuda.lms.disable()
    with on(side):
        y.fill_(7)
    side.synchronize()
    user.synchronize()
    assert torch.equal(read, ramp(1))


def test_memory_given_anew_is_used_on_a_stream_of_before(mode: str) -> None:
    """It comes to lie where the bytes had been that were still copied out when they were freed."""
    side, main, x = torch.cuda.Stream(), torch.cuda.current_stream(), ramp(1).cuda()
    with on(side, main):
        x.neg_()
    main.wait_stream(side)
    evict(x)
    storage = x.untyped_storage()
    storage.resize_(0)
    storage.resize_(4 * N)
    with on(side):
        x.fill_(7)
    side.synchronize()
    assert torch.equal(x.cpu(), torch.full((N,), 7.0))


@pytest.mark.parametrize("how", ["made storage", "resized storage", "resized again"])
@pytest.mark.parametrize("by", ["this thread", "another thread"])
def test_memory_is_used_later_on_a_stream_of_before(mode: str, by: str, how: str) -> None:
    """Another operator, or thread, has come in between, and no operator has made it."""
    side, main, x = torch.cuda.Stream(), torch.cuda.current_stream(), ramp(1).cuda()
    old, other = ramp(2).cuda(), torch.zeros(4, device="cuda")
    storage = old.untyped_storage()
    if how == "resized again":  # it comes to lie where it was
        old, storage = x, x.untyped_storage()
        storage.resize_(0)
        x = ramp(1).cuda()
    elif how == "resized storage":
        storage.resize_(0)
    side.wait_stream(main)
    evict(x)

    def give() -> torch.UntypedStorage:
        if how == "made storage":
            return torch.UntypedStorage(4 * N, device="cuda")
        return storage.resize_(4 * N)

    given = []
    if by == "this thread":
        given.append(give())
        other.neg_()
    else:
        thread = threading.Thread(target=lambda: given.append(give()))
        thread.start()
        thread.join()
    with on(side):
        old.set_(given[0] if how == "made storage" else storage, 0, (N,)).fill_(7)
    side.synchronize()
    assert torch.equal(x.cpu(), ramp(1))
    assert torch.equal(old.cpu(), torch.full((N,), 7.0))


@pytest.mark.parametrize("parts", [1, 2])
def test_memory_that_was_given_in_vain_is_used_on_a_stream_of_before(mode: str, parts: int) -> None:
    """Who had it first did nothing there, and made the stream of its pool alone wait."""
    side, main, x = torch.cuda.Stream(), torch.cuda.current_stream(), ramp(1).cuda()
    side.wait_stream(main)
    evict(x)
    torch.empty(N, device="cuda")
    given = [torch.empty(N // parts, device="cuda") for _ in range(parts)]
    with on(side):
        for y in given:
            y.fill_(7)
    side.synchronize()
    assert torch.equal(x.cpu(), ramp(1))
    assert all(torch.equal(y.cpu(), torch.full((N // parts,), 7.0)) for y in given)


@pytest.mark.parametrize("made", ["before", "after"])
def test_new_memory_is_used_on_a_stream_of_before_while_off(
    mode: str, lms: Any, device: Any, made: str
) -> None:
    """No operator makes a stream wait then, for what is copied out of a tensor that has died."""
    side, main, x = torch.cuda.Stream(), torch.cuda.current_stream(), ramp(1).cuda()
    side.wait_stream(main)
    evict(x)
    y = torch.empty(N, device="cuda") if made == "before" else None
    del x
    lms.disable()
    if y is None:
        y = torch.empty(N, device="cuda")
    with on(side):
        y.fill_(7)
    side.synchronize()
    assert torch.equal(y.cpu(), torch.full((N,), 7.0))
    assert not device.races()


def test_memory_of_no_tensor_is_used_on_a_stream_of_before(mode: str) -> None:
    """The allocator gave it, which made the stream of its pool alone wait for the copy out."""
    side, x = torch.cuda.Stream(), ramp(1).cuda()
    side.wait_stream(torch.cuda.current_stream())
    evict(x)
    pointer = torch.cuda.caching_allocator_alloc(x.nbytes)
    with on(side):
        set_bytes(pointer, 0, x.nbytes)
    side.synchronize()
    assert torch.equal(x.cpu(), ramp(1))
    torch.cuda.caching_allocator_delete(pointer)


@pytest.mark.parametrize("how", ["pin", "pointer"])
def test_a_pointer_to_new_memory_is_followed_on_a_stream_of_before(mode: str, how: str) -> None:
    """No operator makes that stream wait for the copy out of what was there."""
    side, x = torch.cuda.Stream(), ramp(1).cuda()
    side.wait_stream(torch.cuda.current_stream())
    evict(x)
    y = torch.empty(N, device="cuda")
    with torch.cuda.lms.pin(y) if how == "pin" else nullcontext():
        pointer = torch._C._TensorBase.data_ptr(y) if how == "pin" else y.data_ptr()
        with on(side):
            set_bytes(pointer, 0, y.nbytes)
        side.synchronize()
        assert torch.equal(x.cpu(), ramp(1))
        assert not y.cpu().any()


def test_memory_left_without_a_copy_is_used_beside_a_capture(mode: str) -> None:
    """Its last use was on the stream that is captured by then, and is no part of the graph."""
    home, side, n = torch.cuda.Stream(), torch.cuda.Stream(), 2048  # its mark is that of more ops
    with torch.cuda.stream(home):
        x, added = torch.full((n,), 1.0, device="cuda"), torch.ones(n, device="cuda")
        evict(x)
        side.wait_stream(home)
        total = x + added
        evict(x)
        y = torch.empty(n, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(home):
        graph.capture_begin(capture_error_mode="thread_local")
        added.add_(1)
    with torch.cuda.stream(side):
        y.fill_(7)
    with torch.cuda.stream(home):
        graph.capture_end()
    torch.cuda.synchronize()
    assert torch.equal(total.cpu(), torch.full((n,), 2.0))
    assert torch.equal(y.cpu(), torch.full((n,), 7.0))


@pytest.mark.parametrize("how", ["pin", "pointer"])
def test_a_pointer_is_followed_on_a_stream_of_before(mode: str, how: str) -> None:
    """It is ordered after all that the program did to the tensor, and no operator tells of it."""
    side, x = torch.cuda.Stream(), ramp(1).cuda()
    side.wait_stream(torch.cuda.current_stream())
    evict(x)
    smear()
    with torch.cuda.lms.pin(x) if how == "pin" else nullcontext():
        pointer = torch._C._TensorBase.data_ptr(x) if how == "pin" else x.data_ptr()
        with on(side):
            set_bytes(pointer, 0, x.nbytes)
        side.synchronize()
        assert not x.cpu().any()


def test_a_stream_destroyed_while_it_was_off(lms: Any) -> None:
    """Its pool has what was made on it."""
    evict(other := ramp(0).cuda())  # else a stream of the engine's may get the handle
    lms.disable()
    del other
    owned, main = OwnedStream(), torch.cuda.current_stream()
    with on(owned.stream, main):
        x = ramp(1).cuda()
    main.wait_stream(owned.stream)
    owned.destroy()
    lms.enable(min_size=0)
    x += 1
    evict(x)
    assert torch.equal(x.cpu(), ramp(2))


def test_a_page_in_waits_where_an_external_stream_has_waited(mode: str) -> None:
    """Its block was left while that stream was the current one, and is taken when it is not."""
    main, owned = torch.cuda.current_stream(), OwnedStream()
    with on(owned.stream, main):
        x, y = ramp(0).cuda(), ramp(10).cuda()
        evict(x)
        taken = ramp(20).cuda()  # where x was
        evict(y)
    main.wait_stream(owned.stream)
    x.add_(1)  # where y was
    for tensor, start in ((x, 1), (y, 10), (taken, 20)):
        assert torch.equal(tensor.cpu(), ramp(start))


def test_record_stream_of_another_device(program: Any, sim: Any) -> None:
    out = program(
        """
        import torch
        torch.cuda.lms.enable(min_size=0)
        x = torch.full((1 << 18,), 3.0, device="cuda:0")
        x.record_stream(torch.cuda.Stream("cuda:1"))
        assert torch.ops.lms.evict(x)
        assert (x == 3).all().item()
        print("moved")
        """,
        env={"SIMCUDA_DEVICES": "2"},
    )
    assert "moved" in out


def test_what_a_stream_of_another_device_reads_is_not_overwritten(program: Any, sim: Any) -> None:
    """It leaves without a copy, which would have waited for that."""
    out = program(
        """
        import torch
        from lms_extension import copy_bytes

        n = 1 << 18
        torch.cuda.lms.enable(min_size=0)
        there, pointer = torch.cuda.Stream("cuda:1"), torch._C._TensorBase.data_ptr
        host = torch.empty(n, pin_memory=True)
        x = torch.full((n,), 3.0, device="cuda:0")
        place = pointer(x)
        assert torch.ops.lms.evict(x)
        x.sum()  # comes in to the same place, and keeps its copy
        there.wait_stream(torch.cuda.current_stream("cuda:0"))
        with torch.cuda.stream(there):
            copy_bytes(pointer(host), place, 4 * n)
        x.record_stream(there)
        assert torch.ops.lms.evict(x)
        assert torch.cuda.lms.stats(0)["lms.clean_evictions"] == 1
        y = torch.full((n,), 7.0, device="cuda:0")
        torch.cuda.synchronize(1)
        torch.cuda.synchronize(0)
        assert (host == 3).all() and pointer(y) == place
        print("read")
        """,
        mode="lazy",
        env={"SIMCUDA_DEVICES": "2"},
    )
    assert "read" in out


def test_a_write_while_off(mode: str) -> None:
    """A host copy from before is stale."""
    x = ramp(1).cuda()
    evict(x)
    x.sum()
    torch.cuda.lms.disable()
    x.add_(1)
    torch.cuda.lms.enable()
    evict(x)
    assert torch.equal(x.cpu(), ramp(2))


def test_host_memory_is_reused_after_the_copies(mode: str) -> None:
    """A storage that dies while its copy out, or in, is still queued."""
    for i in range(6):
        x, y = ramp(i).cuda(), ramp(10 + i).cuda()
        evict(x)
        z = x * 2  # a copy in that is queued
        x.add_(1)  # the host range is free after it
        evict(y)  # takes the range
        del x
        assert torch.equal(z.cpu(), ramp(i) * 2)
        assert torch.equal(y.cpu(), ramp(10 + i))
        w = ramp(20 + i).cuda()
        evict(w)
        del w  # a copy out that nobody needs any more
        v = ramp(30 + i).cuda()
        evict(v)
        assert torch.equal(v.cpu(), ramp(30 + i))


def test_copies_to_and_from_the_host_do_not_block(mode: str) -> None:
    x, host = ramp(1).cuda(), torch.empty(N).pin_memory()
    evict(x)
    source = ramp(7).pin_memory()
    host.copy_(x, non_blocking=True)
    x.copy_(source, non_blocking=True)
    evict(x)
    torch.cuda.synchronize()
    assert torch.equal(host, ramp(1))
    assert torch.equal(x.cpu(), ramp(7))


def test_events_between_streams(mode: str) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    x = ramp(1).cuda()
    event = torch.cuda.Event()
    with on(first, torch.cuda.current_stream()):
        x.mul_(2)
        evict(x)
        event.record()
    second.wait_event(event)
    with torch.cuda.stream(second):
        x.add_(1)
        evict(x)
    second.synchronize()
    assert torch.equal(x.cpu(), ramp(1) * 2 + 1)
