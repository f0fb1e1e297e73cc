# SPDX-License-Identifier: Apache-2.0
"""Memory by level, and the numbers that fit it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from tensorflow_large_model_support.choice import BOTH, OUT, Settings
from tensorflow_large_model_support.graph import Graph
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.simulator import Simulator
from tensorflow_large_model_support.tuner import Tuner
from tflms_graphs import chain, graphs, op

MIB = 1 << 20


def memory(graph: Graph, numbers: Settings | None = None) -> list[int]:
    numbers = numbers or Settings(graph.depth)
    return Simulator(graph).run(Planner(graph).plan(numbers)).device


def test_a_result_is_there_until_it_was_read():
    assert memory(chain(2)) == [0, 1024, 2048, 3072, 2048]


def test_sizes_are_rounded_and_names_of_a_buffer_are_no_buffers():
    ops = [
        op("a", "Conv2D", sizes=[1]),
        op("b", "Reshape", [(0, 0)], sizes=[1]),
        op("c", "Conv2D", [(1, 0)], sizes=[257]),
    ]
    assert memory(Graph(ops)) == [256, 256, 256 + 512]


def test_a_result_takes_the_place_of_what_is_read_no_more():
    ops = [op("a", "Conv2D"), op("b", "Relu", [(0, 0)]), op("c", "Conv2D", [(1, 0)])]
    assert memory(Graph(ops)) == [1024, 1024, 2048]
    # Read by another, it stays.
    assert memory(Graph([*ops, op("d", "Conv2D", [(0, 0), (1, 0)])]))[1] == 2048


def test_what_is_swapped_is_away_meanwhile():
    """Beside other ops a copy keeps a buffer for a level more, each way."""
    graph = chain(12)
    assert max(memory(graph)) == 13 * 1024
    assert max(memory(graph, Settings(1))) == 5 * 1024
    assert max(memory(graph, Settings(1, sync_mode=BOTH))) == 3 * 1024
    run = Simulator(graph).run(Planner(graph).plan(Settings(1)))
    assert run.swapped_out == run.swapped_in == 11 * 1024 and run.host_peak == 11 * 1024


def test_a_larger_ahead_or_groupby_takes_more():
    graph = chain(20)
    peaks = [max(memory(graph, Settings(1, ahead=ahead))) for ahead in (1, 5, 30)]
    assert peaks == sorted(peaks) and peaks[0] < peaks[-1]


def test_a_row_of_ops_takes_less_than_all_at_once():
    ops = [op("x", "Conv2D")]
    for number in range(4):
        ops.append(op(f"wide{number}", "Conv2D", [(0, 0)], sizes=[MIB]))
    for number in range(4):
        ops.append(op(f"sum{number}", "Sum", [(number + 1, 0)], sizes=[4]))
    graph = Graph(ops)
    at_once = max(memory(graph))
    assert max(memory(graph, Settings(9, serialized=frozenset({1})))) <= at_once


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_all_that_is_made_goes(graph):
    """What is there at a step is what some op has made; nothing is counted below zero."""
    held = Settings(0, 3, 2, OUT)
    for numbers in (Settings(graph.depth), Settings(1), held, Settings(2, sync_mode=BOTH)):
        run = Simulator(graph).run(Planner(graph).plan(numbers))
        assert min(run.device) >= 0 and min(run.host) >= 0
        made = sum(sum(sizes) for sizes in Simulator(graph).sizes)
        assert run.peak <= made + run.swapped_in and run.host_peak <= run.swapped_out


# ---- the tuner


def tuned(graph, limit, wanted=None, said=None):
    said = [] if said is None else said
    tuner = Tuner(Planner(graph), Simulator(graph), limit, said.append)
    return tuner.tune(wanted or Settings(-1, -1, -1))


def fits(graph, limit, numbers):
    return Simulator(graph).run(Planner(graph).plan(numbers)).peak <= limit


def test_what_fits_needs_nothing():
    graph = chain(10)
    assert tuned(graph, max(memory(graph))).settings is None


def test_the_largest_numbers_that_fit_are_found():
    graph = chain(30, MIB)
    limit = max(memory(graph)) // 2
    said = []
    found = tuned(graph, limit, said=said)
    numbers = found.settings
    assert found.memory.peak <= limit and fits(graph, limit, numbers)
    assert numbers.sync_mode == 0
    distances = {d for d in Planner(graph).distances() if d > numbers.threshold}
    # With the threshold beyond the next edge it does not fit any more, nor with a larger ahead.
    assert not fits(graph, limit, Settings(min(distances), 0, 1))
    assert not fits(graph, limit, Settings(numbers.threshold, 0, numbers.ahead + 1))
    assert numbers.groupby == graph.depth
    assert all(line.startswith("Found a parameter set") for line in said) and len(said) == 3


def test_it_waits_where_nothing_else_fits():
    """Where an op is as large as what is left, there is no room for a copy that is under way."""
    ops = [op("x", "Conv2D", sizes=[4 * MIB]), op("y", "Conv2D", [(0, 0)], sizes=[4])]
    ops += [op("large", "Conv2D", [(1, 0)], sizes=[4 * MIB])]
    ops += [op("y2", "Conv2D", [(2, 0)], sizes=[4]), op("y3", "Conv2D", [(3, 0)], sizes=[4])]
    graph = Graph([*ops, op("end", "AddN", [(4, 0), (0, 0)], sizes=[4])])
    peaks = {mode: max(memory(graph, Settings(1, 0, 1, mode))) for mode in (0, BOTH)}
    assert peaks[BOTH] < peaks[0]
    found = tuned(graph, peaks[BOTH])
    assert found.settings.sync_mode == BOTH and found.settings.groupby == 0
    assert tuned(graph, peaks[BOTH] - 1) is None


def test_numbers_that_were_given_stay():
    graph = chain(30, MIB)
    limit = max(memory(graph)) // 2
    found = tuned(graph, limit, Settings(-1, 0, 3))
    assert (found.settings.groupby, found.settings.ahead) == (0, 3)
    assert tuned(graph, limit, Settings(5, -1, -1)).settings.threshold == 5
    assert tuned(graph, 1, Settings(5, -1, -1)) is None


def test_a_graph_of_five_thousand_ops_is_planned_and_tuned_in_seconds():
    graph = chain(2500, MIB)
    began = time.process_time()
    plan = Planner(graph).plan(Settings(300))
    planned = time.process_time() - began
    found = tuned(graph, max(memory(graph)) // 3)
    assert found.settings and len(plan.swaps) > 2000
    assert planned < 2 and time.process_time() - began < 20


@pytest.mark.parametrize("mode", [2, 3])
def test_swap_ins_that_are_waited_for_need_no_other_number(mode):
    graph = chain(30, MIB)
    found = tuned(graph, max(memory(graph)) // 2, Settings(-1, -1, -1, mode))
    numbers = found.settings
    assert (numbers.sync_mode, numbers.ahead, numbers.groupby) == (mode, 1, 0)


def test_unchanged_means_no_plan():
    graph = chain(5)
    tuner = Tuner(Planner(graph), Simulator(graph), 0, print)
    assert tuner.unchanged() == Simulator(graph).run(Plan(Settings(0)))
