# SPDX-License-Identifier: Apache-2.0
"""The numbers that fit, and the fastest of them."""

from __future__ import annotations

import time

import pytest
from tensorflow_large_model_support.choice import BOTH, Settings
from tensorflow_large_model_support.graph import Graph
from tensorflow_large_model_support.plan import Planner
from tensorflow_large_model_support.profiles import DEFAULT
from tensorflow_large_model_support.simulator import Simulator
from tensorflow_large_model_support.timing import Timer
from tensorflow_large_model_support.tuner import Tuner
from tflms_graphs import chain, op, training

MIB = 1 << 20


def memory(graph: Graph, numbers: Settings | None = None) -> list[int]:
    numbers = numbers or Settings(graph.depth)
    return Simulator(graph).run(Planner(graph).plan(numbers)).device


def time_of(graph: Graph, numbers: Settings) -> int:
    return Timer(graph, DEFAULT).run(Planner(graph).plan(numbers)).total


def tuned(graph, limit, wanted=None, said=None):
    said = [] if said is None else said
    parts = Planner(graph), Simulator(graph), Timer(graph, DEFAULT), limit
    return Tuner(*parts, said.append).tune(wanted or Settings(-1, -1, -1))


def fits(graph, limit, numbers):
    return Simulator(graph).run(Planner(graph).plan(numbers)).peak <= limit


def test_what_fits_needs_nothing():
    graph = chain(10)
    assert tuned(graph, max(memory(graph))).plan is None


def test_the_largest_numbers_that_fit_are_found():
    graph = chain(30, MIB)
    limit = max(memory(graph)) // 2
    said = []
    found = tuned(graph, limit, said=said)
    numbers = found.plan.settings
    assert found.memory.peak <= limit and fits(graph, limit, numbers)
    assert numbers.sync_mode == 0
    distances = {d for d in Planner(graph).distances() if d > numbers.threshold}
    # With the threshold beyond the next edge it does not fit any more, nor with a larger ahead.
    assert not fits(graph, limit, Settings(min(distances), 0, 1))
    assert not fits(graph, limit, Settings(numbers.threshold, 0, numbers.ahead + 1))
    assert numbers.groupby == graph.depth
    assert all(line.startswith("Found a parameter set") for line in said) and len(said) > 3


def test_of_what_fits_the_fastest_is_taken():
    """The largest threshold leaves no room to begin early; the next one does."""
    graph = training(10, seed=84)
    limit = int(max(memory(graph)) * 0.75)
    largest = max(number for number in range(graph.depth) if fits(graph, limit, Settings(number)))
    early = [n for n in range(1, graph.depth) if fits(graph, limit, Settings(largest, 0, n))]
    assert early == [1]
    found = tuned(graph, limit)
    assert found.memory.peak <= limit
    assert found.plan.settings.threshold < largest and found.plan.settings.ahead > 1
    assert found.timing.total < 0.95 * time_of(graph, Settings(largest, graph.depth, 1))


def test_it_waits_where_nothing_else_fits():
    """Where an op is as large as what is left, there is no room for a copy that is under way."""
    ops = [op("x", "MatMul", sizes=[4 * MIB]), op("y", "MatMul", [(0, 0)], sizes=[4])]
    ops += [op("large", "MatMul", [(1, 0)], sizes=[4 * MIB])]
    ops += [op("y2", "MatMul", [(2, 0)], sizes=[4]), op("y3", "MatMul", [(3, 0)], sizes=[4])]
    graph = Graph([*ops, op("end", "AddN", [(4, 0), (0, 0)], sizes=[4])])
    peaks = {mode: max(memory(graph, Settings(1, 0, 1, mode))) for mode in (0, BOTH)}
    assert peaks[BOTH] < peaks[0]
    found = tuned(graph, peaks[BOTH])
    assert found.plan.settings.sync_mode == BOTH and found.plan.settings.groupby == 0
    assert tuned(graph, peaks[BOTH] - 1) is None


def test_numbers_that_were_given_stay():
    graph = chain(30, MIB)
    limit = max(memory(graph)) // 2
    found = tuned(graph, limit, Settings(-1, 0, 3))
    assert (found.plan.settings.groupby, found.plan.settings.ahead) == (0, 3)
    assert tuned(graph, limit, Settings(5, -1, -1)).plan.settings.threshold == 5
    assert tuned(graph, 1, Settings(5, -1, -1)) is None


def test_a_graph_of_five_thousand_ops_is_planned_and_tuned_in_seconds():
    graph = chain(2500, MIB)
    began = time.process_time()
    plan = Planner(graph).plan(Settings(300))
    planned = time.process_time() - began
    found = tuned(graph, max(memory(graph)) // 3)
    assert found.plan and len(plan.swaps) > 2000
    assert planned < 2 and time.process_time() - began < 20


def test_waiting_one_way_is_enough_where_that_fits():
    graph = training(20, seed=1)
    plans = {mode: Settings(1, 0, 1, mode) for mode in range(4)}
    peaks = {mode: max(memory(graph, numbers)) for mode, numbers in plans.items()}
    one_way = min(peaks[1], peaks[2])
    assert peaks[BOTH] <= one_way < peaks[0]
    found = tuned(graph, one_way)
    assert found.plan.settings.sync_mode in (1, 2) and found.memory.peak <= one_way
    assert found.timing.total < time_of(graph, plans[BOTH])
    assert tuned(graph, one_way, Settings(-1, -1, -1, 1)).plan.settings.sync_mode in (1, BOTH)


@pytest.mark.parametrize("mode", [2, 3])
def test_swap_ins_that_are_waited_for_need_no_other_number(mode):
    graph = chain(30, MIB)
    found = tuned(graph, max(memory(graph)) // 2, Settings(-1, -1, -1, mode))
    numbers = found.plan.settings
    assert (numbers.sync_mode, numbers.ahead, numbers.groupby) == (mode, 1, 0)
