# SPDX-License-Identifier: Apache-2.0
"""Programs that a swapper gets wrong first, one for each hazard, in every mode of the device and in
chaos mode. What a safeguard does has tests of its own elsewhere; here is what a program sees."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lms_device
import pytest
import torch
from lms_device import LARGE, MIB
from lms_extension import OwnedStream
from lms_tensors import Flattened, on_host, ramp

pytestmark = pytest.mark.values

MODES = (*lms_device.device.modes, "chaos")
N = MIB // 4


@pytest.fixture(params=MODES)
def mode(request: Any, lms: Any, device: Any) -> str:
    name: str = request.param
    if name == "chaos":
        torch.ops.lms.set_chaos(True)
    device.mode("lazy" if name == "chaos" and "lazy" in MODES else name)
    return name


def in_threads(*works: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


# ---- wrong bytes


def test_a_stream_of_before_reads_after_turning_off(mode: str, lms: Any) -> None:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    kept = [ramp(i).cuda() for i in range(8)]
    side.wait_stream(main)
    with torch.cuda.stream(side):
        sums = [x.sum() for x in kept]
    main.wait_stream(side)
    lms.reclaim()
    lms.disable()
    with torch.cuda.stream(side):
        again = [x + 1 for x in kept]
    main.wait_stream(side)
    assert all(torch.equal(y.cpu(), ramp(i + 1)) for i, y in enumerate(again))
    assert all(float(s) == float(ramp(i).cuda().sum()) for i, s in enumerate(sums))


@pytest.mark.parametrize("off_first", [True, False])
def test_a_graph_captured_while_it_was_off(mode: str, lms: Any, off_first: bool) -> None:
    if off_first:
        lms.disable()
    x, y = ramp(1).cuda(), torch.zeros(N, device="cuda")
    lms.disable()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        y.copy_(x * 2)
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    lms.enable(min_size=0)
    assert torch.equal(x.cpu(), ramp(1))
    lms.reclaim()
    others = [ramp(-i).cuda() for i in range(8)]
    graph.replay()
    assert torch.equal(y.cpu(), ramp(1) * 2)
    assert all(torch.equal(o.cpu(), ramp(-i)) for i, o in enumerate(others))


def test_an_alias_made_while_it_was_off(mode: str, lms: Any) -> None:
    lms.disable()
    x = ramp(3).cuda()
    alias = torch.from_dlpack(x)
    lms.enable(min_size=0)
    lms.reclaim()
    others = [ramp(-i).cuda() for i in range(8)]
    assert torch.equal(alias.cpu(), ramp(3))
    alias.add_(1)
    assert torch.equal(x.cpu(), ramp(4))
    assert all(torch.equal(o.cpu(), ramp(-i)) for i, o in enumerate(others))


def test_a_part_of_a_storage(mode: str, lms: Any) -> None:
    x = ramp(0).cuda()
    part = x.untyped_storage()[4096:8192]
    lms.reclaim()
    others = [ramp(-i).cuda() for i in range(8)]
    part.fill_(0)
    assert x[1024:2048].cpu().eq(0).all() and torch.equal(x[:1024].cpu(), ramp(0)[:1024])
    assert bytes(part.cpu()) == bytes(4096)
    assert all(torch.equal(o.cpu(), ramp(-i)) for i, o in enumerate(others))


def test_a_function_of_torchscript(mode: str, lms: Any) -> None:
    @torch.jit.script
    def chain(x, y):  # type: ignore[no-untyped-def]
        return (x * 2 + y).relu().mul(0.5).tanh()

    x, y = ramp(-100).cuda().requires_grad_(), ramp(5).cuda()
    want = (ramp(-100) * 2 + ramp(5)).relu().mul(0.5).tanh()
    for _ in range(4):  # profiled, compiled, and run
        lms.reclaim()
        got = chain(x, y)
        lms.reclaim()
        assert torch.equal(got.detach().cpu(), want)


def test_threads_share_tensors_by_operators(mode: str, lms: Any, device: Any) -> None:
    shared = [torch.full((N // 16,), float(i), device="cuda") for i in range(4)]
    torch.cuda.synchronize()

    def read() -> None:
        for i in range(60):
            x = shared[i % 4]
            assert float((x * 2)[-1]) == 2 * (i % 4)

    def move() -> None:
        for _ in range(60):
            lms.reclaim()

    in_threads(read, read, move)


def test_a_group_of_collectives(mode: str, lms: Any, tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        tensors = [ramp(i).cuda() for i in range(4)]
        lms.reclaim()
        try:
            with _coalescing_manager(device=torch.device("cuda"), async_ops=True) as group:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            group.wait()
        except (RuntimeError, NotImplementedError):  # not of gloo in every release
            for tensor in tensors:
                dist.all_reduce(tensor)
        lms.reclaim()
        assert all(torch.equal(t.cpu(), ramp(i)) for i, t in enumerate(tensors))
    finally:
        dist.destroy_process_group()


# ---- ends, hangs, and shortages that are none


def test_tensors_die_after_an_error(program: Any, sim: Any) -> None:
    for name in MODES:
        out = program(
            """
            import os, simcuda, torch
            torch.cuda.lms.enable(min_size=0)
            kept = [torch.full((1 << 18,), float(i), device="cuda") for i in range(6)]
            torch.cuda.lms.reclaim()
            kept[0].sum(), kept[1].add_(1)
            simcuda.device.break_context()
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                print("raised")
            kept.clear()
            print("alive", flush=True)
            os._exit(0)
            """,
            mode="lazy" if name == "chaos" else name,
            env={"LMS_DEBUG": "chaos"} if name == "chaos" else None,
        )
        assert "raised" in out and "alive" in out


def test_a_stream_that_its_owner_destroyed(mode: str, lms: Any, sim: Any) -> None:
    owned, main = OwnedStream(), torch.cuda.current_stream()
    owned.stream.wait_stream(main)
    with torch.cuda.stream(owned.stream):
        kept = [torch.full((N,), float(i), device="cuda").mul_(2) for i in range(4)]
    main.wait_stream(owned.stream)
    owned.destroy()
    lms.reclaim()
    assert [float(x[-1]) for x in kept] == [0, 2, 4, 6]


def test_a_stream_of_another_device_is_recorded(program: Any, sim: Any) -> None:
    for name in MODES:
        out = program(
            """
            import torch
            torch.cuda.lms.enable(min_size=0)
            x = torch.full((1 << 18,), 3.0, device="cuda:0")
            x.record_stream(torch.cuda.Stream("cuda:1"))
            torch.cuda.lms.reclaim()
            y = torch.full((1 << 18,), 4.0, device="cuda:1")
            assert (x == 3).all().item() and (y == 4).all().item()
            print("moved")
            """,
            mode="lazy" if name == "chaos" else name,
            env={"SIMCUDA_DEVICES": "2", **({"LMS_DEBUG": "chaos"} if name == "chaos" else {})},
        )
        assert "moved" in out


def test_threads_whose_operators_each_fit(mode: str, lms: Any, device: Any) -> None:
    device.limit((14 if lms_device.is_plugin() else 12) * MIB)

    def work(seed: int) -> Callable[[], None]:
        def run() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                x = torch.full((N,), float(seed), device="cuda")
                for _ in range(20):
                    assert float(torch.cat([x, x, x]).sum()) == 3 * N * seed

        return run

    in_threads(work(1), work(2))


def test_an_operator_that_waits_for_who_enables(mode: str, lms: Any) -> None:
    lms.disable()
    library = torch.library.Library("lms_adversarial", "FRAGMENT")
    library.define("wait(Tensor x) -> ()")
    inside, over = threading.Event(), threading.Event()

    def wait(x: torch.Tensor) -> None:
        inside.set()
        over.wait(60)

    library.impl("wait", wait, "CUDA")
    x = torch.ones(8, device="cuda")
    thread = threading.Thread(target=torch.ops.lms_adversarial.wait, args=(x,))
    thread.start()
    inside.wait()
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="operators that began while it was off"):
        torch.ops.lms.set_enabled(True, 0.5)
    assert time.monotonic() - start < 20
    over.set()
    thread.join()
    library._destroy()
    lms.enable(min_size=0)
    assert float(x.sum()) == 8


@pytest.mark.parametrize("capacity", [18, 20, 22, 28])
def test_a_small_result_beside_large_operands(
    mode: str, lms: Any, device: Any, capacity: int
) -> None:
    """What fits in some memory fits in more, and what does in chaos mode does in others."""
    device.limit((capacity + (10 if lms_device.is_plugin() else 0)) * MIB)
    x, y = ramp(0, 6 * N).cuda(), ramp(1, 6 * N).cuda()
    for _ in range(3):
        dots = [(a * b).view(6, -1).amax(1) for a, b in ((x[: 2 * N * 3], y), (y, x))]
        assert torch.equal(dots[0].cpu(), dots[1].cpu())
        x, y = y, x
    assert torch.equal(x.cpu(), ramp(1, 6 * N)) and torch.equal(y.cpu(), ramp(0, 6 * N))


def test_copies_of_the_dead(mode: str, lms: Any) -> None:
    for i in range(40):
        x = torch.full((2 * N,), float(i), device="cuda")
        torch.ops.lms.evict(x)
        assert float(x[0]) == i  # its copy is kept
    assert lms.stats()["lms.host.used_bytes"] <= 8 * MIB


def test_temporaries_of_an_operator_in_python(mode: str, lms: Any, device: Any) -> None:
    device.limit(24 * MIB)
    library = torch.library.Library("lms_adversarial", "FRAGMENT")
    library.define("steps(Tensor x, int n) -> Tensor")

    def steps(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x + 1
        return x

    library.impl("steps", steps, "CUDA")
    try:
        x = torch.zeros(N // 2, device="cuda")
        assert float(torch.ops.lms_adversarial.steps(x, 600)[-1]) == 600
    finally:
        library._destroy()


def test_a_wrapper_means_what_it_holds(mode: str, lms: Any) -> None:
    inner = ramp(0).cuda()
    holder = Flattened(inner)
    lms.exclude(holder)
    lms.reclaim()
    assert not on_host(inner)
    lms.include(holder)
    with lms.pin(holder):
        lms.reclaim()
        assert not on_host(inner)
    lms.reclaim()
    assert on_host(inner)
    assert torch.equal((holder + 1).inner.cpu(), ramp(1))


@pytest.mark.parametrize("how", ["resize_", "set_"])
def test_freeing_needs_no_room(mode: str, lms: Any, device: Any, how: str) -> None:
    x = ramp(0, 4 * N).cuda()
    lms.reclaim()
    device.limit(8 * MIB)
    held = torch.ones(5 * N, device="cuda")
    with lms.pin(held):
        before = lms.stats()["lms.paged_in"]
        if how == "resize_":
            x.untyped_storage().resize_(0)
        else:
            x.set_()
        if mode != "chaos" or how != "set_":  # whose kernel looks at the pointer
            assert lms.stats()["lms.paged_in"] == before
        assert lms.stats()["lms.on_host"] == 0


def test_recording_the_history_of_memory(mode: str, lms: Any, device: Any) -> None:
    device.limit(16 * MIB)
    torch.cuda.memory._record_memory_history()
    try:
        kept = [torch.full((N,), float(i), device="cuda") for i in range(24)]

        def sums() -> None:
            for _ in range(3):
                assert [float(x[-1]) for x in kept] == [float(i) for i in range(24)]

        in_threads(sums, sums)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def test_scattered_and_gathered(mode: str, lms: Any) -> None:
    """By torch.cuda.comm, with no operator around it."""
    from torch.cuda import comm

    x = ramp(0).cuda()
    lms.reclaim()
    parts = comm.scatter(x, [0])
    lms.reclaim()
    assert torch.equal(comm.gather(parts, destination=0).cpu(), ramp(0))


def test_saved_and_loaded(mode: str, lms: Any, device: Any, tmp_path: Path) -> None:
    import safetensors.torch

    device.limit(24 * MIB)
    state = {str(i): ramp(i, 2 * N).cuda() for i in range(8)}
    safetensors.torch.save_file(state, tmp_path / "weights")
    torch.save(state, tmp_path / "state")
    assert not any(torch.ops.lms.exposed(t) for t in state.values())
    big = torch.ones(10 * N, device="cuda")  # where weights are that would stay otherwise
    loaded = safetensors.torch.load_file(tmp_path / "weights", device="cuda")
    again = torch.load(tmp_path / "state", weights_only=True)
    for i in range(8):
        assert torch.equal(loaded[str(i)].cpu(), ramp(i, 2 * N))
        assert torch.equal(again[str(i)].cpu(), ramp(i, 2 * N))
    assert float(big.sum()) == 10 * N


def test_what_was_made_while_it_was_off(mode: str, lms: Any, device: Any) -> None:
    lms.disable()
    weights = [torch.full((2 * N,), float(i), device="cuda", requires_grad=True) for i in range(5)]
    sum((w * 2).sum() for w in weights).backward()  # type: ignore[union-attr]
    unused = torch.empty(2 * N, device="cuda")
    device.limit(30 * MIB)
    lms.enable(min_size=0)
    joined = torch.cat([torch.ones(2 * N, device="cuda") for _ in range(3)])
    assert float(joined.sum()) == 6 * N
    assert [float(w.detach()[-1]) for w in weights] == [float(i) for i in range(5)]
    assert all(float(w.grad[0]) == 2 for w in weights if w.grad is not None)
    assert unused.numel() == 2 * N


def test_a_profiler_with_stacks(mode: str, lms: Any) -> None:
    x = ramp(0).cuda()
    with torch.profiler.profile(with_stack=True):
        lms.reclaim()
        y = x.sin()
        lms.reclaim()
        z = y + x
    assert torch.equal(z.cpu(), ramp(0).sin() + ramp(0))
    del x, y, z  # that profiler of PyTorch 1.13 keeps the frames of Python 3.11


def test_nothing_is_printed_in_a_run_that_succeeds(
    mode: str, lms: Any, device: Any, capfd: Any
) -> None:
    device.limit(32 * MIB)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        kept = [torch.full((3 * N,), float(i), device="cuda") for i in range(16)]
        assert [float(x.sort().values[0]) for x in kept] == [float(i) for i in range(16)]
    assert [str(w.message) for w in warned] == []
    out, err = capfd.readouterr()
    assert "memory" not in out + err


def test_lists_when_another_process_takes_memory(mode: str, lms: Any, device: Any) -> None:
    lms.disable()
    device.limit(LARGE)
    lms.enable(min_size=0)  # parts of 64 MiB
    device.limit((34 if lms_device.is_plugin() else 24) * MIB)
    tensors = [torch.full((N,), float(i), device="cuda") for i in range(40)]
    torch._foreach_mul_(tensors, 2.0)
    torch._foreach_add_(tensors, tensors)
    assert [float(t[-1]) for t in tensors] == [4.0 * i for i in range(40)]


def test_the_message_of_a_shortage(mode: str, lms: Any, device: Any) -> None:
    device.limit(16 * MIB)
    held = torch.ones(8 * N, device="cuda")
    held.data_ptr()
    with pytest.raises(torch.cuda.OutOfMemoryError) as shortage:
        torch.ones(11 * N, device="cuda")
    text = str(shortage.value)
    assert "11.00 MiB" in text or str(11 * MIB) in text  # what was asked for, and no segment's size
    assert "torch.cuda.lms.release_pointer" in text
    assert "use smaller inputs for the operator that failed" not in text
    lms.release_pointer(held)
    assert float(torch.ones(11 * N, device="cuda").sum()) == 11 * N


def test_a_list_of_a_storage(mode: str, lms: Any) -> None:
    x = torch.arange(2000, dtype=torch.uint8, device="cuda")
    lms.reclaim()
    before = lms.stats()["lms.paged_in"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert x.untyped_storage().tolist() == [i % 256 for i in range(2000)]
    assert lms.stats()["lms.paged_in"] - before < 10
    gc.collect()
