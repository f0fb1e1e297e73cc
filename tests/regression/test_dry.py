# SPDX-License-Identifier: Apache-2.0
"""The engine at true sizes, on the device that computes nothing."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from lms_device import MIB, TOOLS, is_plugin, torch_version

from simcuda import bounds, trace

GIB = 1 << 30
DRY = {"SIMCUDA_DRY": "1", "SIMCUDA_PROFILE": "v100-32gb-pcie3"}

TRAIN = f"""
    import hashlib, json, sys
    sys.path.insert(0, {str(TOOLS)!r})
    import torch
    import simcuda
    from lmsbench import models

    def train(model, x, y, steps):
        model = model.cuda()
        optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for _ in range(steps):
            optimiser.zero_grad()
            models.loss_of(model(x.cuda()), y.cuda()).backward()
            optimiser.step()
        torch.cuda.synchronize()

    def run_short():  # of memory: until then the plug-in asks for no free block
        tensors = [torch.ones(1 << 28, device="cuda") for _ in range(5)]
        del tensors
        torch.cuda.empty_cache()

    def until_there(tensor):  # for a stream that nothing else is queued on
        side = torch.cuda.Stream()
        with torch.cuda.stream(side), torch.cuda.lms.pin(tensor):
            side.synchronize()
        return simcuda.device.times()["now"]
    """

# What the allocator did, where, and what was copied; dry, also what time it was.
# Host memory of one segment alone: a thread brings more ahead, by real time, and the copy of what
# goes on in the next segment is made in parts.
TWICE = """
    torch.cuda.lms.enable(min_size=0, host_limit=64 << 20)
    torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=10**6)
    {train}
    segments, events = {{}}, []
    for event in torch.cuda.memory._snapshot()["device_traces"][0]:
        action, size, address = (event[k] for k in ("action", "size", "addr"))
        if action == "snapshot":
            continue  # a look of the plug-in's
        if action == "segment_alloc":
            segments[address] = size, len(segments)
        inside = [(n, address - s) for s, (b, n) in segments.items() if s <= address < s + b]
        events.append((action, size, inside))
    counters = simcuda.device.counters()
    print(json.dumps({{
        "trace": hashlib.sha256(json.dumps(events).encode()).hexdigest(),
        "copied": [counters[k] for k in ("h2d_bytes", "d2h_bytes", "d2d_bytes")],
        "times": simcuda.device.times() if simcuda.device.dry else None,
    }}))
    """

RESNET = """train(models.ResNet50({scale}), torch.zeros({batch}, 3, {side}, {side}),
          torch.zeros({batch}, dtype=torch.long), 2)"""


@pytest.fixture
def child(device: Any, program: Any) -> Any:
    """A process, with addresses of its own if it is `fresh`; what it printed last."""
    if device.kind != "sim":
        pytest.skip("only the simulated device runs dry")

    def run(code: str, memory: int, dry: bool, fresh: bool = False, **more: str) -> Any:
        env = {**(DRY if dry else {}), **more}
        out = program(TRAIN + code, memory=memory, env=env, fresh=fresh)
        return json.loads(out.splitlines()[-1])

    return run


@pytest.mark.parametrize(
    "dry", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["dry", "computing"]
)
def test_a_program_does_the_same_each_time(child: Any, dry: bool, tmp_path: Path) -> None:
    """Under address randomisation: no choice depends on where an object of the host lies."""
    files = [tmp_path / name for name in ("first", "second")]
    code, memory = TWICE.format(train=RESNET.format(scale=2, batch=16, side=224)), 720 * MIB
    if not dry:
        code, memory = TWICE.format(train=RESNET.format(scale=4, batch=4, side=64)), 40 * MIB
    first, second = (
        child(code, memory, dry, fresh=True, **({"SIMCUDA_TRACE": str(file)} if dry else {}))
        for file in files
    )
    assert first["copied"][1] > memory // 20
    assert first == second
    if not dry:
        return
    assert files[0].read_bytes() == files[1].read_bytes()
    moves = list(trace.read(files[0]).moves())
    assert all(move.storage for move in moves if move.unit == "out")
    assert sum(move.bytes for move in moves if move.unit == "out") == first["copied"][1]


@pytest.mark.parametrize(
    ("model", "scale", "size", "memory"),
    [
        pytest.param("resnet50", 4, 128, 24, id="resnet50"),
        pytest.param("unet3d", 4, 48, 48, id="unet3d", marks=pytest.mark.slow),
        pytest.param("gpt2", 16, 4, 20, id="gpt2", marks=pytest.mark.slow),
    ],
)
def test_dry_and_computing_move_the_same(
    child: Any, model: str, scale: int, size: int, memory: int
) -> None:
    """Byte for byte. Of free blocks the one that is ready is taken, so where tensors lie may differ
    with the time that things take."""
    what = f"what = models.WORKLOADS[{model!r}]"
    run = f"train(what.build({scale}), *what.batch({size}, {scale}), 2)"
    # Attention as it is computed: other ways to it keep other tensors.
    only = "torch.backends.cuda.enable_flash_sdp(False)"
    alone = "torch.backends.cuda.enable_mem_efficient_sdp(False)"
    code = TWICE.format(train="; ".join((only, alone, what, run)))
    computed = child(code, memory * MIB, dry=False)
    modelled = child(code, memory * MIB, dry=True, SIMCUDA_WORKSPACES="off")
    assert computed["copied"][1] > memory * MIB // 4
    assert modelled["copied"] == computed["copied"]


def test_waits_are_measured(child: Any) -> None:
    """To the microsecond, where what is waited for is one copy of 1 GiB, and each in its place."""
    out = child(
        """
    lms, said = torch.cuda.lms, []

    def waited(act):
        lms.reset_accumulated_stats()
        act()
        torch.cuda.synchronize()
        said.append([lms.stats()[f"lms.waited.{each}_us"] for each in
                     ("operands", "memory", "copies_in", "copies_out")])

    lms.enable(host_limit="30G", min_size=0)
    first, second = (torch.empty(1 << 28, device="cuda") for _ in range(2))
    waited(lambda: (lms.reclaim(), first.add_(1)))  # not measured yet
    lms.measure_waits()
    lms.reclaim()
    torch.cuda.synchronize()
    waited(lambda: first.add_(1))  # comes in
    waited(lambda: first.add_(1))  # is there
    waited(lambda: (torch.cuda._sleep(10**9), first.add_(1), lms.reclaim()))
    third, fourth = (torch.empty(1 << 28, device="cuda") for _ in range(2))
    third.add_(1), fourth.add_(1), torch.cuda.synchronize()
    waited(lambda: torch.empty(1 << 28, device="cuda").add_(1))  # where one goes out
    first.add_(1), torch.cuda.synchronize()
    waited(lambda: second.add_(1))  # comes in where one goes out
    line = [line for line in lms.summary().splitlines() if "waited: " in line]
    lms.measure_waits(False)
    waited(lambda: (lms.reclaim(), first.add_(1)))
    print(json.dumps([said, line]))
    """,
        int(2.5 * GIB),
        dry=True,
    )
    said, line = out
    copy, sleep = GIB / 15.75e3, 1e6  # microseconds
    operands, memory, copies_in, copies_out = range(4)
    # The plug-in has not looked yet at the segment that this leaves: its stream waits at once.
    left = {memory: copy} if is_plugin() else {}
    want = [{}, {operands: copy}, {}, {copies_out: sleep, **left}, {memory: copy},
            {operands: 2 * copy, copies_in: copy}, {}]  # fmt: skip
    for got, expected in zip(said, want, strict=True):
        assert got == pytest.approx([expected.get(i, 0) for i in range(4)], rel=0.01, abs=10)
    assert "operators 0.136 s for what they use to come in and 0.000 s for memory" in line[0]
    assert "copies in 0.068 s, copies out 0.000 s" in line[0]


def test_a_copy_out_does_not_share_the_link_with_one_that_is_needed_later(child: Any) -> None:
    """All three can begin at nearly the same time. What leaves first has a stream; what was used
    before it another; and the third, used last, follows the first, and not beside the second."""
    took = child(
        """
    torch.cuda.lms.enable(host_limit="30G", min_size=0)
    run_short()
    small, soon, later = (torch.ones(n << 20, device="cuda") for n in (16, 256, 256))
    torch.cuda.lms.reclaim()
    small.add_(1), soon.add_(1), later.add_(1), torch.cuda.synchronize()
    start = simcuda.device.times()["now"]
    torch.cuda._sleep(10**9)
    soon.add_(1), small.add_(1), later.add_(1)
    torch.ops.lms.evict(small), torch.ops.lms.evict(soon), torch.ops.lms.evict(later)
    print(json.dumps(until_there(soon) - start))
    """,
        int(2.5 * GIB),
        dry=True,
    )
    copies = (2 * GIB + 64 * MIB) / 15.75  # nanoseconds, of two out, and one in
    assert copies < took - 1e9 < 1.1 * copies


@pytest.mark.parametrize("over", [0, 5], ids=["first", "after others"])
def test_a_copy_out_does_not_wait_for_another_stream_that_used_what_left_before(
    child: Any, over: int
) -> None:
    """Though that was used before it on the stream of both; also where such have left before,
    and are over."""
    took = child(
        f"""
    torch.cuda.lms.enable(host_limit="30G", min_size=0)
    run_short()
    moved = torch.ones(1, device="cuda")
    torch.ops.lms.evict(moved)  # there are marks from now on
    side = torch.cuda.Stream()
    for _ in range({over}):
        shared = torch.ones(1 << 20, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            shared.add_(1)
        torch.ops.lms.evict(shared), torch.cuda.synchronize()
    # Of two sizes, so that it does not come back to where the other one was.
    other, ready = (torch.ones(n << 20, device="cuda") for n in (64, 128))
    torch.cuda.synchronize()
    start = simcuda.device.times()["now"]
    other.add_(1), ready.add_(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**9)
        other.add_(1)
    torch.ops.lms.evict(other), torch.ops.lms.evict(ready)
    print(json.dumps(until_there(ready) - start))
    """,
        int(2.5 * GIB),
        dry=True,
    )
    assert took < 1e9


def took_beside(child: Any, sides: int, late: int) -> float:
    """Nanoseconds until a storage has gone and come back that is used no more, where others leave
    before it that are used later: on one side stream, and one on each of several. The second time,
    on other streams: what left the first time is over."""
    took: float = child(
        f"""
    torch.cuda.lms.enable(host_limit="30G", min_size=0)
    run_short()
    others = [torch.ones(64 << 20, device="cuda") for _ in range({late})]
    ready = torch.ones(128 << 20, device="cuda")

    def go():
        for tensor in (*others, ready):
            torch.ops.lms.evict(tensor), tensor.add_(1)  # nothing but this has used it there
        torch.cuda.synchronize()
        start = simcuda.device.times()["now"]
        own, *sides = [torch.cuda.Stream() for _ in range({sides} + 1)]
        with torch.cuda.stream(own):
            ready.add_(1)
        if len(sides) == 1:  # on both: nobody knows when they can leave
            for other in others:
                other.add_(1)
        for side in sides:
            side.wait_stream(own), side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(10**9)
        for i, other in enumerate(others):
            with torch.cuda.stream(sides[i % len(sides)]):
                other.add_(1)
        for other in others:
            torch.ops.lms.evict(other)
        torch.ops.lms.evict(ready)
        return until_there(ready) - start

    go()
    print(json.dumps(go()))
    """,
        int(2.5 * GIB),
        dry=True,
    )
    return took


def test_copies_out_that_begin_nobody_knows_when_hold_up_each_other_alone(child: Any) -> None:
    assert took_beside(child, sides=1, late=6) < 1e9


def test_a_copy_out_has_a_stream_beside_those_of_four_other_streams(child: Any) -> None:
    """What was last used on one of them, where work goes on for long, leaves only then."""
    assert took_beside(child, sides=4, late=4) < 1e9


def test_a_copy_in_is_not_behind_one_whose_memory_is_in_use_for_long(child: Any) -> None:
    took = child(
        """
    torch.cuda.lms.enable(host_limit="30G", min_size=0)
    run_short()
    late, ready = (torch.ones(n << 20, device="cuda") for n in (128, 16))
    torch.ops.lms.evict(late), torch.ops.lms.evict(ready)
    torch.cuda.synchronize()
    there = torch.ones(128 << 20, device="cuda")  # where `late` was
    rest = torch.ones(400 << 20, device="cuda")
    with torch.cuda.lms.pin(rest):
        torch.cuda.synchronize()
        start = simcuda.device.times()["now"]
        torch.cuda._sleep(10**9), there.add_(1)
        del there
        with torch.cuda.stream(torch.cuda.Stream()):
            late.add_(1)
        print(json.dumps(until_there(ready) - start))
    """,
        int(2.25 * GIB),
        dry=True,
    )
    assert took < 1e9


# What leaves, and is used no more, beside copies out that wait for a second: what is made before
# the clock starts, and what leaves then, before `ready`.
BESIDE_LATE = {
    "copies on other streams are over": (
        """
        late = made(24, side)
        ready, *others = [made(16 + i) for i in range(6)]
        for other in reversed(others):  # each later than the one behind it: all five streams
            torch.ops.lms.evict(other)
        """,
        """
        go_on(side, late)
        torch.ops.lms.evict(late)
        """,
    ),
    "copies on other streams wait for the link alone": (
        """
        ready, late = made(8, side), made(7)
        others = [made(32 + i) for i in range(4)]
        """,
        """
        go_on(main, late)
        for one in (late, *reversed(others)):
            torch.ops.lms.evict(one)
        """,
    ),
    "small uses on two streams are over": (
        """
        late, ready = made(16), made(1 / 16)
        for other in (main, side):
            use(ready, other)
        """,
        """
        for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
            stream.wait_stream(other)
            go_on(stream, late)
            other = stream
        torch.ops.lms.evict(late)
        """,
    ),
    "uses on two streams end soon": (
        """
        late, ready = made(16), made(24)
        slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
        """,
        """
        for stream in (quick, main):
            go_on(stream, ready, 10**6)
        for stream in (slow, side):
            stream.wait_stream(quick), stream.wait_stream(main)
            go_on(stream, late)
        torch.ops.lms.evict(late)
        """,
    ),
    "those of a late stream leave in the reverse order of their uses": (
        """
        ready, *others = made(8), *[made(16 + i) for i in range(6)]
        """,
        """
        go_on(main, ready, 10**6)
        side.wait_stream(main), go_on(side, others[0])
        for one in others[1:]:
            go_on(side, one, 10**6)
        for one in reversed(others):
            torch.ops.lms.evict(one)
        """,
    ),
    "a stream's own leave in the reverse order of their uses": (
        """
        ready, late, *others = made(8), made(16), *[made(16 + i) for i in range(4)]
        """,
        """
        go_on(main, ready, 10**6)
        for one in others:
            go_on(main, one, 10**6)
        side.wait_stream(main), go_on(side, late)
        for one in (late, *reversed(others)):
            torch.ops.lms.evict(one)
        """,
    ),
    "what waits for nothing, beside four streams of which one is its own": (
        """
        ready, own, *others = made(8), made(16), *[made(16 + i) for i in range(3)]
        sides = [side, torch.cuda.Stream(), torch.cuda.Stream()]
        """,
        """
        for stream, late in zip((*sides, main), (*others, own)):
            go_on(stream, late), torch.ops.lms.evict(late)
        """,
    ),
    "the late one waits for another device": (
        """
        late, ready = made(16, side), made(32)
        for _ in range(30):
            use(ready, main)
        use(late, side), use(ready, main)
        other = torch.cuda.default_stream(1)
        """,
        """
        with torch.cuda.device(1):
            torch.cuda._sleep(10**9)
        late.record_stream(other), torch.ops.lms.evict(late)
        """,
    ),
}


def in_program(lines: str) -> str:
    return "\n" + textwrap.indent(textwrap.dedent(lines).strip(), "    ")


def back_beside_late(child: Any, before: str, leave: str) -> int:
    """Nanoseconds until `ready` has left and come back."""
    took: int = child(
        """
    torch.cuda.lms.enable(host_limit="30G", min_size=0)
    run_short()
    for device in range(torch.cuda.device_count()):
        moved = torch.ones(1, device=device)
        torch.ops.lms.evict(moved)  # there are marks from now on
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()

    def use(tensor, stream):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            tensor.add_(1)

    def made(millions, stream=main):
        with torch.cuda.stream(stream):
            return torch.ones(int(millions * (1 << 20)), device="cuda").add_(1)

    def go_on(stream, late, cycles=10**9):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)
            late.sum()
    """
        + in_program(before)
        + """
    torch.cuda.synchronize()
    start = simcuda.device.times()["now"]
    """
        + in_program(leave)
        + """
    torch.ops.lms.evict(ready)
    print(json.dumps(until_there(ready) - start))
    """,
        int(2.5 * GIB),
        dry=True,
        SIMCUDA_DEVICES="2",
    )
    return took


@pytest.mark.parametrize("scene", BESIDE_LATE)
def test_a_copy_out_is_not_behind_a_late_one_without_need(child: Any, scene: str) -> None:
    assert back_beside_late(child, *BESIDE_LATE[scene]) < 1e8


def test_a_page_in_does_not_take_what_another_stream_still_uses(child: Any) -> None:
    """Of memory, however early its own stream was done with it."""
    before = "late, other, ready = made(16), made(16), made(16)"
    leave = "go_on(side, late), torch.ops.lms.evict(late), torch.ops.lms.evict(other)"
    assert back_beside_late(child, before, leave) < 1e8


def test_a_page_in_is_not_behind_one_that_another_stream_needs_later(child: Any) -> None:
    """All copies in have one stream: what comes back for a late stream does not wait for it."""
    before = "late, other, ready = made(16), made(16), made(8)"
    leave = """
    torch.ops.lms.evict(late), torch.ops.lms.evict(other)
    go_on(side, late)
    """
    assert back_beside_late(child, before, leave) < 1e8


@pytest.mark.parametrize("over", [True, False], ids=["over", "goes on"])
@pytest.mark.parametrize("size", [64 << 20, 1 << 18], ids=["large", "small"])
def test_what_leaves_without_a_copy_waits_for_none(child: Any, size: int, over: bool) -> None:
    """On whatever stream it was used, and whether or not that is over."""
    took = child(
        f"""
    torch.cuda.lms.enable(host_limit="30G", min_size=0)
    run_short()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        other = torch.ones(1 << 28, device="cuda")
    clean = torch.ones({size}, device="cuda")
    torch.ops.lms.evict(clean), clean.sum(), torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**6), other.add_(1), clean.sum()
    if {over}:
        torch.cuda.synchronize()
    start = simcuda.device.times()["now"]
    torch.ops.lms.evict(other)
    left = torch.cuda.lms.stats()["lms.clean_evictions"]
    torch.ops.lms.evict(clean)
    assert torch.cuda.lms.stats()["lms.clean_evictions"] == left + 1
    torch.zeros({size}, device="cuda")  # where that was
    torch.cuda.current_stream().synchronize()
    print(json.dumps(simcuda.device.times()["now"] - start))
    """,
        int(2.5 * GIB),
        dry=True,
    )
    assert took < GIB / 15.75 / 2  # half of what the other's copy takes


def test_a_copy_out_does_not_wait_for_the_last_use_of_another(child: Any) -> None:
    """What is not used for the last time for a second leaves first; what leaves after it, and comes
    back, takes as long as its copies."""
    took = child(
        """
    torch.cuda.lms.enable(host_limit="30G", min_size=0)
    run_short()
    ready, late = (torch.ones(1 << 28, device="cuda") for _ in range(2))
    torch.cuda.lms.reclaim()
    ready.add_(1), late.add_(1), torch.cuda.synchronize()
    start = simcuda.device.times()["now"]
    ready.add_(1)
    torch.cuda._sleep(10**9)
    late.add_(1)
    torch.ops.lms.evict(late), torch.ops.lms.evict(ready)
    print(json.dumps(until_there(ready) - start))
    """,
        int(2.5 * GIB),
        dry=True,
    )
    assert took == pytest.approx(2 * GIB / 15.75, rel=0.05)


@pytest.mark.skipif(
    is_plugin(), reason="before a shortage its page-ins wait for all that is queued"
)
def test_what_moves_first_does_not_wait_for_what_was_queued_later(child: Any) -> None:
    """Ends of uses are known that were over before anything had moved."""
    took = child(
        """
    torch.cuda.lms.enable(host_limit="30G", min_size=0)
    first, second = (torch.ones(1 << 28, device="cuda") for _ in range(2))
    first.add_(1), second.add_(1), torch.cuda.synchronize()
    start = simcuda.device.times()["now"]
    torch.ops.lms.evict(first)
    torch.cuda._sleep(10**9)
    torch.ops.lms.evict(second)
    print(json.dumps(until_there(second) - start))
    """,
        int(2.5 * GIB),
        dry=True,
    )
    assert took == pytest.approx(3 * GIB / 15.75, rel=0.05)


def test_a_small_page_in_waits_for_the_last_use_of_its_block_alone(child: Any) -> None:
    """Of 1 MiB, the least that moves by itself, which lies with what is smaller: nothing that was
    queued since holds it up."""
    took = child(
        """
    torch.cuda.lms.enable(host_limit="30G")
    run_short()
    small, beside = (torch.ones(1 << 18, device="cuda") for _ in range(2))
    torch.cuda.lms.pin(beside)
    torch.cuda.lms.reclaim()
    there = torch.ones(1 << 18, device="cuda")  # where it was
    there.add_(1)
    del there
    torch.ones(1 << 24, device="cuda").add_(1)  # large enough for a mark, which the free shares
    torch.cuda.synchronize()
    start = simcuda.device.times()["now"]
    torch.cuda._sleep(10**9)
    print(json.dumps(until_there(small) - start))
    """,
        int(2.5 * GIB),
        dry=True,
    )
    assert took < 1e6


@pytest.mark.skipif(torch_version() < (2, 6), reason="its allocator refuses nothing that is free")
@pytest.mark.parametrize("roomy", [False, True])
def test_a_page_in_does_not_wait_for_the_operator_before_it(child: Any, roomy: bool) -> None:
    """As in a backward pass: all that is free is what the last operator has let go of, though the
    device may have more."""
    took = child(
        """
    def now():
        torch.cuda.synchronize()
        return simcuda.device.times()["now"]

    def allocations():
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    torch.cuda.lms.enable(host_limit="30G")
    run_short()
    used, kept = ([torch.ones(8192, 8192, device="cuda") for _ in range(n)] for n in (5, 6))
    weight, small = torch.ones(8192, 8192, device="cuda"), torch.ones(1, device="cuda")
    torch.cuda.lms.reclaim()
    for _ in range(2000):
        small.add_(1)  # copies out are long ago then
    alone = now()
    weight @ weight
    alone = now() - alone
    each = allocations()
    weight @ weight  # a result and, in newer versions, a workspace
    each = allocations() - each
    for tensor in kept * 6:  # much comes in, and is clean then
        torch.ops.lms.evict(tensor)
        tensor.sum()
    for _ in range(150):
        small.add_(1)
    torch.cuda.empty_cache()
    before = allocations()
    start = now()
    while used:
        used.pop() @ weight
    took = now() - start
    brought = allocations() - before - 5 * each
    print(json.dumps([took, alone, brought]))
    """,
        (16 if roomy else 9) * 256 * MIB + 64 * MIB,
        dry=True,
    )
    copy = 256 * MIB / 15.75
    assert took[0] == pytest.approx(5 * (took[1] - copy) + copy, rel=0.1), took
    assert took[2] == 5  # page-ins: what was looked at is not counted


def test_true_sizes_train_beyond_memory(child: Any) -> None:
    """ResNet-50 on an image of 7500 x 7500, which needs 91 GiB, with every wait that it needs."""
    out = child(
        """
    torch.cuda.lms.enable(host_limit="200G")
    torch.cuda.lms.measure_waits()
    x, y = torch.empty(1, 3, 7500, 7500, device="cuda"), torch.zeros(1, dtype=torch.long)
    train(models.ResNet50(), x, y, 1)
    counters = simcuda.device.counters()
    stats = torch.cuda.lms.stats()
    waited = stats["lms.waited.operands_us"] + stats["lms.waited.memory_us"]
    times = simcuda.device.times()
    print(json.dumps([simcuda.device.peak, counters["d2h_bytes"], times, waited]))
    """,
        int(31.5 * GIB),
        dry=True,
    )
    peak, left, times, waited = out
    assert peak <= 31.5 * GIB
    assert 50 * GIB < left < 80 * GIB
    assert times["out"] == pytest.approx(left / 15.75, rel=0.01)
    assert times["now"] >= max(times["compute"], times["in"], times["out"])
    # The one stream computes or waits, but for the model's way there and what goes out at the end.
    assert 0.93 * times["now"] < times["compute"] + 1000 * waited <= times["now"]
    # Computing and both ways overlap: one after the other they would take all of it.
    assert times["now"] < 0.9 * (times["compute"] + times["in"] + times["out"])


# Of docs/bounds.md: at a quarter of its peak no swapper of storages could run the operator.
@pytest.mark.parametrize(
    ("model", "size", "peak", "memory", "impossible"),
    [
        pytest.param(
            *("gpt2", 16, 36.0, 9.22, "aten::_log_softmax_backward_data needs 9.2"),
            id="gpt2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "unet3d", 256, 35.9, 10.25, "aten::convolution_backward needs 10 GiB", id="unet3d"
        ),
    ],
)
def test_hardly_more_than_its_largest_operator_needs_is_enough(
    child: Any, tmp_path: Path, model: str, size: int, peak: float, memory: float, impossible: str
) -> None:
    code = f"""
    torch.cuda.lms.enable(host_limit="200G")
    model = models.WORKLOADS[{model!r}]
    train(model.build(1), *model.batch({size}, 1), 2)
    print(json.dumps(simcuda.device.peak))
    """
    file = tmp_path / "trace"
    assert child(code, int(memory * GIB), dry=True, SIMCUDA_TRACE=str(file)) <= memory * GIB
    problem = bounds.problem_of(trace.read(file), minimum=MIB)
    with pytest.raises(bounds.TooSmallError, match=impossible):
        bounds.bounds(problem, int(peak / 4 * GIB))


# The workspace of the product comes to lie in what a large tensor has left, and stays there.
# Whether a stream keeps cuBLAS's workspace; from 2.15 on it is each product's.
KEEPS = torch_version() < (2, 15)

PRODUCT = """
    torch.cuda.lms.enable(min_size=0)
    a = torch.ones(64, 64, device="cuda")
    {before}
    large = [torch.ones(25 << 20, device="cuda") for _ in range(3)]
    del large[0]
    a @ a
    try:
        large[0] + large[1]
    except torch.OutOfMemoryError as error:
        print(json.dumps(str(error)))
    else:
        a @ a
        torch.cuda.synchronize()
        print(json.dumps(""))
    """


def test_what_a_library_keeps_is_not_in_the_way(child: Any) -> None:
    assert child(PRODUCT.format(before=""), 316 * MIB, dry=True) == ""


def test_what_a_library_keeps_leaves_before_the_operands(child: Any) -> None:
    """Where it alone is in the way, nothing has to move, and nobody waits for the device."""
    program = PRODUCT.format(before="").replace(
        'print(json.dumps(""))',
        "stats = torch.cuda.lms.stats()\n"
        "        print(json.dumps([stats['lms.paged_out_bytes'], stats['lms.clean_bytes']]))",
    )
    assert child(program, 316 * MIB, dry=True) == [0, 0]


@pytest.mark.parametrize(
    "before",
    [
        "ops().end_capture(ops().begin_capture())",
        "ops().launches_unseen()",
        "torch.cuda.current_blas_handle()",
    ],
    ids=["graph", "kernel", "handle"],
)
def test_what_a_library_keeps_stays_where_it_may_be_used(child: Any, before: str) -> None:
    """By what no operator tells of: it is in the way, then."""
    before = "from torch.cuda.lms.library import ops; " + before
    said = child(PRODUCT.format(before=before), 316 * MIB, dry=True)
    assert ("8.12 MiB are not of tensors" in said) if KEEPS else said == ""


CAPACITIES = """
    def run(capacity):
        simcuda.device.capacity = capacity << 20
        torch.cuda.lms.enable(host_limit="64G", min_size="64K")
        try:
            model = models.WORKLOADS[{model!r}]
            train(model.build({scale}), *model.batch({size}, {scale}), 2)
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            torch.cuda.synchronize()
            torch.cuda.lms.disable()
            torch.cuda.empty_cache()

    print(json.dumps([capacity for capacity in {capacities} if run(capacity)]))
    """


# From what is too little on.
@pytest.mark.parametrize(
    ("model", "scale", "size", "capacities"),
    [
        pytest.param("gpt2", 8, 16, range(130, 260, 10), id="gpt2", marks=pytest.mark.slow),
        pytest.param("unet3d", 4, 96, range(100, 320, 20), id="unet3d", marks=pytest.mark.slow),
        pytest.param("resnet50", 4, 512, range(6, 40, 3), id="resnet50"),
    ],
)
def test_what_trains_in_some_memory_trains_in_more(
    child: Any, model: str, scale: int, size: int, capacities: range
) -> None:
    code = CAPACITIES.format(model=model, scale=scale, size=size, capacities=[*capacities])
    trains = child(code, capacities[-1] * MIB, dry=True)
    assert trains == [*capacities][-len(trains) :]
    assert 0 < len(trains) < len(capacities)


CYCLE = """
    torch.cuda.lms.enable(host_limit="1G")
    tensors = [torch.ones(3 << 18, device="cuda") for _ in range(40)]
    rounds = []
    for _ in range(8):
        before = torch.cuda.lms.stats()["lms.paged_in"]
        for tensor in tensors:
            tensor.{use}
        rounds.append(torch.cuda.lms.stats()["lms.paged_in"] - before)
    print(json.dumps(rounds))
    """


@pytest.mark.parametrize("use", ["sum()", "add_(1)"], ids=["read", "written"])
def test_what_a_cycle_comes_to_next_stays(child: Any, use: str) -> None:
    """40 tensors of 3 MiB in 90 MiB: by the order of their last use each would be out."""
    rounds = child(CYCLE.format(use=use), 90 * MIB, dry=True)
    assert rounds[0] > 17  # as nothing is known yet
    assert max(rounds[3:]) <= 17


PHASES = """
    torch.cuda.lms.enable(host_limit="2G")
    large = [torch.ones(4 << 20, device="cuda") for _ in range(16)]
    small = [torch.ones(1 << 20, device="cuda") for _ in range(64)]
    for phase in range(8):
        for _ in range(6):
            for tensor in (large, small)[phase % 2]:
                tensor.mul_(2)
    print(torch.cuda.lms.stats()["lms.paged_in_bytes"])
    """


def test_what_an_earlier_phase_used_leaves_first_though_it_is_larger(child: Any) -> None:
    """Two sets of 256 MiB in turn, in 394 MiB: else tensors of 4 MiB leave for each other."""
    assert child(PHASES, 394 * MIB, dry=True) < 3000 * MIB  # 8 times what does not fit are 944
