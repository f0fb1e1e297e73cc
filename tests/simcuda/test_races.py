# SPDX-License-Identifier: Apache-2.0
"""The order checker: what it reports, what it must not report, and how it says it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

import simcuda
from simcuda import Race, SimcudaError
from simcuda.order import line_of, parse, read_suppressions

device = simcuda.device
engine = pytest.mark.engine
N = 1 << 16


def taken() -> list[Race]:
    """The races up to here; the test answers for them."""
    races = device.races()
    device.clear_races()
    return races


def pairs(races: list[Race]) -> set[tuple[str, str]]:
    return {(race.first.name, race.second.name) for race in races}


# ---- what a race says


@engine
def test_a_race_names_both_operations_the_memory_and_the_line(torch: Any) -> None:
    x, side = torch.zeros(N, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    x.add_(1)
    with torch.cuda.stream(side):
        x[16:32].fill_(2)  # the race
    (race,) = taken()
    assert (race.first.name, race.first.access) == ("aten::add_", "write")
    assert (race.second.name, race.second.access) == ("aten::fill_", "write")
    assert race.first.stream.startswith("the default stream")
    assert race.second.stream != race.first.stream
    assert race.first.number < race.second.number
    assert (race.memory, race.bytes) == ("device memory", 64)
    assert race.base + race.offset == x.data_ptr() + 64
    text = Path(__file__).read_text().splitlines()
    line = 1 + next(i for i, t in enumerate(text) if t.endswith("# the race"))
    assert race.line == f"{__file__}:{line} in {race.line.rsplit(' ', 1)[1]}"
    assert "must wait for an event recorded after operation" in race.missing


@engine
def test_one_pair_is_told_once_and_counted(torch: Any, capfd: Any) -> None:
    x, side = torch.zeros(N, device="cuda"), torch.cuda.Stream()
    for _ in range(5):
        torch.cuda.synchronize()
        x.add_(1)
        with torch.cuda.stream(side):
            x.fill_(2)
    (race,) = taken()
    assert race.count == 5
    assert capfd.readouterr().err.count("simcuda: RACE") == 1


def test_the_line_is_the_programs_own() -> None:
    stack = (
        "Current thread 0x01 (most recent call first):\\n"
        '  File "/x/site-packages/torch/cuda/memory.py", line 3 in empty\\n'
        '  File "/home/me/train.py", line 12 in step\\n'
        '  File "/home/me/train.py", line 40 in <module>\\n'
    ).replace("\\n", "\n")
    assert line_of(stack) == "/home/me/train.py:12 in step"
    assert line_of("") == ""


def test_records_are_read() -> None:
    fields = ["a", "s", "read", "1", "b", "t", "write", "2", "m", "16", "4", "8", "3", "w", "st"]
    (race,) = parse("\x1f".join(fields) + "\x1f\x1e")
    assert (race.first.number, race.second.access, race.base, race.count) == (1, "write", 16, 3)
    assert parse("") == []


# ---- what orders


def two(torch: Any) -> tuple[Any, Any, Any]:
    x = torch.zeros(N, device="cuda")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    return x, first, second


def by_nothing(torch: Any, first: Any, second: Any) -> None:
    pass


def by_event(torch: Any, first: Any, second: Any) -> None:
    second.wait_event(first.record_event())


def by_event_sync(torch: Any, first: Any, second: Any) -> None:
    first.record_event().synchronize()


def by_stream_sync(torch: Any, first: Any, second: Any) -> None:
    first.synchronize()


def by_device_sync(torch: Any, first: Any, second: Any) -> None:
    torch.cuda.synchronize()


def by_query(torch: Any, first: Any, second: Any) -> None:
    while not first.query():
        pass


def by_a_third(torch: Any, first: Any, second: Any) -> None:
    third = torch.cuda.Stream()
    third.wait_stream(first)
    second.wait_stream(third)


def by_the_wrong_way(torch: Any, first: Any, second: Any) -> None:
    first.wait_stream(second)


def by_the_other_device(torch: Any, first: Any, second: Any) -> None:
    torch.cuda.synchronize(1)


ORDERS: dict[Callable[..., None], bool] = {
    by_nothing: False,
    by_event: True,
    by_event_sync: True,
    by_stream_sync: True,
    by_device_sync: True,
    by_query: True,
    by_a_third: True,
    by_the_wrong_way: False,
    by_the_other_device: False,
}


@engine
@pytest.mark.parametrize("way", ORDERS, ids=lambda w: w.__name__)
def test_what_orders_two_streams(torch: Any, mode: str, way: Callable[..., None]) -> None:
    x, first, second = two(torch)
    with torch.cuda.stream(first):
        x.add_(1)
    way(torch, first, second)
    with torch.cuda.stream(second):
        x.mul_(2)
    assert (pairs(taken()) == set()) == ORDERS[way]


@engine
def test_an_event_recorded_too_early_orders_nothing(torch: Any, mode: str) -> None:
    x, first, second = two(torch)
    event = first.record_event()
    with torch.cuda.stream(first):
        x.add_(1)
    second.wait_event(event)
    with torch.cuda.stream(second):
        x.mul_(2)
    assert pairs(taken()) == {("aten::add_", "aten::mul_")}


@engine
def test_reads_need_no_order(torch: Any, mode: str) -> None:
    x, first, second = two(torch)
    for stream in (first, second, first):
        with torch.cuda.stream(stream):
            x.sum()
    assert taken() == []
    with torch.cuda.stream(first):
        x.add_(1)
    assert [r.first.access for r in taken()] == ["read"]


@engine
def test_memory_that_is_used_again_races_with_its_former_use(torch: Any, mode: str) -> None:
    """The allocator gives a freed block to the stream that made it; another stream still reads."""
    x, _, side = two(torch)
    with torch.cuda.stream(side):
        x.sum()
    place = x.data_ptr()
    del x
    y = torch.ones(N, device="cuda")
    assert y.data_ptr() == place
    assert [r.first.access for r in taken()] == ["read"]


@engine
def test_blocking_streams_and_the_default_stream_are_in_order(torch: Any, mode: str) -> None:
    runtime = device._runtime
    assert runtime is not None
    x, host = torch.zeros(4, device="cuda"), torch.ones(4).pin_memory()
    handle = ctypes.c_void_p()
    runtime.cudaStreamCreate(ctypes.byref(handle))
    arguments = [ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(host.data_ptr())]
    for _ in range(3):
        runtime.cudaMemcpyAsync(*arguments, ctypes.c_size_t(16), 4, handle)
        x.add_(1)
    runtime.cudaStreamDestroy(handle)
    x.mul_(2)
    torch.cuda.synchronize()
    assert taken() == []


@engine
def test_a_function_of_the_hosts_tells_the_host(torch: Any) -> None:
    runtime = device._runtime
    assert runtime is not None
    x, first, second = two(torch)
    called: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: called.append(1))
    with torch.cuda.stream(first):
        x.add_(1)
    runtime.cudaLaunchHostFunc(ctypes.c_void_p(first.cuda_stream), function, None)
    assert called
    with torch.cuda.stream(second):
        x.mul_(2)
    assert taken() == []


# ---- queries


@engine
def test_a_strict_query_orders_only_what_the_host_knew(torch: Any) -> None:
    device.set_queries("strict")
    x, first, second = two(torch)
    with torch.cuda.stream(first):
        x.add_(1)
    event = first.record_event()
    assert not event.query()
    assert not first.query()
    with torch.cuda.stream(second):
        x.mul_(2)
    assert pairs(taken()) == {("aten::add_", "aten::mul_")}
    event.synchronize()
    assert event.query()
    assert first.query()


@engine
def test_who_asks_long_enough_gets_an_answer(torch: Any) -> None:
    device.set_queries("strict")
    x, first, second = two(torch)
    with torch.cuda.stream(first):
        x.add_(1)
    event = first.record_event()
    while not event.query():
        pass
    with torch.cuda.stream(second):
        x.mul_(2)
    assert taken() == []


# ---- views


@engine
def test_disjoint_columns_do_not_race(torch: Any, mode: str) -> None:
    x, first, second = two(torch)
    columns = x.view(256, 256)
    with torch.cuda.stream(first):
        columns[:, :128].add_(1)
        columns[:, 255].add_(1)
    with torch.cuda.stream(second):
        columns[:, 128:255].mul_(2)
    assert taken() == []
    with torch.cuda.stream(second):
        columns[:, 127:200].mul_(2)
    assert len(taken()) == 1


@engine
def test_every_second_element(torch: Any) -> None:
    x, first, second = two(torch)
    with torch.cuda.stream(first):
        x[::2].add_(1)
    with torch.cuda.stream(second):
        x[1::2].mul_(2)
    assert taken() == []
    with torch.cuda.stream(second):
        x[::3].mul_(2)
    assert len(taken()) == 1


@engine
def test_a_copy_of_rows_touches_the_rows_alone(torch: Any) -> None:
    runtime = device._runtime
    assert runtime is not None
    x, first, second = two(torch)
    host = torch.zeros(N).pin_memory()

    def copy(stream: Any, column: int) -> None:
        to = ctypes.c_void_p(x.data_ptr() + column)
        arguments = (to, 256, ctypes.c_void_p(host.data_ptr()), 256, 64, 16, 4)
        wide = [ctypes.c_size_t(a) if isinstance(a, int) else a for a in arguments[:-1]]
        runtime.cudaMemcpy2DAsync(*wide, arguments[-1], ctypes.c_void_p(stream.cuda_stream))

    copy(first, 0)
    copy(second, 64)
    assert taken() == []
    copy(second, 60)
    assert pairs(taken()) == {("copy h2d", "copy h2d")}


# ---- the host


@engine
def test_the_cpu_reads_what_is_still_being_copied(torch: Any, mode: str) -> None:
    x, host = torch.ones(N, device="cuda"), torch.zeros(N).pin_memory()
    torch.cuda.synchronize()
    host.copy_(x, non_blocking=True)
    host.sum()
    (race,) = taken()
    assert (race.first.name, race.second.name) == ("copy d2h", "aten::sum")
    assert race.memory == "pinned host memory"
    assert race.missing.startswith("the host must wait for operation")
    torch.cuda.synchronize()
    host.sum()
    assert taken() == []


@engine
def test_the_cpu_writes_what_is_still_being_copied(torch: Any, mode: str) -> None:
    x, host = torch.ones(N, device="cuda"), torch.zeros(N).pin_memory()
    torch.cuda.synchronize()
    x.copy_(host, non_blocking=True)
    host.sum()  # reading is no race
    assert taken() == []
    host[4:8].zero_()
    (race,) = taken()
    assert (race.first.access, race.second.access, race.bytes) == ("read", "write", 16)
    x.copy_(host, non_blocking=True)
    other = torch.ones(N)
    host.copy_(other)
    assert ("copy h2d", "aten::copy_") in pairs(taken())
    torch.cuda.synchronize()


@engine
def test_moving_a_pinned_tensor_is_no_use_by_the_cpu(torch: Any, mode: str) -> None:
    host = torch.zeros(N).pin_memory()
    x = host.to("cuda", non_blocking=True)
    host.is_pinned(), host.view(4, -1).shape, torch.empty_like(host), host.numel()
    again = host.cuda(non_blocking=True)
    again.copy_(x)
    assert taken() == []


@engine
def test_host_memory_given_back_in_use(torch: Any) -> None:
    runtime = device._runtime
    assert runtime is not None
    x, pointer = torch.ones(N, device="cuda"), ctypes.c_void_p()
    torch.cuda.synchronize()
    for wait in (True, False):
        runtime.cudaHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(4 * N), 0)
        arguments = [pointer, ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(4 * N)]
        runtime.cudaMemcpyAsync(*arguments, 4, None)
        if wait:
            torch.cuda.synchronize()
        runtime.cudaFreeHost(pointer)
        assert pairs(taken()) == (set() if wait else {("copy d2h", "cudaFreeHost")})


@engine
def test_cuda_free_waits_for_its_own_device(torch: Any) -> None:
    runtime = device._runtime
    assert runtime is not None
    for used_by in (0, 1):
        pointer = ctypes.c_void_p()
        runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096))
        with torch.cuda.device(used_by):
            stream = torch.cuda.Stream()
            handle = ctypes.c_void_p(stream.cuda_stream)
            runtime.cudaMemsetAsync(pointer, 1, ctypes.c_size_t(4096), handle)
        runtime.cudaFree(pointer)
        assert pairs(taken()) == ({("memset", "cudaFree")} if used_by else set())
        torch.cuda.synchronize(1)


# ---- other kinds of memory and of commands


@engine
def test_sparse_tensors(torch: Any, mode: str) -> None:
    _, first, second = two(torch)
    indices, values = torch.tensor([[0, 3], [1, 2]]), torch.ones(2)
    sparse = torch.sparse_coo_tensor(indices, values, (4, 4)).cuda().coalesce()
    dense = torch.ones(4, 4, device="cuda")
    torch.cuda.synchronize()
    inner = sparse.values()
    with torch.cuda.stream(first):
        inner.add_(1)
    with torch.cuda.stream(second):
        torch.sparse.mm(sparse, dense)
    found = taken()
    assert {(r.first.name, r.second.access) for r in found} == {("aten::add_", "read")}


@engine
@pytest.mark.parametrize("into", ["new memory", "what it has to grow"])
def test_an_operator_that_finds_no_memory_touches_nothing(torch: Any, mode: str, into: str) -> None:
    x, first, second = two(torch)
    with torch.cuda.stream(first):
        out = None if into == "new memory" else torch.empty(0, device="cuda")
    device.capacity = device.used
    with torch.cuda.stream(first), pytest.raises(torch.cuda.OutOfMemoryError):
        torch.add(x, 1, out=out)
    with torch.cuda.stream(second):
        x.add_(1)
    assert taken() == []
    device.capacity = 256 << 20
    with torch.cuda.stream(first):
        torch.add(x, 1, out=out)
    found = taken()
    assert pairs(found) == {("aten::add_", "aten::add")}
    assert [race.second.access for race in found] == ["read"]


@engine
def test_the_launch_of_a_graph_is_its_commands(torch: Any, mode: str) -> None:
    x, y, side = torch.ones(N, device="cuda"), torch.ones(N, device="cuda"), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.copy_(x)
        x.mul_(2)
    torch.cuda.synchronize()
    assert taken() == []
    with torch.cuda.stream(side):
        x.add_(1)
    graph.replay()
    assert ("aten::add_", "copy d2d") in pairs(taken())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    assert taken() == []


# ---- the command line


RACE = """
    import torch
    x, side = torch.zeros(1 << 16, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    x.add_(1)
    with torch.cuda.stream(side):
        x.fill_(2)
    print("done")
"""


@engine
def test_report_goes_on_and_says_what_to_do(loaded: Any, run: Run) -> None:
    done = run(RACE, "--order", "report")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("simcuda: RACE aten::add_ (writes") == 1
    assert "1 pairs of operations are not ordered" in done.stderr
    assert "program.py:7 in <module>" in done.stderr
    assert "--order-trace" in done.stderr
    assert "--order-suppressions" in done.stderr
    number = done.stderr.split("--order-trace ")[1].split()[0]
    traced = run(RACE, "--order", "report", "--order-trace", number)
    assert f"operation {number} is aten::add_" in traced.stderr
    assert 'program.py", line 5 in' in traced.stderr


@engine
def test_error_refuses_the_second_operation(loaded: Any, run: Run) -> None:
    done = run(RACE, "--order", "error")
    assert (done.returncode, done.stdout) == (1, "")
    assert "CUDA error: the simulated device refuses: a race: aten::add_" in done.stderr


@engine
def test_off_is_the_default(loaded: Any, run: Run) -> None:
    done = run(RACE + "    import simcuda; simcuda.device.races()")
    assert (done.returncode, done.stdout) == (2, "done\n")
    assert "order is not checked; load the device with order='report'" in done.stderr
    assert "RACE" not in done.stderr


@engine
def test_a_suppressed_pair_is_left_out_and_counted(loaded: Any, run: Run, tmp_path: Path) -> None:
    table = tmp_path / "known.txt"
    table.write_text(
        "# ours\n\naten::add_ then aten::fi* because the test says so\n"
        "copy h2d then copy * on 8 bytes because it never happens\n"
    )
    done = run(RACE, "--order", "report", "--order-suppressions", str(table))
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "RACE" not in done.stderr
    assert "1 left out: aten::add_ then aten::fi*, because the test says so" in done.stderr
    assert "no longer needed: copy h2d then copy *" in done.stderr


def test_a_line_that_is_no_suppression_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "known.txt"
    table.write_text("aten::add_ then aten::mul_\n")
    with pytest.raises(SimcudaError, match=r"known.txt:1 is no suppression; write it like"):
        read_suppressions(table)
    with pytest.raises(SimcudaError, match="cannot be read"):
        read_suppressions(tmp_path / "none")
    table.write_text("a b then c on 16 bytes because of x\n")
    (found,) = read_suppressions(table)
    assert (found.first, found.second, found.bytes, found.reason) == ("a b", "c", 16, "of x")
