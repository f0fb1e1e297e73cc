# SPDX-License-Identifier: Apache-2.0
"""Numbers for each tensor."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_large_model_support.best import Best
from tensorflow_large_model_support.choice import BOTH, Settings
from tensorflow_large_model_support.graph import Graph
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.profiles import PROFILES, Profile
from tensorflow_large_model_support.simulator import Simulator
from tensorflow_large_model_support.timing import Timer
from tensorflow_large_model_support.tuner import Found, Tuner
from tflms_graphs import Put, graphs, training, values

V100 = PROFILES["v100-32gb-pcie3"]


def found(
    graph: Graph, share: float, profile: Profile = V100, mode: int = 0
) -> tuple[int, Found | None, Found | None]:
    """The limit, what the tuner found, and what became of it."""
    planner, simulator, timer = Planner(graph), Simulator(graph), Timer(graph, profile)
    limit = int(simulator.run(Plan(Settings(graph.depth))).peak * share)
    tuned = Tuner(planner, simulator, timer, limit, lambda line: None).tune(
        Settings(-1, -1, -1, mode)
    )
    if tuned is None or tuned.plan is None:
        return limit, tuned, tuned
    return limit, tuned, Best(planner, simulator, timer, limit).improve(tuned)


@pytest.mark.parametrize("mode", [0, BOTH])
def test_it_is_faster_than_the_same_numbers_for_all(mode):
    gained = []
    for seed, length, share in product(range(4), (12, 60), (0.75, 0.5, 0.3)):
        limit, tuned, best = found(training(length, seed), share, mode=mode)
        if tuned is not None:
            assert best.memory.peak <= limit
            gained.append(best.timing.total / tuned.timing.total)
    assert len(gained) > 15 and max(gained) <= 1
    assert sum(gained) / len(gained) < 0.98 and sum(each < 0.97 for each in gained) > 5


def test_where_nothing_is_waited_for_nothing_is_looked_for():
    endless = V100._replace(link_in=1e18, link_out=1e18, copy=0)
    _, tuned, best = found(training(12, seed=0), 0.5, endless)
    assert best is tuned and not tuned.plan.each and tuned.plan.swaps


@settings(max_examples=40, deadline=None)
@given(graphs(), st.floats(0.2, 0.95), st.integers(0, 3))
def test_it_fits_is_no_slower_and_changes_no_value(graph, share, mode):
    limit, tuned, best = found(graph, share, mode=mode)
    if best is None or best.plan is None:
        return
    assert best.memory == Simulator(graph).run(best.plan) and best.memory.peak <= limit
    assert best.timing.total <= tuned.timing.total
    put = Put(graph, best.plan)
    assert values(graph, put) == values(graph, Put(graph, Plan(best.plan.settings)))


@settings(max_examples=40, deadline=None)
@given(graphs(), st.floats(0.2, 0.95), st.data())
def test_a_fetch_runs_no_op_that_it_did_not_run_before(graph, share, data):
    best = found(graph, share)[2]
    if best is None or best.plan is None:
        return
    fetched = data.draw(st.integers(0, len(graph.ops) - 1))
    ran = {node for node in Put(graph, best.plan).needed(fetched) if isinstance(node, int)}
    assert ran == Put(graph, Plan(best.plan.settings)).needed(fetched)


def test_a_graph_of_two_thousand_ops_takes_seconds():
    graph = training(1000, seed=0)
    began = time.process_time()
    best = found(graph, 0.2, mode=BOTH)[2]
    assert best.plan.each and time.process_time() - began < 10
