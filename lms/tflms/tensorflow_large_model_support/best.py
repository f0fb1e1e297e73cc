# SPDX-License-Identifier: Apache-2.0
"""Numbers for each tensor, instead of three for all: `plan="best"`.

Greedy, several times by several ideas of what is best to swap. What the tuner has found is one of
them, so that nothing slower than that is taken. Each time: tensors are swapped until the memory of
every level fits; those that turned out not to be needed stay after all; then each comes back as
early as the link wants it and the levels have room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from tensorflow_large_model_support.choice import Settings
from tensorflow_large_model_support.graph import Tensor
from tensorflow_large_model_support.plan import Candidate, Plan, Planner
from tensorflow_large_model_support.simulator import Simulator, rounded
from tensorflow_large_model_support.timing import Timer
from tensorflow_large_model_support.tuner import Found

Levels = np.ndarray[Any, np.dtype[np.int64]]  # bytes of each
_ROUNDS = 8  # of corrections, where levels take more than was thought


class Option(NamedTuple):
    """One way to swap a tensor: for which of its readers, and the levels it is away meanwhile."""

    tensor: Tensor
    threshold: int
    groupby: int
    size: int
    away: tuple[tuple[int, int], ...]  # from a level on, before another; of each swap-in
    copies: int  # nanoseconds

    @property
    def longest(self) -> int:
        return max(end - begin for begin, end in self.away)


# How much a way to swap is worth: bytes over the limit that it takes off, beside what it costs.
Worth = Callable[[Option, int], float]
_IDEAS: tuple[Worth, ...] = (
    lambda option, over: over / option.copies,
    lambda option, over: over and option.longest + over / (over + 1),  # the farthest first
    lambda option, over: over * option.longest / option.copies,
    lambda option, over: over,
)


class Best:
    def __init__(self, planner: Planner, simulator: Simulator, timer: Timer, limit: int) -> None:
        self.planner, self.simulator, self.timer, self.limit = planner, simulator, timer, limit
        self.level = planner.graph.level
        unchanged = Plan(Settings(planner.graph.depth))
        self._memory = np.array(simulator.run(unchanged).device)
        without = timer.run(unchanged)
        self._least, self._reached = without.total, self._times(without.ends)

    def improve(self, found: Found) -> Found:
        """The fastest that was found; `found` itself where nothing is faster."""
        assert found.plan is not None
        if found.timing.total <= self._least:
            return found
        settings = found.plan.settings
        options = {each.tensor: list(self._options(each, settings)) for each in self._candidates()}
        best = found
        for start in self._starts(options, settings):
            for tried in self._fitting(start, options, settings):
                if tried.timing.total < best.timing.total:
                    best = tried
        return best

    # What could be swapped ----------------------------------------------------------------------

    def _candidates(self) -> Iterator[Candidate]:
        return (each for each in self.planner.candidates if self._size(each.tensor))

    def _size(self, tensor: Tensor) -> int:
        return rounded(self.planner.graph.ops[tensor.op].outputs[tensor.port].size or 0)

    def _options(self, candidate: Candidate, settings: Settings) -> Iterator[Option]:
        """From after each of its readers on; what is read later by one swap-in, or by several."""
        made = self.level[candidate.tensor.op]
        kept = max((self.level[edge.consumer] for edge in candidate.near), default=made)
        readers = sorted({self.level[edge.consumer] for edge in candidate.edges})
        size = self._size(candidate.tensor)
        out, back = self.timer.copy_out(size), self.timer.copy_in(size)
        late = 1 if settings.waits_out else 2  # beside other ops the copy keeps it a level more
        early = 0 if settings.waits_in else 1
        for place, first in enumerate(readers):
            last = max(kept, readers[place - 1] if place else made)
            together = ((last + late, first - early),)
            rest = readers[place:]
            apart = tuple((one + 1, other - early) for one, other in pairwise(rest))
            threshold = first - made - 1
            ways = [(0, together + apart)] if settings.waits_in or apart else []
            if not settings.waits_in:
                ways.append((self.planner.graph.depth, together))
            for groupby, gaps in ways:
                away = tuple((begin, end) for begin, end in gaps if begin < end)
                if away:
                    cost = out + back * len(gaps)
                    yield Option(candidate.tensor, threshold, groupby, size, away, cost)

    # Plans that fit -----------------------------------------------------------------------------

    def _starts(
        self, options: dict[Tensor, list[Option]], settings: Settings
    ) -> Iterator[dict[Tensor, Option]]:
        yield self._alike(options, settings)
        for worth in _IDEAS:
            yield self._chosen({}, self._memory, options, worth)

    def _alike(
        self, options: dict[Tensor, list[Option]], settings: Settings
    ) -> dict[Tensor, Option]:
        """As by the numbers for all."""
        chosen = {}
        for tensor, ways in options.items():
            far = [way for way in ways if way.threshold >= settings.threshold]
            if far:
                chosen[tensor] = min(
                    far, key=lambda way: (way.threshold, abs(way.groupby - settings.groupby))
                )
        return chosen

    def _chosen(
        self, chosen: dict[Tensor, Option], memory: Levels,
        options: dict[Tensor, list[Option]], worth: Worth,
    ) -> dict[Tensor, Option]:  # fmt: skip
        """`chosen` and what is worth most besides, until all levels fit or nothing helps."""
        chosen = dict(chosen)
        over = np.maximum(memory - self.limit, 0)

        def value(option: Option) -> float:
            taken = (np.minimum(over[begin:end], option.size).sum() for begin, end in option.away)
            return worth(option, int(sum(taken)))

        ways = [way for tensor, ways in options.items() if tensor not in chosen for way in ways]
        # What an option is worth only falls, so that the first that is what it was is the best.
        heap = [(-value(way), number) for number, way in enumerate(ways)]
        heapify(heap)
        while heap:
            before, number = heap[0]
            way = ways[number]
            now = -value(way) if way.tensor not in chosen else 0.0
            if now != before and now < 0:
                heapreplace(heap, (now, number))
                continue
            heappop(heap)
            if now < 0:
                chosen[way.tensor] = way
                for begin, end in way.away:
                    np.maximum(over[begin:end] - way.size, 0, out=over[begin:end])
        return chosen

    def _fitting(
        self, chosen: dict[Tensor, Option], options: dict[Tensor, list[Option]], settings: Settings
    ) -> Iterator[Found]:
        """Plans that fit, each faster than the one before, it is hoped."""
        numbers = self._numbers(chosen, settings)
        memory = self._run(numbers, settings)
        for _ in range(_ROUNDS):
            if memory.max() <= self.limit:
                break
            more = self._chosen(chosen, memory, options, _IDEAS[0])
            if len(more) == len(chosen):
                return
            chosen, numbers = more, self._numbers(more, settings)
            memory = self._run(numbers, settings)
        else:
            return
        spared = self._spared(chosen, memory)
        kept = self._numbers(spared, settings)
        after = self._run(kept, settings)
        if after.max() <= self.limit:
            chosen, numbers, memory = spared, kept, after
        yield self._found(numbers, settings)
        if not settings.waits_in:
            yield from self._earlier(chosen, numbers, memory, settings)

    def _numbers(self, chosen: dict[Tensor, Option], settings: Settings) -> dict[Tensor, Settings]:
        return {
            tensor: replace(settings, threshold=way.threshold, groupby=way.groupby, ahead=1)
            for tensor, way in chosen.items()
        }

    def _run(self, numbers: dict[Tensor, Settings], settings: Settings) -> Levels:
        return np.array(self.simulator.run(self.planner.plan_each(numbers, settings)).device)

    def _found(self, numbers: dict[Tensor, Settings], settings: Settings) -> Found:
        plan = self.planner.plan_each(numbers, settings)
        return Found(plan, self.simulator.run(plan), self.timer.run(plan))

    def _spared(self, chosen: dict[Tensor, Option], memory: Levels) -> dict[Tensor, Option]:
        """Without what need not be swapped, the dearest first."""
        memory, kept = memory.copy(), dict(chosen)
        for way in sorted(chosen.values(), key=lambda way: (-way.copies, way.tensor)):
            room = self.limit - way.size
            if all(memory[begin:end].max() <= room for begin, end in way.away):
                del kept[way.tensor]
                for begin, end in way.away:
                    memory[begin:end] += way.size
        return kept

    # When what is swapped comes back ------------------------------------------------------------

    def _times(self, ends: list[int]) -> list[int]:
        """Of each level: when all up to it has been computed, without swapping."""
        done = [0] * self.planner.graph.depth
        for number, end in enumerate(ends):
            done[self.level[number]] = max(done[self.level[number]], end)
        return list(accumulate(done, max))

    def _earlier(
        self, chosen: dict[Tensor, Option], numbers: dict[Tensor, Settings], memory: Levels,
        settings: Settings,
    ) -> Iterator[Found]:  # fmt: skip
        """As early as wished; where that is too much, half as early."""
        ahead = dict(self._wished(chosen.values(), memory))
        for _ in range(_ROUNDS):
            if not ahead:
                return
            tried = {
                tensor: replace(own, ahead=ahead.get(tensor, 1)) for tensor, own in numbers.items()
            }
            found = self._found(tried, settings)
            if found.memory.peak <= self.limit:
                yield found
                return
            too_much = [size > self.limit for size in found.memory.device]
            for tensor in list(ahead):
                first = chosen[tensor].away[0][1] + 1
                if any(too_much[max(first - ahead[tensor], 0) : first + 1]):
                    ahead[tensor] //= 2
            ahead = {tensor: number for tensor, number in ahead.items() if number > 1}

    def _wished(self, chosen: Iterable[Option], memory: Levels) -> Iterator[tuple[Tensor, int]]:
        """How many levels before its first reader each is to begin to come back."""
        memory = memory.copy()
        order = sorted(chosen, key=lambda way: way.away[0][1])
        begins = []
        free = self._reached[-1]
        for way in reversed(order):  # when the link must begin, to be in time for all
            free = min(free, self._reached[way.away[0][1] - 1]) - self.timer.copy_in(way.size)
            begins.append(free)
        for way, begin in zip(order, reversed(begins), strict=True):
            away, end = way.away[0]
            wished = max(bisect_right(self._reached, begin) - 1, away)
            level = end
            while level > wished and memory[level - 1] + way.size <= self.limit:
                level -= 1
                memory[level] += way.size
            if level < end:
                yield way.tensor, end - level + 1
