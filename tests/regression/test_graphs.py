# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: nothing moves during a capture, and what a graph was captured with stays."""

from __future__ import annotations

import signal
import threading
import warnings
from typing import Any

import lms_device
import pytest
import torch
from lms_device import MIB
from lms_tensors import block

MODES = lms_device.device.modes


def captured(work: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


@pytest.mark.parametrize("mode", MODES)
def test_what_a_graph_was_captured_with_stays(lms: Any, device: Any, mode: str) -> None:
    """Its operators read and write the addresses that they were captured with."""
    weight, x, out = block(4, 3), block(4, 1), block(4, 0)
    other = block(4, 9)
    torch.cuda.synchronize()
    device.mode(mode)
    graph = captured(lambda: out.copy_(x * weight))
    lms.reclaim()
    assert torch.ops.lms.on_host(other)
    assert not any(torch.ops.lms.on_host(t) for t in (weight, x, out))
    filler = [block(4, -5) for _ in range(4)]  # in the place of whatever moved
    for value in (2.0, 7.0):
        x.fill_(value)
        graph.replay()
        lms.reclaim()
        assert (out == 3 * value).all().item()
    assert (other == 9).all().item() and all((f == -5).all().item() for f in filler)
    del graph
    lms.release_pointer(weight)
    assert torch.ops.lms.evict(weight)
    assert (weight == 3).all().item()


@pytest.mark.parametrize("on", [True, False])
def test_random_operators_in_a_capture(lms: Any, on: bool) -> None:
    """Of a size that might run short, and would then be run again: nothing is, during a capture."""
    x = block(2)
    torch.rand_like(x)
    torch.cuda.synchronize()
    if not on:
        lms.disable()
    found: list[torch.Tensor] = []
    graph = captured(lambda: found.append(torch.nn.functional.dropout(x)))
    graph.replay()
    first = found[0].clone()
    graph.replay()
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(first, found[0])


def test_a_capture_while_it_is_off(lms: Any) -> None:
    """What the graph uses is held when Large Model Support is on again."""
    lms.disable()
    weight, x, out = block(4, 3), block(4, 1), block(4, 0)
    torch.cuda.synchronize()
    graph = captured(lambda: out.copy_(x * weight))
    lms.enable()
    x.mul_(1)
    lms.reclaim()
    assert not any(torch.ops.lms.on_host(t) for t in (weight, x, out))
    filler = [block(4, -5) for _ in range(4)]
    graph.replay()
    assert (out == 3).all().item() and all((f == -5).all().item() for f in filler)
    assert torch.ops.lms.active()
    lms.disable()
    assert not torch.ops.lms.active()


def test_what_was_captured_before_the_first_enable_is_refused(program: Any) -> None:
    """Nothing noted what the graph uses."""
    out = program(
        """
        import torch
        x = torch.ones(1 << 18, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
        for _ in range(2):
            try:
                torch.cuda.lms.enable()
            except RuntimeError as error:
                print("refused:", error)
            assert not torch.cuda.lms.is_enabled()
        """
    )
    assert out.count("refused: Large Model Support cannot be enabled because a CUDA graph was") == 2


@pytest.mark.parametrize("whose", ["own", "another"])
def test_it_is_not_turned_on_during_a_capture(lms: Any, whose: str) -> None:
    """It would wait for the device, and so break the capture."""
    lms.disable()
    x, raised = block(1), []

    def enable() -> None:
        with pytest.raises(RuntimeError, match="while a CUDA graph is captured; enable it before"):
            lms.enable(min_size=0)
        raised.append(True)

    def work() -> None:
        x.add_(1)
        thread = threading.Thread(target=enable)
        thread.start() if whose == "another" else enable()
        thread.join() if whose == "another" else None
        x.add_(1)

    graph = captured(work)
    assert raised and not lms.is_enabled()
    graph.replay()
    assert (x == 3).all().item()
    lms.enable(min_size=0)


@pytest.mark.parametrize("why", ["raised", "refused"])
def test_what_could_not_be_captured_keeps_nothing(lms: Any, device: Any, why: str) -> None:
    """PyTorch's allocator goes on as if it were captured, up to 2.6: nothing could move again."""
    device.limit(32 * MIB)
    x = block(1)

    def work() -> None:
        x.add_(1)
        if why == "raised":
            raise ValueError
        x.tolist()

    for _ in range(2):
        with pytest.raises((ValueError, RuntimeError)):
            captured(work)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises((ValueError, RuntimeError)), torch.cuda.graph(graph):
        work()
    kept = [block(4, i) for i in range(12)]
    assert lms.stats()["lms.paged_out"] > 0
    assert all((t == i).all().item() for i, t in enumerate(kept))


def test_a_signal_while_a_capture_begins_leaves_none(
    lms: Any, device: Any, monkeypatch: Any
) -> None:
    """Seen when it has begun for the engine, and before whoever asked for it knows."""

    class ToldError(Exception):
        pass

    def tell(*_: Any) -> None:
        raise ToldError

    def begin() -> Any:
        capture = real()
        signal.raise_signal(signal.SIGUSR1)
        return capture

    device.limit(32 * MIB)
    operators = lms.library.ops()
    real = operators.begin_capture
    before = signal.signal(signal.SIGUSR1, tell)
    monkeypatch.setattr(operators, "begin_capture", begin)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ToldError), torch.cuda.graph(graph):
        pass
    monkeypatch.undo()
    signal.signal(signal.SIGUSR1, before)
    kept = [block(4, i) for i in range(12)]
    assert lms.stats()["lms.paged_out"] > 0
    assert all((t == i).all().item() for i, t in enumerate(kept))


def test_a_capture_begins_on_a_full_device(lms: Any, device: Any) -> None:
    """What the graph keeps of random numbers has room, which must be made before it begins."""
    device.limit(32 * MIB)
    x = block(1)
    lms.exclude(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        small = [block(0.5, i) for i in range(4)]  # a segment of its pool
    torch.cuda.synchronize()
    kept = [block(14, i) for i in range(2)]  # all that there is
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        x.add_(1)
        graph.capture_end()
    torch.cuda.synchronize()
    graph.replay()
    assert (x == 2).all().item()
    assert all((t == i).all().item() for each in (kept, small) for i, t in enumerate(each))


def test_room_for_a_capture_is_held_until_it_begins(
    lms: Any, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another thread gives back and takes before that is not it."""
    stream, begin, taken = torch.cuda.Stream(), torch.ops.lms.begin_capture, []

    def begin_capture() -> Any:
        torch.cuda.empty_cache()
        device.limit(torch.cuda.memory_reserved())
        taken.append(begin())
        return taken[0]

    monkeypatch.setattr(lms.library.ops(), "begin_capture", begin_capture)
    x = block(1)
    lms.exclude(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        graph.capture_end()
    assert taken


def test_a_capture_that_has_no_room_to_begin(program: Any) -> None:
    """It fails, and the graph's end is not the process's."""
    out = program(
        """
import gc
import torch
lms = torch.cuda.lms
lms.enable()
lms.graphs._make_room = lambda: None  # another thread has taken it
full = []
for size in (1 << 20, 1 << 19):
    try:
        while True:
            full.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            lms.exclude(full[-1])
    except torch.cuda.OutOfMemoryError:
        pass
graph = torch.cuda.CUDAGraph()
with torch.cuda.stream(torch.cuda.Stream()):
    try:
        graph.capture_begin()
        graph.capture_end()  # of versions that find room
    except torch.cuda.OutOfMemoryError:
        print("no room")
del graph
gc.collect()
print("alive")
""",
        memory=64 * MIB,
    )
    assert out.split()[-1] == "alive"


def test_nothing_moves_during_a_capture(lms: Any, device: Any) -> None:
    device.limit(32 * MIB)
    kept = [block(4, i) for i in range(5)]  # 20 MiB
    x, moved = block(1), []

    def work() -> None:
        y = x + 1
        moved.append(lms.reclaim())
        moved.append(int(torch.ops.lms.evict(kept[0])))
        says = r"2[01]\.00 MiB cannot move while a CUDA graph is captured.*before the capture"
        with pytest.raises(torch.OutOfMemoryError, match=says):
            torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
        x.copy_(y)

    before = device.counters()["d2h_bytes"]
    graph = captured(work)
    assert moved == [0, 0] and device.counters()["d2h_bytes"] == before
    graph.replay()
    torch.cuda.synchronize()
    assert (x == 2).all().item()
    torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")  # now there is a way
    assert device.counters()["d2h_bytes"] > before
    assert all((t == i).all().item() for i, t in enumerate(kept))


def test_blocks_of_a_graph_stay(lms: Any) -> None:
    x, made = block(2, 5), []
    graph = captured(lambda: made.append(x * 2))
    graph.replay()
    assert not torch.ops.lms.evict(made[0])
    lms.reclaim()
    filler = block(2, 1)
    graph.replay()
    assert (made[0] == 10).all().item() and (filler == 1).all().item()


@pytest.mark.parametrize("mode", MODES)
def test_a_capture_of_what_came_in_on_another_stream(lms: Any, device: Any, mode: str) -> None:
    """A graph cannot wait for the copy in, which is not part of it."""
    x, out = block(2, 6), block(2, 0)
    lms.reclaim()
    device.mode(mode)
    x.add_(1)  # comes in, on the default stream
    out.mul_(1)
    graph = captured(lambda: out.copy_(x))  # on a stream of the capture's own
    lms.reclaim()
    graph.replay()
    assert (out == 7).all().item()


def test_a_capture_of_what_is_out_is_refused(lms: Any) -> None:
    x = block(2, 6)
    lms.reclaim()
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="graph is captured"):
        warnings.simplefilter("ignore")  # that the graph is empty
        captured(lambda: x + 1)
    assert (x == 6).all().item()
    with lms.pin(x):
        graph = captured(lambda: x.add_(1))
    lms.reclaim()
    graph.replay()
    assert (x == 7).all().item()


def test_a_tensor_in_host_memory_dies_during_a_capture(lms: Any) -> None:
    x, gone = block(2, 6), [block(2, 1)]
    x.add_(0)
    assert torch.ops.lms.evict(gone[0])
    # What looks for host memory that is free asks whether the dead one's is.
    graph = captured(lambda: (gone.clear(), torch.ops.lms.trim_host(), x.add_(1)))
    graph.replay()
    later = block(2, 3)
    assert torch.ops.lms.evict(later)  # host memory is used again
    assert (x == 7).all().item() and (later == 3).all().item()


@pytest.mark.parametrize("mode", MODES)
def test_training_in_a_graph_beside_what_does_not_fit(lms: Any, device: Any, mode: str) -> None:
    """Static inputs and weights stay, everything else moves; the numbers are those without."""

    def run(graphed: bool) -> list[float]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)
        )
        net, x = net.cuda(), torch.zeros(16, 64, device="cuda")
        optimiser = torch.optim.SGD(net.parameters(), 0.1)
        losses, loss = [], torch.zeros((), device="cuda")

        def step() -> None:
            optimiser.zero_grad(set_to_none=False)
            value = net(x).square().mean()
            value.backward()
            optimiser.step()
            loss.copy_(value.detach())

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = captured(step) if graphed else None
        kept = []
        for i in range(6):
            x.copy_(torch.randn(16, 64, generator=torch.Generator().manual_seed(i)))
            graph.replay() if graph else step()
            losses.append(loss.item())
            kept.append(block(6, i))
        assert all((t == i).all().item() for i, t in enumerate(kept))
        return losses

    lms.disable()
    want = run(graphed=False)
    lms.enable(min_size=0)
    device.limit(32 * MIB)
    device.mode(mode)
    assert run(graphed=True) == want
    assert lms.stats()["lms.paged_out"] > 0


def test_a_page_in_ahead_of_need_during_a_capture(lms: Any) -> None:
    """There is no room for it then, which is no error."""
    ahead, x = block(4, 3), block(1, 1)
    assert torch.ops.lms.evict(ahead)
    x.mul_(1)
    torch.cuda.synchronize()
    came = []
    graph = captured(lambda: (x.mul_(1), came.append(torch.ops.lms.page_in_if_free(ahead))))
    assert came == [False]
    del graph
    assert torch.ops.lms.page_in_if_free(ahead)
    assert (ahead == 3).all().item()


@pytest.mark.parametrize("on", [True, False])
def test_the_seed_of_a_graphs_random_numbers_stays(lms: Any, on: bool) -> None:
    """A replay reads it by a pointer that no operator has told of, and another capture fills it on
    another stream, when nothing can come in."""
    x, graphs = block(1), []
    torch.cuda.synchronize()
    for _ in range(2):
        if not on:
            lms.disable()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            x.mul_(1)
        lms.enable(min_size=0)
        lms.reclaim()
        assert lms.stats()["lms.on_host"] == 0
    torch.cuda.synchronize()
    graphs.clear()


def test_the_seed_of_a_generator_that_a_graph_was_told_of(lms: Any) -> None:
    """It is made before the capture begins, on another stream."""
    x, graph = block(1), torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not needed any more
        graph.register_generator_state(torch.Generator("cuda"))
    with lms.pin(x):
        lms.reclaim()
        assert lms.stats()["lms.on_host"] == 0
        with torch.cuda.graph(graph):
            x.add_(1)
    graph.replay()
    assert (x == 2).all().item()
