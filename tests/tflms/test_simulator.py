# SPDX-License-Identifier: Apache-2.0
"""Memory by level."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tensorflow_large_model_support.choice import BOTH, OUT, Settings
from tensorflow_large_model_support.graph import Graph
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.simulator import RED_ZONES, Simulator
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
        op("c", "MatMul", [(1, 0)], sizes=[257]),
    ]
    assert memory(Graph(ops)) == [256, 256, 256 + 512]


def test_images_are_copied_into_the_order_of_convolutions():
    """Once; what follows a convolution, element by element, has that order already."""
    ops = [op("a", "MatMul"), op("b", "Conv2D", [(0, 0)]), op("c", "Relu", [(1, 0)])]
    ops += [op("d", "Conv2D", [(2, 0)]), op("e", "MatMul", [(3, 0)])]
    assert memory(Graph(ops)) == [1024, 3 * 1024, 1024, 2048, 2048]
    elsewhere = ops[0]._replace(on_device=False)
    assert memory(Graph([elsewhere, *ops[1:]])) == [0, 1024, 1024, 2048, 2048]


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


@pytest.mark.parametrize(
    ("kind", "on_device", "scratch"),
    [
        ("Conv2D", True, 0),
        ("Conv2DBackpropInput", True, 256),
        ("MaxPool3DGrad", True, 256 + 1024),
        ("MaxPool3DGrad", False, 0),
        ("Einsum", True, 256),
    ],
)
def test_what_a_kernel_works_in_is_there_while_it_runs(kind, on_device, scratch):
    ops = [op("a", "Conv2D"), op("b", kind, [(0, 0)], sizes=[100], on_device=on_device)]
    graph = Graph([*ops, op("c", "MatMul", [(1, 0)])])
    own = 256 if on_device else 0
    assert memory(graph) == [1024, 1024 + own + scratch, own + 1024]


def test_the_first_convolution_of_a_kind_searches_an_algorithm():
    """In a second result and four red zones, for which nothing else must make room."""
    ops = [op("x", "MatMul"), op("a", "Conv2D", [(0, 0)]), op("b", "Conv2D", [(1, 0)])]
    ops += [op("c", "Conv2DBackpropInput", [(2, 0)]), op("d", "MatMul", [(3, 0)])]
    unchanged = Plan(Settings(9))
    simulator = Simulator(Graph(ops))
    assert simulator.run(unchanged).peak == 3 * 1024  # the second has its image in order
    assert simulator.first_peak(unchanged) == 3 * 1024 + 1024 + RED_ZONES
    none = Simulator(Graph([each._replace(type="MatMul") for each in ops]))
    assert none.first_peak(unchanged) == none.run(unchanged).peak


def test_a_first_run_has_as_many_ops_at_once_as_threads():
    """With one, what one reads is gone before the next of its level begins. With more, half of what
    that adds counts."""
    ops = [op("a", "MatMul"), op("b", "MatMul")]
    ops += [op("c", "MatMul", [(0, 0)], sizes=[4096]), op("d", "MatMul", [(1, 0)], sizes=[4096])]
    simulator, unchanged = Simulator(Graph(ops)), Plan(Settings(9))
    assert simulator.run(unchanged).peak == 10 * 1024
    peaks = [simulator.first_peak(unchanged, threads) for threads in (1, 2, 3)]
    assert peaks == [6 * 1024, 8 * 1024, 8 * 1024]


def test_what_comes_back_does_so_beside_the_one_thread():
    """For both of the ops that read it, while one of them runs."""
    ops = [op("a", "MatMul", sizes=[8192]), op("b", "MatMul", sizes=[8192])]
    for number in range(3):
        ops.append(op(f"far{number}", "MatMul", [(len(ops) - 1, 0)]))
    for number in range(2):
        ops.append(op(f"late{number}", "MatMul", [(4, 0), (number, 0)], sizes=[8192]))
    simulator, plan = Simulator(Graph(ops)), Planner(Graph(ops)).plan(Settings(2, 0, 1, BOTH))
    assert len(plan.swaps) == 2
    one, two, three = (simulator.first_peak(plan, threads) for threads in (1, 2, 3))
    assert one == two <= three
    # What was far, what one of them reads and makes, and half of what the other does.
    assert one == 1024 + 2 * 8192 + 8192


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
    simulator = Simulator(graph)
    made = sum(sum(sizes) for sizes in simulator.sizes) + sum(simulator.scratch)
    for numbers in (Settings(graph.depth), Settings(1), held, Settings(2, sync_mode=BOTH)):
        plan = Planner(graph).plan(numbers)
        run = simulator.run(plan)
        assert min(run.device) >= 0 and min(run.host) >= 0
        # Of what came back, each reader may need a copy in the order of its images.
        ins = [swap_in for swap in plan.swaps for swap_in in swap.ins]
        most = max((len({edge.consumer for edge in each.edges}) for each in ins), default=0)
        assert run.peak <= made + run.swapped_in * (1 + most)
        assert run.host_peak <= run.swapped_out
