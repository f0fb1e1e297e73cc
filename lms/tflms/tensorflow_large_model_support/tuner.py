# SPDX-License-Identifier: Apache-2.0
"""Finds the numbers that were left open by simulated runs: what fits, and of that the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tensorflow_large_model_support.choice import BOTH, IN, OUT, Settings
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.simulator import Memory, Simulator
from tensorflow_large_model_support.timing import Timer, Timing

_RUNGS = (0.75, 0.5, 0.25)  # of the thresholds that fit: smaller ones, that leave room for ahead


@dataclass(frozen=True)
class Found:
    plan: Plan | None  # None: it fits as it is
    memory: Memory
    timing: Timing


class Tuner:
    def __init__(
        self,
        planner: Planner,
        simulator: Simulator,
        timer: Timer,
        limit: int,
        say: Callable[[str], None],
    ) -> None:
        self.planner, self.simulator, self.timer = planner, simulator, timer
        self.limit, self.say = limit, say

    def unchanged(self) -> Found:
        """What the graph takes as it is."""
        plan = Plan(Settings(self.planner.graph.depth))
        return Found(None, self.simulator.run(plan), self.timer.run(plan))

    def tune(self, wanted: Settings) -> Found | None:
        """None: nothing fits. Numbers that are not negative stay as they are."""
        if max(wanted.threshold, wanted.ahead, wanted.groupby) < 0:
            before = self.unchanged()
            if before.memory.peak <= self.limit:
                return before
        found = self._numbers(wanted)
        if found is not None:
            return self._fastest([found, *self._smaller(found, wanted)])
        # Rather than for all copies, computing may do with waiting for those one way.
        ways = wanted.sync_mode
        modes = (mode for mode in (BOTH, IN, OUT) if mode != ways and mode & ways == ways)
        tried = (self._numbers(replace(wanted, sync_mode=mode)) for mode in modes)
        waiting = [each for each in tried if each is not None]
        return self._fastest(waiting) if waiting else None

    def fits(self, settings: Settings) -> bool:
        return self.simulator.run(self.planner.plan(settings)).peak <= self.limit

    def _numbers(self, wanted: Settings) -> Settings | None:
        """As IBM's: the largest threshold that fits, then ahead, then groupby."""
        found = self._threshold(wanted)
        return None if found is None else self._later(found, wanted)

    def _threshold(self, wanted: Settings) -> Settings | None:
        start = replace(wanted, ahead=_or(wanted.ahead, 1), groupby=_or(wanted.groupby, 0))
        if wanted.threshold >= 0:
            return start if self.fits(start) else None
        best = _largest(
            self._thresholds, lambda number: self.fits(replace(start, threshold=number))
        )
        if best is None:
            return None
        found = replace(start, threshold=best)
        self._tell(found)
        return found

    @cached_property
    def _thresholds(self) -> list[int]:
        """Between two distances that occur, every threshold is the same plan."""
        distances = sorted(set(self.planner.distances()))
        return [1, *(distance - 1 for distance in distances if distance > 2)]

    def _later(self, found: Settings, wanted: Settings) -> Settings:
        """The largest ahead, then groupby, that still fit; none where swap-ins are waited for."""
        if found.waits_in:
            return found
        depth = self.planner.graph.depth
        if wanted.ahead < 0:
            found = self._ahead(found, range(1, depth + 1))
            self._tell(found)
        if wanted.groupby < 0:
            grouped = replace(found, groupby=depth)
            if not self.fits(grouped):
                alone = found
                best = _largest(
                    range(depth), lambda number: self.fits(replace(alone, groupby=number))
                )
                grouped = replace(found, groupby=best or 0)
            found = grouped
            self._tell(found)
        return found

    def _ahead(self, found: Settings, numbers: Sequence[int]) -> Settings:
        best = _largest(numbers, lambda number: self.fits(replace(found, ahead=number)))
        return replace(found, ahead=best or found.ahead)

    def _smaller(self, found: Settings, wanted: Settings) -> Iterator[Settings]:
        """Others that fit, which swap more and for that earlier."""
        if found.waits_in or wanted.threshold >= 0 or wanted.ahead >= 0:
            return
        fitting = [number for number in self._thresholds if number <= found.threshold]
        start = replace(found, ahead=1, groupby=_or(wanted.groupby, 0))
        powers = [1 << power for power in range(self.planner.graph.depth.bit_length())]
        for place in sorted({int(len(fitting) * rung) for rung in _RUNGS} - {len(fitting) - 1}):
            other = replace(start, threshold=fitting[place])
            if self.fits(other):
                other = self._ahead(other, powers)
                self._tell(other)
                yield other

    def _fastest(self, choices: Sequence[Settings]) -> Found:
        """The first of those that are as fast as any."""
        plans = [self.planner.plan(settings) for settings in choices]
        timings = [self.timer.run(plan) for plan in plans]
        best = min(range(len(plans)), key=lambda number: timings[number].total)
        return Found(plans[best], self.simulator.run(plans[best]), timings[best])

    def _tell(self, settings: Settings) -> None:
        self.say(f"Found a parameter set: {settings.described}")


def _or(number: int, otherwise: int) -> int:
    return otherwise if number < 0 else number


def _largest(numbers: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """By bisection: fewer, or later, swaps take more memory."""
    low, high = 0, len(numbers)  # what is below low fits, what is at high does not
    while low < high:
        middle = (low + high) // 2
        if fits(numbers[middle]):
            low = middle + 1
        else:
            high = middle
    return numbers[low - 1] if low else None
