# SPDX-License-Identifier: Apache-2.0
"""Finds the numbers that were left open, by simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tensorflow_large_model_support.choice import BOTH, Settings
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.simulator import Memory, Simulator


@dataclass(frozen=True)
class Found:
    settings: Settings | None  # None: it fits as it is
    memory: Memory
    tries: int


class Tuner:
    def __init__(
        self, planner: Planner, simulator: Simulator, limit: int, say: Callable[[str], None]
    ) -> None:
        self.planner, self.simulator, self.limit, self.say = planner, simulator, limit, say
        self.tries = 0

    def unchanged(self) -> Memory:
        """What the graph takes as it is."""
        return self.simulator.run(Plan(Settings(self.planner.graph.depth)))

    def tune(self, wanted: Settings) -> Found | None:
        """None: nothing fits. Numbers that are not negative stay as they are."""
        open_numbers = [wanted.threshold < 0, wanted.ahead < 0, wanted.groupby < 0]
        before = self.unchanged()
        if all(open_numbers) and before.peak <= self.limit:
            return Found(None, before, self.tries)
        for mode in dict.fromkeys((wanted.sync_mode, BOTH)):
            found = self._threshold(replace(wanted, sync_mode=mode))
            if found is not None:
                return self._finished(self._later(found, wanted))
        return None

    def fits(self, settings: Settings) -> bool:
        self.tries += 1
        return self.simulator.run(self.planner.plan(settings)).peak <= self.limit

    def _threshold(self, wanted: Settings) -> Settings | None:
        start = replace(wanted, ahead=_or(wanted.ahead, 1), groupby=_or(wanted.groupby, 0))
        if wanted.threshold >= 0:
            return start if self.fits(start) else None
        distances = sorted(set(self.planner.distances()))
        # Between two distances that occur, every threshold is the same plan.
        thresholds = [1, *(distance - 1 for distance in distances if distance > 2)]
        best = _largest(thresholds, lambda number: self.fits(replace(start, threshold=number)))
        if best is None:
            return None
        found = replace(start, threshold=best)
        self._tell(found)
        return found

    def _later(self, found: Settings, wanted: Settings) -> Settings:
        """The largest ahead, then groupby, that still fit; none where swap-ins are waited for."""
        if found.waits_in:
            return found
        depth = self.planner.graph.depth
        if wanted.ahead < 0:
            with_ahead = found
            best = _largest(
                range(1, depth + 1), lambda number: self.fits(replace(with_ahead, ahead=number))
            )
            found = replace(found, ahead=best or found.ahead)
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

    def _finished(self, settings: Settings) -> Found:
        return Found(settings, self.simulator.run(self.planner.plan(settings)), self.tries)

    def _tell(self, settings: Settings) -> None:
        self.say(f"Found a parameter set: {described(settings)}")


def described(settings: Settings) -> str:
    return (
        f"swapout_threshold: {settings.threshold}, swapin_ahead: {settings.ahead}, "
        f"swapin_groupby: {settings.groupby}, sync_mode: {settings.sync_mode}"
    )


def _or(number: int, otherwise: int) -> int:
    return otherwise if number < 0 else number


def _largest(numbers: Iterator[int] | range | list[int], fits: Callable[[int], bool]) -> int | None:
    """By bisection: fewer, or later, swaps take more memory."""
    numbers = list(numbers)
    low, high = 0, len(numbers)  # what is below low fits, what is at high does not
    while low < high:
        middle = (low + high) // 2
        if fits(numbers[middle]):
            low = middle + 1
        else:
            high = middle
    return numbers[low - 1] if low else None
