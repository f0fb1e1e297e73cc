# SPDX-License-Identifier: Apache-2.0
"""Which tensors are swapped, and that a plan changes nothing but that."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_large_model_support.choice import BOTH, IN, OUT, Settings, Side
from tensorflow_large_model_support.graph import Graph
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.simulator import Simulator
from tflms_graphs import PREDICATES, Put, branching, chain, graphs, op, run, values

NUMBERS = st.builds(
    Settings,
    threshold=st.integers(0, 12),
    groupby=st.integers(0, 12),
    ahead=st.integers(0, 12),
    sync_mode=st.integers(0, 3),
    serialized=st.frozensets(st.integers(0, 6), max_size=4),
)
MANY = settings(max_examples=40, deadline=None)


def swapped(graph: Graph, plan: Plan) -> dict[str, list[list[str]]]:
    """Name of the source -> the readers of each of its swap-ins."""
    return {
        graph.ops[swap.tensor.op].name: [
            [graph.ops[edge.consumer].name for edge in swap_in.edges] for swap_in in swap.ins
        ]
        for swap in plan.swaps
    }


@MANY
@given(graphs(), NUMBERS, st.booleans())
def test_a_plan_closes_no_cycle_and_changes_no_value(graph, numbers, whole):
    put = Put(graph, Planner(graph, whole=whole).plan(numbers))
    assert values(graph, put) == values(graph, Put(graph, Plan(numbers)))


@MANY
@given(branching(), NUMBERS, st.booleans())
def test_what_runs_in_branches_is_the_same(graph, numbers, whole):
    """Whichever are taken: a plan keeps nothing from running that ran, nor makes more run."""
    plain, put = Put(graph, Plan(numbers)), Put(graph, Planner(graph, whole=whole).plan(numbers))
    for ways in product((0, 1), repeat=len(PREDICATES)):
        taken = dict(zip(PREDICATES, ways, strict=True))
        before, after = run(graph, plain, taken), run(graph, put, taken)
        ops = range(len(graph.ops))
        assert [before.get(each) for each in ops] == [after.get(each) for each in ops]


def test_what_a_branch_reads_again_is_swapped_within_it():
    """And what a Merge gets from it; what is triggered by is there whenever that is."""
    ops = [op("x", "Conv2D"), op("p", "Placeholder")]
    ops += [op("s", "Switch", [(0, 0), (1, 0)], sizes=[1024, 1024])]
    ops += [op("no", "Conv2D", [(2, 0)]), op("yes", "Conv2D", [(2, 1)])]
    ops += [op("yes2", "Conv2D", [(4, 0)]), op("yes3", "Conv2D", [(5, 0)])]
    ops += [op("again", "AddV2", [(6, 0), (4, 0)]), op("merge", "Merge", [(3, 0), (7, 0)])]
    graph = Graph(ops)
    plan = Planner(graph).plan(Settings(1))
    assert swapped(graph, plan) == {"no": [["merge"]], "yes": [["again"]]}
    triggers = {swap.tensor.op: swap.ins[0].triggers for swap in plan.swaps}
    assert triggers == {3: (), 4: (6,)}
    # One that is known not to be taken takes nothing.
    peak = [max(Simulator(each).run(Plan(Settings(9))).device) for each in (
        graph, graph.without(lambda branch: branch.port == 1),
    )]  # fmt: skip
    assert peak == [4 * 1024, 2 * 1024]


@MANY
@given(graphs(), NUMBERS)
def test_every_swap_in_has_its_trigger(graph, numbers):
    """An op between the source and the first reader, which every reader needs anyway."""
    plain = Put(graph, Plan(numbers))
    for swap in Planner(graph).plan(numbers).swaps:
        for swap_in in swap.ins:
            readers = {edge.consumer for edge in swap_in.edges}
            first = min(graph.level[reader] for reader in readers)
            for trigger in swap_in.triggers:
                assert trigger != swap.tensor.op and graph.level[trigger] < first
                assert all(trigger in plain.needed(reader) for reader in readers)
            if numbers.waits_in:
                assert swap_in.triggers or first - graph.level[swap.tensor.op] == 1
            elif first - graph.level[swap.tensor.op] > 1:
                (trigger,) = swap_in.triggers
                earliest = max(first - max(numbers.ahead, 1), graph.level[swap.tensor.op] + 1)
                assert graph.level[trigger] == earliest


@MANY
@given(graphs(), NUMBERS)
def test_exactly_the_far_edges_of_what_may_move_are_swapped(graph, numbers):
    planner = Planner(graph)
    swapped_edges = {
        edge for swap in planner.plan(numbers).swaps for one in swap.ins for edge in one.edges
    }
    far = {
        edge
        for candidate in planner.candidates
        for edge in candidate.edges
        if graph.level[edge.consumer] - graph.level[candidate.tensor.op] > numbers.threshold
    }
    assert swapped_edges == far


@MANY
@given(graphs(), NUMBERS, st.data())
def test_a_fetch_runs_no_op_that_it_did_not_run_before(graph, numbers, data):
    """But for ops that are put in a row, which are of the same ends."""
    plan = Planner(graph).plan(Settings(*[getattr(numbers, n) for n in (
        "threshold", "groupby", "ahead", "sync_mode")]))  # fmt: skip
    fetched = data.draw(st.integers(0, len(graph.ops) - 1))
    ran = {node for node in Put(graph, plan).needed(fetched) if isinstance(node, int)}
    assert ran == Put(graph, Plan(numbers)).needed(fetched)


@MANY
@given(graphs(), st.frozensets(st.integers(0, 6), min_size=1))
def test_an_end_of_the_graph_runs_no_more_when_levels_are_serialised(graph, levels):
    plan = Planner(graph).plan(Settings(99, serialized=levels))
    read = {number for each in range(len(graph.ops)) for number in graph.previous(each)}
    for end in set(range(len(graph.ops))) - read:
        assert Put(graph, plan).needed(end) == Put(graph, Plan(plan.settings)).needed(end)


def test_what_is_read_beyond_the_threshold_is_swapped():
    graph = chain(4)  # the result of forward/0 is read on levels 2 and 8
    planner = Planner(graph)
    assert set(swapped(graph, planner.plan(Settings(6)))) == set()
    assert swapped(graph, planner.plan(Settings(5))) == {"forward/0": [["backward/1"]]}
    assert set(swapped(graph, planner.plan(Settings(1)))) == {
        "forward/0", "forward/1", "forward/2"
    }  # fmt: skip


def test_variables_constants_and_what_is_fed_stay():
    graph = Graph(
        [
            op("w", "VarHandleOp"),
            op("read", "ReadVariableOp", [(0, 0)]),
            op("same", "Identity", [(1, 0)]),
            op("c", "Const"),
            op("x", "Placeholder"),
            *(op(f"o{n}", "Conv2D", [(4 + n, 0)]) for n in range(5)),
            op("far", "AddN", [(2, 0), (3, 0), (4, 0), (9, 0), (5, 0)]),
        ]
    )
    assert swapped(graph, Planner(graph).plan(Settings(1))) == {"o0": [["far"]]}


def test_what_is_in_a_loop_stays():
    graph = Graph(
        [
            op("x", "Conv2D"),
            op("enter", "Enter", [(0, 0)]),
            op("in1", "Conv2D", [(1, 0)]),
            op("in2", "Conv2D", [(2, 0)]),
            op("in3", "AddV2", [(3, 0), (2, 0), (1, 0)]),
            op("exit", "Exit", [(4, 0)]),
            op("p", "Conv2D", [(5, 0)]),
            op("switch", "Switch", [(6, 0), (5, 0)], sizes=[4, 4]),
            op("taken", "Conv2D", [(7, 0)]),
            op("merge", "Merge", [(8, 0), (7, 1)]),
            op("after", "Conv2D", [(9, 0)]),
            op("last", "AddN", [(10, 0), (6, 0), (0, 0)]),
        ]
    )
    plan = Planner(graph).plan(Settings(1, ahead=3))
    assert swapped(graph, plan) == {"x": [["last"]], "p": [["last"]], "switch": [["merge"]]}
    for swap in plan.swaps:
        assert not any(map(graph.controlled, swap.ins[0].triggers))


def test_readers_near_each_other_share_a_swap_in():
    graph = chain(3)
    wide = Graph([*graph.ops, op("extra", "AddN", [(6, 0), (1, 0)])])
    assert swapped(wide, Planner(wide).plan(Settings(3)))["forward/0"] == [
        ["backward/1"], ["extra"]
    ]  # fmt: skip
    assert swapped(wide, Planner(wide).plan(Settings(3, groupby=2)))["forward/0"] == [
        ["backward/1", "extra"]
    ]


@pytest.mark.parametrize("ahead", [0, 1, 2, 3, 99])
def test_a_larger_ahead_is_earlier(ahead):
    graph = chain(4)
    (swap,) = Planner(graph).plan(Settings(5, ahead=ahead)).swaps
    (trigger,) = swap.ins[0].triggers
    reader = graph.level[swap.ins[0].edges[0].consumer]
    assert graph.level[trigger] == max(reader - max(ahead, 1), 2)


def test_what_waits_for_what_where_it_is_synchronous():
    graph = chain(3)
    for mode in (OUT, IN, BOTH):
        first = Planner(graph).plan(Settings(1, groupby=9, ahead=9, sync_mode=mode)).swaps[0]
        reader = first.ins[0].edges[0].consumer
        assert first.held == ((2,) if mode != IN else ())  # forward/1 waits for the swap-out
        if mode == OUT:
            assert graph.level[first.ins[0].triggers[0]] == 2
        else:
            assert first.ins[0].triggers == (reader - 1,)


def test_filters_of_both_ends():
    graph = chain(4)

    def with_sides(**sides):
        made = {end: Side(**sides.get(end, {})) for end in ("output", "input")}
        planner = Planner(graph, made["output"].takes(), made["input"].takes())
        return set(swapped(graph, planner.plan(Settings(1))))

    every = {"forward/0", "forward/1", "forward/2"}
    assert with_sides(output={"excl_scopes": {"forward"}}) == set()
    assert with_sides(output={"excl_scopes": {"forw"}}) == every  # no scope, only like one
    assert with_sides(output={"incl_scopes": {"forward/1"}}) == {"forward/1"}
    assert with_sides(output={"excl_types": {"Conv2D"}}) == set()
    assert with_sides(output={"incl_types": {"Conv2D"}, "excl_scopes": {"forward/0"}}) == {
        "forward/1", "forward/2"
    }  # fmt: skip
    assert with_sides(input={"excl_scopes": {"backward/1"}}) == {"forward/1", "forward/2"}
    assert with_sides(input={"incl_types": {"Conv2D"}}) == set()


def test_levels_are_run_in_a_row():
    ops = [op("x", "Conv2D"), *(op(f"o{n}", "Conv2D", [(0, 0)]) for n in range(3))]
    graph = Graph([*ops, op("end", "AddN", [(1, 0), (2, 0), (3, 0)])])
    assert Planner(graph).plan(Settings(9, serialized=frozenset({1}))).chain == ((1, 2), (2, 3))
    assert Planner(graph).plan(Settings(9)).chain == ()


def test_a_cycle_is_refused():
    with pytest.raises(ValueError, match="cycle"):
        Graph([op("a", "Conv2D", [(1, 0)]), op("b", "Conv2D", [(0, 0)])])
