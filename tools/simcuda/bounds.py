# SPDX-License-Identifier: Apache-2.0
"""What no swapper can do better on a trace: the least bytes that had to move, the least time.

docs/bounds.md has the derivation. Needs scipy.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from .errors import SimcudaError
from .sizes import format_bytes
from .trace import Copy, Freed, Op, Trace

# Operators that overwrite what they write without having read it: it need not come in for them.
_OVERWRITE = frozenset(
    f"aten::{name}" for name in
    ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
     "_foreach_copy_", "_foreach_zero_")
)  # fmt: skip
# Operators on lists beside `_foreach_...`: they can be run a tensor at a time.
_ON_LISTS = frozenset(
    f"aten::{name}" for name in
    ("_amp_foreach_non_finite_check_and_unscale_", "_fused_adagrad_", "_fused_adam_",
     "_fused_adamw_", "_fused_sgd_")
)  # fmt: skip


@dataclass
class Step:
    """One operator: how long it computes, and the storages that must be there meanwhile: all at
    once, or one after the other if it is `divisible`."""

    name: str
    time: int  # nanoseconds
    uses: dict[int, str]  # storage -> "read", "write" (and read) or "make" (without a read)
    divisible: bool = False


@dataclass
class Problem:
    """Steps in their order, and the bytes of each storage. Rates are bytes a second. `ends`: how
    many steps there had been when the program let go of a storage; else its last use is its end."""

    steps: list[Step]
    sizes: dict[int, int]
    rate_in: float
    rate_out: float
    ends: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Bounds:
    """Bytes and nanoseconds. `peak`: what the steps need when nothing moves."""

    capacity: int
    peak: int
    bytes_in: int  # these two are of one solution with the least sum
    bytes_out: int
    compute: int
    time: int

    @property
    def bytes(self) -> int:
        return self.bytes_in + self.bytes_out


def problem_of(trace: Trace, device: int = 0, minimum: int = 0) -> Problem:
    """What a trace asks of memory. Storages below `minimum` bytes are left out, which can only
    lower the bounds."""
    steps: list[Step] = []
    sizes: dict[int, int] = {}
    lies_in: dict[int, int | None] = {}  # storage -> allocation, and the other way round
    holds: dict[int, int] = {}
    ends: dict[int, int] = {}
    for event in trace.of(Op, Copy, Freed):
        if isinstance(event, Freed):
            storage = holds.pop(event.allocation, None)
            if storage is not None and lies_in[storage] == event.allocation:
                ends[storage] = len(steps)
            continue
        if event.device != device:
            continue
        if isinstance(event, Copy) and event.storage and not event.of_op:
            lies_in[event.storage.number] = None  # it moves: what is freed then is not its end
        if isinstance(event, Op):
            uses = {}
            for use in event.uses:
                if use.storage.bytes < minimum:
                    continue
                sizes[use.storage.number] = use.storage.bytes
                lies_in[use.storage.number] = use.allocation
                if use.allocation is not None:
                    holds[use.allocation] = use.storage.number
                over = use.access == "write" and event.name in _OVERWRITE
                uses[use.storage.number] = "make" if over else use.access
            lists = event.name.startswith("aten::_foreach_") or event.name in _ON_LISTS
            steps.append(Step(event.name, max(event.duration, 0), uses, lists))
        elif event.of_op and event.unit == "compute" and steps:
            steps[-1].time += event.duration
    profile = trace.about["profile"]
    link = profile["efficiency"]["link"]
    return Problem(steps, sizes, profile["link_in"] * link, profile["link_out"] * link, ends)


class TooSmallError(SimcudaError):
    """A step alone does not fit."""


def bounds(problem: Problem, capacity: int) -> Bounds:
    """Raises TooSmallError."""
    model = _Model(_with_instants(problem), capacity)
    moved = model.least_bytes()
    compute = sum(step.time for step in problem.steps)
    return Bounds(capacity, model.peak, *moved, compute, compute + model.least_wait())


def _with_instants(problem: Problem) -> Problem:
    """With a step that uses nothing between two that are divisible: each of those needs little at a
    time, but what is used by both and does not come in for the second is all there between them."""
    steps: list[Step] = []
    places = []
    for step in problem.steps:
        if step.divisible and steps and steps[-1].divisible:
            steps.append(Step("", 0, {}))
        places.append(len(steps))
        steps.append(step)
    places.append(len(steps))
    ends = {storage: places[end] for storage, end in problem.ends.items()}
    return replace(problem, steps=steps, ends=ends)


@dataclass
class _Interval:
    """Between two uses of a storage, from after step `after` until before step `before`; or between
    the last one and its end. It does not return then, nor before a use that overwrites it."""

    after: int
    before: int
    size: int
    version: int  # of the contents, which a page-out saves once
    returns: bool = True


@dataclass
class _Linear:
    """A linear programme: the least sum of costs, with sums of variables that must be so much."""

    cost: list[float] = field(default_factory=list)
    limits: list[tuple[float, float | None]] = field(default_factory=list)
    equal: list[dict[int, float]] = field(default_factory=list)
    at_most: list[tuple[dict[int, float], float]] = field(default_factory=list)

    def variable(self, cost: float = 0, least: float = 0, most: float | None = None) -> int:
        self.cost.append(cost)
        self.limits.append((least, most))
        return len(self.cost) - 1

    def sums(self, changes: Iterable[dict[int, float]]) -> list[int]:
        """Variables that are the running sums of changes."""
        made: list[int] = []
        for change in changes:
            made.append(self.variable())
            row = {made[-1]: -1.0, **change}
            if len(made) > 1:
                row[made[-2]] = 1.0
            self.equal.append(row)
        return made

    def solve(self) -> Any:
        try:
            from scipy.optimize import linprog
            from scipy.sparse import csr_array
        except ImportError:
            raise SimcudaError("the bounds need scipy; pip install 'scipy>=1.11,<2'") from None

        def matrix(rows: list[dict[int, float]]) -> Any:
            at = [i for i, row in enumerate(rows) for _ in row]
            columns = [column for row in rows for column in row]
            values = [value for row in rows for value in row.values()]
            return csr_array((values, (at, columns)), shape=(len(rows), len(self.cost)))

        limited = {}
        if self.at_most:
            limited["A_ub"] = matrix([row for row, _ in self.at_most])
            limited["b_ub"] = [most for _, most in self.at_most]
        result = linprog(
            self.cost, A_eq=matrix(self.equal), b_eq=[0.0] * len(self.equal), bounds=self.limits,
            method="highs", **limited,
        )  # fmt: skip
        if not result.success:
            raise SimcudaError(f"the bounds were not found: {result.message}")
        return result.x


_UNIT = float(1 << 20)  # numbers near 1 suit the solver
_TIMES = 400  # steps at which time is looked at, so many at most
_VALLEYS = 16  # steps from which, and until which, and highest ones; so many of each at most
_CALLS = 32  # on lists, before which are such steps, too; so many at most


class _Model:
    def __init__(self, problem: Problem, capacity: int) -> None:
        self.problem = problem
        self._intervals, self._writes, self._found = _intervals(problem)
        self._loads = loads = self._needed()
        self._before = [0, *accumulate(step.time for step in problem.steps)]  # computing until each
        self.peak = max(loads, default=0)
        for step, load in zip(problem.steps, map(self._need, problem.steps), strict=True):
            if load > capacity:
                raise TooSmallError(
                    f"{step.name} needs {format_bytes(load)} at once, and the capacity is "
                    f"{format_bytes(capacity)}"
                )
        # At these steps so much must be away.
        self._excess = {k: load - capacity for k, load in enumerate(loads) if load > capacity}
        self._tight = sorted(self._excess)

    def _need(self, step: Step) -> int:
        sizes = [self.problem.sizes[storage] for storage in step.uses]
        return max(sizes, default=0) if step.divisible else sum(sizes)

    def _needed(self) -> list[int]:
        change = [0] * (len(self.problem.steps) + 1)
        for interval in self._intervals:
            change[interval.after + 1] += interval.size
            change[interval.before] -= interval.size
        kept, loads = 0, []
        for step, difference in zip(self.problem.steps, change, strict=False):
            kept += difference
            loads.append(kept + self._need(step))
        return loads

    def _moves(self, linear: _Linear, cost: float) -> tuple[dict[int, int], dict[int, int]]:
        """Variables of what is away in each interval, which comes in if it returns, and of what of
        each version goes out."""
        starts: dict[int, dict[int, float]] = defaultdict(dict)
        ends: dict[int, dict[int, float]] = defaultdict(dict)
        brought, saved = {}, {}
        for number, interval in enumerate(self._intervals):
            first = bisect_left(self._tight, interval.after + 1)
            if first == len(self._tight) or self._tight[first] >= interval.before:
                continue  # it never need go
            size = interval.size / _UNIT
            brought[number] = linear.variable(cost if interval.returns else 0, 0, size)
            if interval.version not in saved:
                saved[interval.version] = linear.variable(cost, 0, size)
            linear.at_most.append(({brought[number]: 1.0, saved[interval.version]: -1.0}, 0))
            starts[self._tight[first]][brought[number]] = 1.0
            ends[interval.before][brought[number]] = -1.0
        going = sorted({*self._tight, *ends})
        away = linear.sums({**starts[k], **ends[k]} for k in going)
        for k, variable in zip(going, away, strict=True):
            linear.limits[variable] = (self._excess.get(k, 0) / _UNIT, None)
        return brought, saved

    def least_bytes(self) -> tuple[int, int]:
        """In, and out."""
        if not self._tight:
            return 0, 0
        linear = _Linear()
        brought, saved = self._moves(linear, cost=1)
        found = linear.solve()
        return (
            round(sum(found[v] for n, v in brought.items() if self._intervals[n].returns) * _UNIT),
            round(sum(found[v] for v in saved.values()) * _UNIT),
        )

    def least_wait(self) -> int:
        """Nanoseconds that computing must wait for copies, in all."""
        if not self._tight:
            return 0
        linear = _Linear()
        brought, saved = self._moves(linear, cost=0)
        steps = self.problem.steps
        # Copies go on while a divisible step runs, for the rest of it.
        tight = [k for k in self._tight if not steps[k].divisible]
        if not tight:
            return 0
        peaks = [tight[at] for at in _valleys([-self._loads[k] for k in tight])]
        chosen = sorted({*tight[:: -(-len(tight) // _TIMES)], *peaks})
        before = self._before
        ends, begins = defaultdict(list), defaultdict(list)  # versions, by their last and first
        for version in saved:
            of = self._writes[version]
            ends[max(self._intervals[n].before for n in of)].append(saved[version])
            first = min(self._intervals[n].after for n in of)
            # What no step has made was there before, and can have been saved then.
            begins[-1 if version in self._found else first].append(saved[version])
        came, left = defaultdict(list), defaultdict(list)
        gone = _Spans()
        for number, variable in brought.items():
            interval = self._intervals[number]
            if interval.returns:
                came[interval.before].append(variable)
                left[interval.after].append(variable)
            else:
                gone.add(variable, interval.after + 1, interval.before - 1)
        total_in, total_out = (
            linear.sums([dict.fromkeys(of, 1.0)])[0]
            for of in ([variable for each in came.values() for variable in each], saved.values())
        )
        never_back = gone.sums(linear, chosen)

        def cumulated(at: dict[int, list[int]], through: bool) -> list[int]:
            """Of what has its place before each chosen step, or at it."""
            changes: list[dict[int, float]] = [{} for _ in range(len(chosen) + 1)]
            for step, variables in at.items():
                slot = bisect_left(chosen, step if through else step + 1)
                changes[slot].update((variable, 1.0) for variable in variables)
            return linear.sums(changes[:-1])

        whole = [k for k, step in enumerate(steps) if not step.divisible]
        valleys = {whole[at] for at in _valleys([self._loads[k] for k in whole])}
        valleys.update(self._before_lists())
        points = sorted({*chosen, *valleys})
        waited = linear.sums({linear.variable(): 1.0} for _ in points)
        last = linear.sums([{linear.variable(): 1.0, waited[-1]: 1.0}])[0]
        linear.cost[last] = 1.0
        waits = dict(zip(points, waited, strict=True))  # until a step
        in_before, out_before = cumulated(came, through=True), cumulated(ends, through=True)
        in_after, out_after = cumulated(left, through=False), cumulated(begins, through=False)
        for i, k in enumerate(chosen):
            excess = self._excess[k] / _UNIT
            early, late = before[k], before[-1] - before[k + 1]
            for rate, sum_before, sum_after, total in (
                (self.problem.rate_in, in_before, in_after, total_in),
                (self.problem.rate_out, out_before, out_after, total_out),
            ):
                fast = rate / 1e9 / _UNIT  # a nanosecond
                out, back = (excess, 0.0) if total == total_out else (0.0, excess)
                linear.at_most.append(
                    ({sum_before[i]: 1.0, waits[k]: -fast * 1e6}, fast * early - out)
                )
                row = {total: 1.0, sum_after[i]: -1.0, last: -fast * 1e6, waits[k]: fast * 1e6}
                if back:
                    row[never_back[i]] = -1.0
                linear.at_most.append((row, fast * late - back))
        for valley in valleys:
            at = bisect_left(chosen, valley)
            self._brought_by(valley, chosen[:at], linear, brought, waits)
            self._saved_since(
                valley, [k for k in chosen[at:] if k != valley], linear, brought, saved, waits
            )
        return max(0, round(float(linear.solve()[last]) * 1e6))

    def _before_lists(self) -> list[int]:
        """Those before the calls on lists that use most, so many at most. An optimiser makes them:
        what they write is kept for long, and saved before the next peak."""
        steps, sizes = self.problem.steps, self.problem.sizes
        calls = [
            k for k in range(1, len(steps)) if steps[k].divisible and not steps[k - 1].divisible
        ]
        calls.sort(key=lambda k: sum(sizes[n] for n in steps[k].uses), reverse=True)
        return [k - 1 for k in calls[:_CALLS]]

    def _brought_by(
        self, valley: int, within: list[int], linear: _Linear, brought: dict[int, int],
        waits: dict[int, int],
    ) -> None:  # fmt: skip
        """What is away at a step and used again by the valley comes in between the two."""
        stays, comes = _Spans(), _Spans()
        for number, variable in brought.items():
            interval = self._intervals[number]
            if interval.before > valley or not interval.returns:
                stays.add(variable, interval.after + 1, interval.before - 1)
            else:
                comes.add(variable, 0, interval.after)
        sums = zip(within, comes.sums(linear, within), stays.sums(linear, within), strict=True)
        for k, came, stayed in sums:
            self._copied(
                linear, self._excess[k], came, stayed, k, valley, self.problem.rate_in, waits
            )

    def _saved_since(
        self, valley: int, within: list[int], linear: _Linear, brought: dict[int, int],
        saved: dict[int, int], waits: dict[int, int],
    ) -> None:  # fmt: skip
        """What the valley and steps after it make, and is away at a step, or was and is of no use
        any more, is saved between the two."""
        old, over = _Spans(), _Spans()
        for version, variable in saved.items():
            of = [self._intervals[number] for number in self._writes[version]]
            if version in self._found or min(each.after for each in of) < valley:
                for number in self._writes[version]:
                    if number in brought:
                        interval = self._intervals[number]
                        old.add(brought[number], interval.after + 1, interval.before - 1)
            else:
                over.add(variable, max(each.before for each in of), len(self._loads))
        sums = zip(within, over.sums(linear, within), old.sums(linear, within), strict=True)
        for k, done, before in sums:
            self._copied(
                linear, self._excess[k], done, before, valley, k, self.problem.rate_out, waits
            )

    def _copied(
        self, linear: _Linear, bytes_: int, more: int, less: int, after: int, before: int,
        rate: float, waits: dict[int, int],
    ) -> None:  # fmt: skip
        """So many bytes, and the sum `more` without the sum `less`, are copied from the end of step
        `after` until step `before` begins."""
        fast = rate / 1e9 / _UNIT  # a nanosecond
        row = {more: 1.0, less: -1.0, waits[after]: fast * 1e6, waits[before]: -fast * 1e6}
        time = self._before[before] - self._before[after + 1]
        linear.at_most.append((row, fast * time - bytes_ / _UNIT))


def _valleys(loads: Sequence[int]) -> list[int]:
    """Places of the deepest valleys, so many at most: those where the least that lies around is the
    most above them, as between iterations."""
    lowest: dict[int, int] = {}  # of a stretch, by its first place and by its last
    span: dict[int, int] = {}  # the other end of a stretch
    depths: dict[int, int] = {}
    for at in sorted(range(len(loads)), key=loads.__getitem__):
        first = last = low = at
        for near in (at - 1, at + 1):
            if near not in span:
                continue
            # Two stretches meet here, where the shallower one's valley ends.
            low, other = sorted((low, lowest[near]), key=loads.__getitem__)
            depths[other] = loads[at] - loads[other]
            first, last = min(first, span[near]), max(last, span[near])
        span |= {first: last, last: first}
        lowest |= {first: low, last: low}
    deepest = [min(range(len(loads)), key=loads.__getitem__)] if loads else []
    return [*deepest, *sorted(depths, key=depths.__getitem__, reverse=True)][:_VALLEYS]


class _Spans:
    """Variables that each count from one step through another."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int]] = []

    def add(self, variable: int, first: int, last: int) -> None:
        self._spans.append((variable, first, last))

    def sums(self, linear: _Linear, steps: list[int]) -> list[int]:
        """Variables that are the sums at these steps, which ascend."""
        changes: list[dict[int, float]] = [defaultdict(float) for _ in range(len(steps) + 1)]
        for variable, first, last in self._spans:
            changes[bisect_left(steps, first)][variable] += 1.0
            changes[bisect_right(steps, last)][variable] -= 1.0
        return linear.sums(changes[:-1])


def _intervals(problem: Problem) -> tuple[list[_Interval], dict[int, list[int]], set[int]]:
    """Those that something has to survive, which of them have one version, and the versions that
    no step has made."""
    last: dict[int, tuple[int, int]] = {}  # storage -> step of its last use, version
    intervals: list[_Interval] = []
    versions: dict[int, list[int]] = defaultdict(list)
    found: set[int] = set()
    count = 0

    def add(storage: int, after: int, before: int, version: int, returns: bool) -> None:
        versions[version].append(len(intervals))
        size = problem.sizes[storage]
        intervals.append(_Interval(after, before, size, version, returns))

    for k, step in enumerate(problem.steps):
        for storage, access in step.uses.items():
            if storage in last:
                after, version = last[storage]
                if access != "make" or k > after + 1:
                    add(storage, after, k, version, returns=access != "make")
            if storage not in last or access != "read":
                count += 1
                last[storage] = k, count
                if access == "read":
                    found.add(count)
            else:
                last[storage] = k, last[storage][1]
    for storage, (after, version) in last.items():
        end = problem.ends.get(storage, 0)
        if end > after + 1:
            add(storage, after, end, version, returns=False)
    return intervals, versions, found
