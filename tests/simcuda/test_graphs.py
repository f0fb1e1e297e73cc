# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: what is captured, what a replay does, what a capture forbids."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import MIB, Run

import simcuda

pytestmark = pytest.mark.engine
device = simcuda.device


def capture(torch: Any, work: Any, **options: Any) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        work()
    return graph


def test_the_status_of_a_capture_can_be_asked(torch: Any) -> None:
    asked: list[bool] = []
    assert not torch.cuda.is_current_stream_capturing()
    capture(torch, lambda: asked.append(torch.cuda.is_current_stream_capturing()))
    assert asked == [True]
    assert not torch.cuda.is_current_stream_capturing()


def test_a_capture_leaves_no_trace(torch: Any, mode: str) -> None:
    x, out, counter = torch.arange(4.0).cuda(), torch.zeros(4).cuda(), torch.zeros(1).cuda()
    torch.cuda.synchronize()
    before = device.counters()

    def work() -> None:
        counter.add_(1)
        out.copy_(x * 2)

    graph = capture(torch, work)
    assert (counter.item(), out.tolist()) == (0.0, [0.0] * 4)
    assert device.counters()["d2d"] == before["d2d"]
    graph.replay()
    x.fill_(5)
    graph.replay()
    assert (counter.item(), out.tolist()) == (2.0, [10.0] * 4)
    assert device.counters()["d2d"] == before["d2d"] + 2


def test_training_in_a_graph_equals_training_without(torch: Any, mode: str) -> None:
    """As torch's own documentation does it: forward, backward and optimiser in one graph."""

    def make() -> tuple[Any, Any]:
        torch.manual_seed(0)
        nn = torch.nn
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Dropout(0.3), nn.Linear(144, 5),
        ).cuda()  # fmt: skip
        return model, torch.optim.AdamW(model.parameters(), 0.01, capturable=True)

    x, y = torch.empty(4, 3, 8, 8).cuda(), torch.empty(4, dtype=torch.long).cuda()

    def step(model: Any, optimizer: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def data(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x.copy_(torch.randn(4, 3, 8, 8, generator=generator))
        y.copy_(torch.randint(0, 5, (4,), generator=generator))

    def warm_up(model: Any, optimizer: Any) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for seed in range(2):
                data(seed)
                step(model, optimizer)
        torch.cuda.current_stream().wait_stream(side)

    def results(replay: bool) -> list[Any]:
        model, optimizer = make()
        warm_up(model, optimizer)
        graph, loss = torch.cuda.CUDAGraph(), None
        if replay:
            optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(graph):
                loss = step(model, optimizer)
        torch.manual_seed(9)
        found = []
        for seed in range(2, 6):
            data(seed)
            if replay:
                graph.replay()
            else:
                loss = step(model, optimizer)
            found.append(loss.item())
        return found + [t.detach().cpu() for t in model.state_dict().values()]

    expected, got = results(False), results(True)
    assert expected[:4] == got[:4]
    assert len(set(got[:4])) == 4
    assert all(map(torch.equal, expected[4:], got[4:]))


def test_random_numbers_go_on_over_replays(torch: Any) -> None:
    drawn = torch.empty(6, device="cuda")
    graph = capture(torch, lambda: drawn.copy_(torch.rand(6, device="cuda") + torch.rand(1).item()))
    torch.cuda.manual_seed(4)
    first = torch.rand(6, device="cuda").cpu()
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(drawn.cpu())
    torch.cuda.manual_seed(4)
    assert torch.equal(torch.rand(6, device="cuda").cpu(), first)
    offset = replayed[0] - torch.rand(6, device="cuda").cpu()
    assert torch.allclose(offset, offset[0].expand(6), atol=1e-6)
    assert not torch.equal(replayed[0], replayed[1])


def test_make_graphed_callables(torch: Any, mode: str) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).cuda()
    x = torch.randn(4, 8).cuda().requires_grad_()
    plain(x).sum().backward()
    expected = [plain[0].weight.grad.clone(), x.grad.clone()]
    plain.zero_grad(set_to_none=True)
    graphed = torch.cuda.make_graphed_callables(plain, (torch.zeros_like(x).requires_grad_(),))
    x.grad = None
    graphed(x).sum().backward()
    assert all(map(torch.equal, expected, [plain[0].weight.grad, x.grad]))


def test_a_second_stream_takes_part(torch: Any) -> None:
    x, y, side = torch.ones(4).cuda(), torch.zeros(4).cuda(), torch.cuda.Stream()

    def work() -> None:
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            y.add_(x)
        current.wait_stream(side)

    graph = capture(torch, work)
    graph.replay()
    assert y.tolist() == [1.0] * 4
    with torch.cuda.stream(side):
        assert not torch.cuda.is_current_stream_capturing()


# In processes of their own, forked before CUDA is used: torch 2.6.0 does not get over a failed
# capture.
FORBIDDEN = """
    import ctypes, os
    import simcuda, torch

    def malloc():
        pointer = ctypes.c_void_p()
        error = simcuda.device._runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(512))
        torch.cuda.check_error(error)

    def leave_unjoined():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)

    def ask_for_captured():  # also where other calls are allowed
        event.record()
        try:
            event.query()
        except RuntimeError as error:
            assert "last recorded in a capturing stream" in str(error)

    for name in ("item", "synchronize", "pageable", "query", "captured", "malloc", "unjoined"):
        if os.fork() == 0:
            break
        os.wait()
    else:
        os._exit(0)
    x, event = torch.ones(4).cuda(), torch.cuda.Event()
    event.record()
    work = {
        "item": lambda: x[0].item(),
        "synchronize": torch.cuda.synchronize,
        "pageable": lambda: x.copy_(torch.zeros(4)),
        "query": event.query,
        "captured": ask_for_captured,
        "malloc": malloc,
        "unjoined": leave_unjoined,
    }[name]
    try:
        mode = "relaxed" if name == "captured" else "global"
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode):
            work()
        print(name, "passed")
    except RuntimeError as error:
        text = str(error)
        reasons = ("not permitted when stream is capturing", "previous error", "must be pinned",
                   "unless the CPU tensor is pinned", "unjoined work")
        print(name, next(("refused" for r in reasons if r in text), text))
    torch.cuda.synchronize()
    print(x.tolist(), torch.cuda.is_current_stream_capturing(), flush=True)
    os._exit(0)
"""


def test_what_a_capture_forbids(run: Run) -> None:
    done = run(FORBIDDEN)
    lines = done.stdout.splitlines()
    refused, after = lines[::2], lines[1::2]
    cases = ("item", "synchronize", "pageable", "query", "captured", "malloc", "unjoined")
    assert refused == [f"{case} refused" for case in cases], done.stderr
    assert after == ["[1.0, 1.0, 1.0, 1.0] False"] * 7  # the device goes on


def test_other_calls_may_allocate_in_a_thread_local_capture(torch: Any) -> None:
    from threading import Thread

    def allocate() -> None:
        kept.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()

    kept: list[Any] = []

    def work() -> None:
        thread = Thread(target=allocate)
        thread.start()
        thread.join()

    capture(torch, work, capture_error_mode="thread_local")
    assert kept


def test_a_result_of_another_shape_is_refused(torch: Any) -> None:
    x = torch.tensor([1.0, 0.0, 1.0]).cuda()
    graph = capture(torch, lambda: torch.nonzero(x))
    x[1] = 1
    with pytest.raises(RuntimeError, match="the replay of aten::nonzero"):
        graph.replay()
    torch.cuda.synchronize()


def test_a_pool_lives_as_long_as_its_graph(torch: Any) -> None:
    kept: list[Any] = []
    before = device.used
    graph = capture(torch, lambda: kept.append(torch.zeros(8 * MIB, device="cuda")))
    pools = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
    assert tuple(graph.pool()) in pools
    kept.clear()
    torch.cuda.empty_cache()
    assert device.used >= before + 32 * MIB
    graph.replay()
    del graph
    torch.cuda.empty_cache()
    assert device.used == before
