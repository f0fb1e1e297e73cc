# SPDX-License-Identifier: Apache-2.0
"""A graph and the functions that its ops run, each planned as a graph of its own.

What a function takes is there while the op runs that runs it, beside what is there at that op's
level in any case. Knows no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorflow_large_model_support.choice import BOTH, Settings
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.simulator import Memory, Simulator


@dataclass(eq=False)
class Part:
    name: str
    planner: Planner
    within: dict[int, list[Part]] = field(default_factory=dict)  # what an op of the graph runs
    source: Any = None  # what it was read from

    def all(self) -> Iterator[Part]:
        """Those within before what runs them."""
        for parts in self.within.values():
            for part in parts:
                yield from part.all()
        yield self


Plans = dict[Part, Plan]
Tune = Callable[[Part, Simulator, int], Plan | None]  # None: nothing fits


def run(part: Part, plans: Plans) -> Memory:
    """With everything within by its plan, too; unchanged where there is none."""
    plan = plans.get(part) or Plan(Settings(part.planner.graph.depth))
    return simulator(part, plans).run(plan)


def first_peak(part: Part, plans: Plans, threads: int) -> int:
    """Of a first run, in bytes, with so many threads that launch ops."""
    plan = plans.get(part) or Plan(Settings(part.planner.graph.depth))
    return simulator(part, plans).first_peak(plan, threads)


def simulator(part: Part, plans: Plans) -> Simulator:
    peaks = {number: max(run(each, plans).peak for each in parts)
             for number, parts in part.within.items()}  # fmt: skip
    return Simulator(part.planner.graph, peaks)


def tuned(part: Part, limit: int, tune: Tune) -> Plans | None:
    """Each part by itself, in what the others leave of the limit: first what runs others, beside
    the least that those take. None: something does not fit."""
    least = {each: _least(each) for each in part.all() if each is not part}
    return _tuned(part, limit, tune, least)


def _tuned(part: Part, limit: int, tune: Tune, least: Plans) -> Plans | None:
    outer = simulator(part, least)
    plan = tune(part, outer, limit)
    if plan is None:
        return None
    plans = {part: plan}
    memory = outer.run(plan).device
    level = part.planner.graph.level
    for number, parts in part.within.items():
        beside = memory[level[number]] - max(run(each, least).peak for each in parts)
        for each in parts:
            found = _tuned(each, limit - beside, tune, least)
            if found is None:
                return None
            plans.update(found)
    return plans


def _least(part: Part) -> Plan:
    return part.planner.plan(Settings(1, 0, 1, BOTH))
