# SPDX-License-Identifier: Apache-2.0
"""How long a simulated run takes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_large_model_support.choice import OUT, Settings
from tensorflow_large_model_support.graph import Graph, Op, Output
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.profiles import Profile
from tensorflow_large_model_support.timing import Timer
from tflms_graphs import chain, graphs, op

# One operation, or byte of traffic, in a nanosecond; a copied byte in two, or four.
SLOW = Profile("slow", 1e9, 1e9, 2e9, 1e9, 0.25e9, 0.5e9, kernel=10, copy=100)


def timed(graph: Graph, numbers: Settings | None = None, profile: Profile = SLOW):
    plan = Planner(graph).plan(numbers) if numbers else Plan(Settings(graph.depth))
    return Timer(graph, profile).run(plan)


def test_an_op_takes_the_longer_of_its_arithmetic_and_its_traffic():
    ops = [op("x", "Placeholder", sizes=[100]), op("a", "Relu", [(0, 0)], sizes=[100])]
    assert timed(Graph(ops)).total == 10 + 200
    ops.append(op("b", "Conv2D", [(1, 0)], sizes=[50])._replace(flops=900))
    assert timed(Graph(ops)).total == 210 + 10 + 900
    ops[-1] = ops[-1]._replace(width=2)  # of halves twice as many
    assert timed(Graph(ops)).total == 210 + 10 + 450


def test_what_computes_nothing_takes_nothing():
    ops = [op("x", "Placeholder"), op("same", "Reshape", [(0, 0)])]
    ops.append(Op("shape", "Shape", ops[1].inputs, (), (Output(16, moves=False),)))
    ops.append(op("elsewhere", "Conv2D", [(0, 0)], on_device=False))
    assert timed(Graph(ops)).total == 0


def test_kernels_are_one_after_the_other_and_copies_beside_them():
    graph = chain(3)  # each op reads and makes; those of the way back read two
    forward, backward = 10 + 2048, 10 + 3072
    without = timed(graph)
    assert without.total == without.kernels == 3 * forward + 3 * backward
    assert without.waited == 0
    # The second op of the way back reads what the first op made.
    swapped = timed(graph, Settings(3))
    out, back = 100 + 2048, 100 + 4096
    assert (swapped.copies_out, swapped.copies_in) == (out, back)
    assert swapped.total == 3 * forward + backward + back + 2 * backward
    # Begun an op earlier, the copy is hidden as far as that op goes.
    assert timed(graph, Settings(3, 0, 2)).total == 3 * forward + back + 2 * backward


def test_what_waits_for_a_copy_out_waits():
    graph, forward = chain(3), 10 + 2048
    early = Settings(3, 0, 9, OUT)
    assert timed(graph, early).total == 3 * forward + 3 * (10 + 3072) + (100 + 2048)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 6), st.integers(0, 3))
def test_no_line_does_two_things_at_once(graph, threshold, mode):
    plain = timed(graph)
    assert plain.total == plain.kernels
    swapped = timed(graph, Settings(threshold, 0, 1, mode))
    assert swapped.kernels == plain.kernels
    busy = (swapped.kernels, swapped.copies_out, swapped.copies_in)
    assert max(busy) <= swapped.total <= sum(busy)
