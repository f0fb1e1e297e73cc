# SPDX-License-Identifier: Apache-2.0
"""A graph and what its ops run, planned together: who gets which memory."""

import pytest
from tensorflow_large_model_support import parts
from tensorflow_large_model_support.choice import Settings
from tensorflow_large_model_support.parts import Part
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.profiles import DEFAULT
from tensorflow_large_model_support.timing import Timer
from tensorflow_large_model_support.tuner import Tuner
from tflms_graphs import chain

MIB = 1 << 20


def part(length, size, *within, at=None):
    planner = Planner(chain(length, size), whole=True)
    found = {} if at is None else {at: list(within)}
    return Part(f"{length} of {size}", planner, found)


def tune(one, simulator, limit):
    timer = Timer(one.planner.graph, DEFAULT)
    found = Tuner(one.planner, simulator, timer, limit, print).tune(Settings(-1, -1, -1))
    return found and (found.plan or Plan(Settings(one.planner.graph.depth)))


def test_what_is_within_is_there_while_its_op_runs():
    inner = part(10, MIB)
    alone = parts.run(inner, {}).peak
    outer = part(20, MIB, inner, at=15)
    level = outer.planner.graph.level[15]
    without, beside = parts.run(part(20, MIB), {}).device, parts.run(outer, {}).device
    assert [b - a for a, b in zip(without, beside)] == [
        alone if number == level else 0 for number in range(len(without))
    ]
    assert [each.name for each in outer.all()] == [inner.name, outer.name]


def test_of_branches_the_larger_one_counts():
    small, large = part(5, MIB), part(15, MIB)
    outer = part(4, MIB, small, large, at=3)
    level = outer.planner.graph.level[3]
    added = parts.run(outer, {}).device[level] - parts.run(part(4, MIB), {}).device[level]
    assert added == parts.run(large, {}).peak


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
@pytest.mark.parametrize("at", [3, 20, 39])
def test_all_of_it_fits_in_what_was_given(share, at):
    innermost = part(10, MIB)
    inner = part(20, MIB, innermost, at=20)
    outer = part(20, MIB, inner, at=at)
    limit = int(parts.run(outer, {}).peak * share)
    plans = parts.tuned(outer, limit, tune)
    assert set(plans) == {outer, inner, innermost}
    assert parts.run(outer, plans).peak <= limit
    assert any(plan.swaps for plan in plans.values())


def test_what_cannot_fit():
    outer = part(20, MIB, part(10, MIB), at=20)
    assert parts.tuned(outer, 3 * MIB, tune) is None
