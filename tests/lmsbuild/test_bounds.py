# SPDX-License-Identifier: Apache-2.0
"""The bounds on what a swapper can do, against exhaustive search on small problems."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from simcuda import trace
from simcuda.bounds import Bounds, Problem, Step, bounds, problem_of
from simcuda.errors import SimcudaError

MIB = 1 << 20
SECOND = 10**9


def problem(*steps: tuple[int, str], sizes: dict[int, int]) -> Problem:
    """Steps as (seconds, uses): "0m1r" makes storage 0 and reads 1. Sizes in MiB, as are rates."""
    access = {"r": "read", "w": "write", "m": "make"}
    made = [
        Step(
            f"step {number}",
            time * SECOND,
            {int(uses[i]): access[uses[i + 1]] for i in range(0, len(uses), 2)},
        )
        for number, (time, uses) in enumerate(steps)
    ]
    return Problem(made, {n: size * MIB for n, size in sizes.items()}, float(MIB), float(MIB))


def random_problem(seed: int, storages: int = 3, steps: int = 6) -> Problem:
    dice = random.Random(seed)
    made: list[tuple[int, str]] = []
    seen: set[int] = set()
    for _ in range(steps):
        uses = ""
        for storage in dice.sample(range(storages), dice.choice((1, 1, 2))):
            access = dice.choice("rrwm") if storage in seen else "m"
            seen.add(storage)
            uses += f"{storage}{access}"
        made.append((dice.randrange(3), uses))
    one = problem(*made, sizes={n: dice.randrange(1, 4) for n in range(storages)})
    if seed % 2:  # the program holds some beyond their last use
        one.ends = {n: dice.randrange(1, steps + 1) for n in range(storages)}
    return one


def capacities(one: Problem) -> range:
    least = max(sum(one.sizes[n] for n in step.uses) for step in one.steps)
    return range(least // MIB, sum(one.sizes.values()) // MIB + 1)


def least_bytes(one: Problem, capacity: int) -> int:
    """MiB, by trying for each time between two uses whether the storage stays."""
    gaps: list[tuple[int, int, int, int]] = []  # after, before, storage, version
    no_return: list[tuple[int, int, int, int]] = []
    last: dict[int, tuple[int, int]] = {}
    for k, step in enumerate(one.steps):
        for storage, access in step.uses.items():
            after, version = last.get(storage, (k, -1))
            if access != "make":
                gaps.append((after, k, storage, version))
            elif k > after + 1:
                no_return.append((after, k, storage, version))
            last[storage] = k, version if access == "read" else k
    for storage, (after, version) in last.items():
        if one.ends.get(storage, 0) > after + 1:
            no_return.append((after, one.ends[storage], storage, version))
    gaps += no_return
    best = 1 << 60
    for choice in itertools.product((False, True), repeat=len(gaps)):
        gone = {gap for gap, away in zip(gaps, choice, strict=True) if away}
        for k, step in enumerate(one.steps):
            kept = {n for a, b, n, _ in set(gaps) - gone if a < k < b} | step.uses.keys()
            if sum(one.sizes[n] for n in kept) > capacity * MIB:
                break
        else:
            saved = {(n, version) for _, _, n, version in gone}
            back = gone - set(no_return)
            cost = sum(one.sizes[n] for _, _, n, _ in back) + sum(one.sizes[n] for n, _ in saved)
            best = min(best, cost // MIB)
    return best


def least_time(one: Problem, capacity: int) -> int:
    """Seconds, by trying every order of steps and copies of whole storages, one copy each way.

    A state is what runs (the time left), and of each storage whether it is here, and saved.
    """
    names = sorted(one.sizes)
    size = {n: one.sizes[n] // MIB for n in names}
    uses = [step.uses.keys() for step in one.steps]
    needed = [{n for later in uses[k:] for n in later} for k in range(len(uses) + 1)]
    start = (0, 0, (None, 0), (None, 0), frozenset[int](), frozenset[int]())
    queue: list[tuple[int, int, Any]] = [(0, 0, start)]
    seen = set()
    count = itertools.count(1)
    while queue:
        now, _, state = heapq.heappop(queue)
        if state in seen:
            continue
        seen.add(state)
        k, left, coming, going, here, saved = state
        if k == len(one.steps):
            return now
        busy = one.steps[k].uses.keys() if left else set()
        room = (
            capacity
            - sum(size[n] for n in here)
            - (size[coming[0]] if coming[0] is not None else 0)
        )

        def push(later: int, *new: object) -> None:
            heapq.heappush(queue, (now + later, next(count), new))  # noqa: B023

        if not left:
            step = one.steps[k]
            fresh = {n for n in step.uses if n not in here and step.uses[n] == "make"}
            ready = all(n in here or n in fresh for n in step.uses)
            moving = going[0] in step.uses and any(
                n == going[0] and a != "read" for n, a in step.uses.items()
            )
            if (
                ready
                and not moving
                and coming[0] not in step.uses
                and sum(size[n] for n in fresh) <= room
            ):
                stale = {n for n, a in step.uses.items() if a != "read"}
                time = step.time // SECOND
                after = (here | fresh, saved - stale)
                if time:
                    push(0, k, time, coming, going, *after)
                else:
                    push(0, k + 1, 0, coming, going, *after)
        for n in here - busy - {going[0]}:
            if n in saved or (n not in needed[k] and one.ends.get(n, 0) <= k):
                push(0, k, left, coming, going, here - {n}, saved)
        if going[0] is None:
            for n in here - saved:
                if n in busy and one.steps[k].uses[n] != "read":
                    continue
                push(0, k, left, coming, (n, size[n]), here, saved)
        if coming[0] is None:
            for n in saved - here:
                if size[n] <= room:
                    push(0, k, left, (n, size[n]), going, here, saved)
        ends = [time for time in (left, coming[1], going[1]) if time]
        if ends:
            pass_ = min(ends)
            now_here, now_saved, next_k = here, saved, k
            left2 = max(0, left - pass_)
            if left and not left2:
                next_k += 1
            in2, out2 = ((n, t - pass_) if n is not None else (None, 0) for n, t in (coming, going))
            if in2[0] is not None and not in2[1]:
                now_here, in2 = now_here | {in2[0]}, (None, 0)
            if out2[0] is not None and not out2[1]:
                now_saved, out2 = now_saved | {out2[0]}, (None, 0)
            push(pass_, next_k, left2, in2, out2, now_here, now_saved)
    raise AssertionError("it does not fit")


def test_a_step_that_waits_for_what_left() -> None:
    """0 leaves to make room for 1 and comes back, and there is no time to hide it."""
    one = problem((0, "0m"), (3, "1m"), (0, "0r"), sizes={0: 2, 1: 3})
    assert bounds(one, 5 * MIB) == Bounds(5 * MIB, 5 * MIB, 0, 0, 3 * SECOND, 3 * SECOND)
    found = bounds(one, 4 * MIB)
    assert (found.peak, found.bytes_in, found.bytes_out) == (5 * MIB, MIB, MIB)
    assert found.time == 5 * SECOND  # a MiB out before step 1, and in after it
    assert bounds(one, 3 * MIB).time == 7 * SECOND


def test_what_was_saved_is_not_saved_again() -> None:
    steps = [(1, "0m"), (1, "1m"), (1, "0r"), (1, "2m"), (1, "0r")]
    read = bounds(problem(*steps, sizes={0: 2, 1: 2, 2: 2}), 2 * MIB)
    assert (read.bytes_in, read.bytes_out) == (4 * MIB, 2 * MIB)
    steps[2] = (1, "0w")
    written = bounds(problem(*steps, sizes={0: 2, 1: 2, 2: 2}), 2 * MIB)
    assert (written.bytes_in, written.bytes_out) == (4 * MIB, 4 * MIB)
    steps[2] = (1, "0m")
    made = bounds(problem(*steps, sizes={0: 2, 1: 2, 2: 2}), 2 * MIB)
    assert (made.bytes_in, made.bytes_out) == (2 * MIB, 4 * MIB)  # nobody knew that it would be


def test_what_the_program_holds_is_not_lost() -> None:
    """Whether or not it is used again: 0 leaves for 2, and need not come back."""
    one = problem((0, "0m"), (0, "1m"), (0, "2m"), (0, "1r"), sizes={0: 2, 1: 2, 2: 2})
    assert bounds(one, 4 * MIB).bytes == 0
    for end, out in ((2, 0), (3, 2), (4, 2)):
        one.ends = {0: end}
        found = bounds(one, 4 * MIB)
        assert (found.bytes_in, found.bytes_out) == (0, out * MIB)
        assert found.time == out * SECOND
        assert found.peak == (4 if end == 2 else 6) * MIB


def test_what_will_be_overwritten_is_not_lost_before() -> None:
    """Nobody knows that it will be: 0 leaves for 1, or stays beside it, and need not come back."""
    one = problem((0, "0m"), (0, "1m"), (0, "0m"), sizes={0: 2, 1: 2})
    assert bounds(one, 4 * MIB).bytes == 0
    found = bounds(one, 2 * MIB)
    assert (found.bytes_in, found.bytes_out, found.time) == (0, 2 * MIB, 2 * SECOND)
    assert found.peak == 4 * MIB
    at_once = problem((0, "0m"), (0, "0m1m"), sizes={0: 2, 1: 2})
    assert bounds(at_once, 4 * MIB).bytes == 0


def test_a_step_that_does_not_fit_is_named() -> None:
    with pytest.raises(SimcudaError, match="step 0 needs 3 MiB at once, and the capacity is 2 MiB"):
        bounds(problem((1, "0m1m"), sizes={0: 2, 1: 1}), 2 * MIB)


def test_a_call_on_lists_needs_one_of_them_at_a_time() -> None:
    one = problem((0, "0m"), (0, "1m"), (4, "0w1w"), (0, "0r"), (0, "1r"), sizes={0: 2, 1: 2})
    one.steps[2].divisible = True
    found = bounds(one, 2 * MIB)
    # 0 leaves for 1, and each comes back once more: "0m 1m 1w 0w 0r 1r".
    assert (found.bytes_in, found.bytes_out) == (4 * MIB, 4 * MIB)
    assert found.time <= 8 * SECOND
    with pytest.raises(SimcudaError, match="step 2 needs 2 MiB at once"):
        bounds(Problem(one.steps[2:], one.sizes, 1, 1), MIB)


def test_what_two_calls_on_lists_use_is_there_between_them_or_comes_in() -> None:
    one = problem((0, "0m"), (0, "1m"), (0, "0w1w"), (0, "0w1w"), sizes={0: 2, 1: 2})
    one.steps[2].divisible = one.steps[3].divisible = True
    found = bounds(one, 2 * MIB)
    # "0m 1m 1w 0w 0w 1w", and what comes in has left: 0 before the first call, 1 before the second.
    assert (found.bytes_in, found.bytes_out) == (4 * MIB, 4 * MIB)


def one_at_a_time(one: Problem) -> Iterator[Problem]:
    """Each order in which the storages of divisible steps can be used one after the other. The
    first of them has the step's time, which is 0."""
    orders = [
        list(itertools.permutations(step.uses.items())) if step.divisible
        else [tuple(step.uses.items())]
        for step in one.steps
    ]  # fmt: skip
    for chosen in itertools.product(*orders):
        steps: list[Step] = []
        for step, uses in zip(one.steps, chosen, strict=True):
            if step.divisible:
                steps += [Step(step.name, 0, {n: access}) for n, access in uses]
            else:
                steps.append(step)
        yield replace(one, steps=steps)


@pytest.mark.parametrize("seed", range(60))
def test_no_order_within_calls_on_lists_is_below_the_bounds(seed: int) -> None:
    dice = random.Random(seed)
    both = "".join(f"{n}{dice.choice('rw')}" for n in (0, 1))
    one = problem(
        *[(0, "0m"), (dice.randrange(3), "1m2m"), (0, both), (0, both), (0, both),
          (dice.randrange(3), dice.choice(("2w", "0r", "1w")))],
        sizes={n: dice.randrange(1, 4) for n in range(3)},
    )  # fmt: skip
    for step in one.steps[2:5]:
        step.divisible = True
    least = (one.sizes[1] + one.sizes[2]) // MIB
    for capacity in range(max(least, one.sizes[0] // MIB), sum(one.sizes.values()) // MIB):
        found = bounds(one, capacity * MIB)
        orders = list(one_at_a_time(one))
        assert found.bytes <= min(least_bytes(each, capacity) for each in orders) * MIB
        assert found.time <= min(least_time(each, capacity) for each in orders) * SECOND + 1000


def test_what_was_there_before_can_have_been_saved_before() -> None:
    """No step makes 2, so it can be saved while step 0 computes. A page-out takes 4 s a MiB."""
    steps = [(13, "0m3m"), (0, "1m"), (0, "2r"), (0, "0r4m"), (0, "3r"), (0, "2r")]
    one = problem(*steps, sizes={0: 2, 1: 3, 2: 3, 3: 1, 4: 3})
    one.rate_out /= 4
    # 3 goes out after step 0, 2 comes in for step 2, 3 for step 4, 2 for step 5.
    assert bounds(one, 5 * MIB).time <= (13 + 4 + 3 + 1 + 3) * SECOND


def test_copies_of_one_iteration_are_not_hidden_in_another() -> None:
    """In each a MiB of 0 leaves for 1 and comes back, with no time to hide it, and then 20 s are
    computed."""
    steps: list[tuple[int, str]] = []
    for n in range(3):
        steps += [(0, f"{n}m"), (0, f"{n + 3}m"), (0, f"{n + 3}r"), (0, f"{n}r"), (20, f"{n + 6}m")]
    one = problem(*steps, sizes={n: 2 if n < 6 else 1 for n in range(9)})
    assert bounds(one, 3 * MIB).time == 3 * 22 * SECOND


def test_what_an_optimiser_writes_is_saved_in_its_own_iteration() -> None:
    """In each it comes in, which takes 2 s, and goes out before the next peak."""
    iteration = [(0, "1m2m"), (3, "1r"), (0, "0w")]
    one = problem((0, "0m"), *iteration * 30, sizes={0: 2, 1: 2, 2: 2})
    for step in one.steps[3::3]:
        step.divisible = True
    assert bounds(one, 4 * MIB).time == 30 * 5 * SECOND


def test_the_highest_step_is_looked_at() -> None:
    """Among a thousand for which a MiB is away, it needs 4 more."""
    around = [(0, "1r")] * 501  # the highest is not among those that are looked at anyway
    made, used = [(0, f"{n}m") for n in (0, 1, 2, 4)], [(0, f"{n}r") for n in (0, 2, 4)]
    steps = [*made, *around, (0, "1r3m"), *around, *used]
    one = problem(*steps, sizes={0: 1, 1: 1, 2: 4, 3: 4, 4: 1})
    found = bounds(one, 6 * MIB)
    assert found.bytes == 10 * MIB
    assert found.time == 10 * SECOND


@pytest.mark.parametrize("moves", [False, True])
def test_the_program_lets_go_of_what_is_freed(moves: bool) -> None:
    """What moves is freed, too, and held on."""
    storage = trace.Storage(0, MIB)
    rates = {"link_in": 1.0, "link_out": 1.0, "efficiency": {"link": 1.0}}
    moved = trace.Copy(0, "copy", "out", 0, 1, 0, 1, MIB, 7, storage)
    events: list[trace.Event] = [
        trace.Op(0, "a", "compute", 0, 0, 0, 1, [trace.Use(storage, "make", 7)]),
        trace.Op(0, "b", "compute", 0, 0, 1, 2),
        *([moved] if moves else []),
        trace.Freed(0, 7),
        trace.Op(0, "c", "compute", 0, 0, 2, 3),
    ]
    assert problem_of(trace.Trace({"profile": rates}, events)).ends == ({} if moves else {0: 2})


@pytest.mark.parametrize(
    ("op", "access", "divisible"),
    [
        ("aten::add_", "write", False),
        ("aten::_foreach_zero_", "make", True),
        ("aten::_foreach_copy_", "make", True),
        ("aten::_foreach_add_", "write", True),
        ("aten::_fused_adam_", "write", True),
    ],
)
def test_operators_that_overwrite_or_can_be_divided(op: str, access: str, divisible: bool) -> None:
    use = trace.Use(trace.Storage(0, MIB), "write", None)
    event = trace.Op(0, op, "compute", 0, 0, 1, 3, [use])
    rates = {"link_in": 1.0, "link_out": 1.0, "efficiency": {"link": 1.0}}
    steps = problem_of(trace.Trace({"profile": rates}, [event])).steps
    assert steps == [Step(op, 2, {0: access}, divisible)]


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 400), marks=pytest.mark.slow)])
def test_bytes_are_never_above_what_is_possible(seeds: range) -> None:
    bound = exact = 0.0
    for seed in seeds:
        one = random_problem(seed, storages=4, steps=8)
        for capacity in capacities(one):
            least = least_bytes(one, capacity)
            found = bounds(one, capacity * MIB).bytes / MIB
            assert found <= least + 1e-6, seed
            bound, exact = bound + found, exact + least
    assert bound > 0.65 * exact  # parts of a storage can move, here


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 300), marks=pytest.mark.slow)])
def test_time_is_never_below_what_is_possible(seeds: range) -> None:
    bound = exact = 0.0
    for seed in seeds:
        one = random_problem(seed)
        for capacity in capacities(one):
            least = least_time(one, capacity)
            found = bounds(one, capacity * MIB).time / SECOND
            assert found <= least + 1e-6, seed
            bound, exact = bound + found, exact + least
    assert bound > 0.8 * exact
