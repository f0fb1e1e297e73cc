# SPDX-License-Identifier: Apache-2.0
"""Which tensors are swapped, when each comes back, and what waits for what.

Every edge that a plan adds goes up in this potential, so none closes a cycle: an op has its level,
one that runs after others of its level a fraction more; a swap-out has a little more than the op
whose result it takes; a swap-in lies half below the first op that reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from tensorflow_large_model_support.choice import Settings
from tensorflow_large_model_support.graph import (
    CONTROL_FLOW,
    LEFT_ALONE,
    MERGES,
    PASSED_ON,
    SAME_BUFFER,
    SWITCHES,
    Context,
    Edge,
    Graph,
    Op,
    Tensor,
)

_NEVER = CONTROL_FLOW - MERGES - SWITCHES  # of which nothing is swapped
_SAME = SAME_BUFFER | PASSED_ON


class SwapIn(NamedTuple):
    triggers: tuple[int, ...]  # the ops that must have run before
    edges: tuple[Edge, ...]  # that read it instead of the tensor


class Swap(NamedTuple):
    tensor: Tensor
    ins: tuple[SwapIn, ...]
    held: tuple[int, ...] = ()  # the ops that wait for the swap-out


@dataclass(frozen=True)
class Plan:
    settings: Settings
    swaps: tuple[Swap, ...] = ()
    chain: tuple[tuple[int, int], ...] = ()  # pairs of ops of a level, the second after the first
    each: bool = False  # by numbers of each tensor's own

    @property
    def described(self) -> str:
        if self.each:
            return f"each tensor by its own numbers, sync_mode: {self.settings.sync_mode}"
        return self.settings.described

    @property
    def swap_ins(self) -> int:
        return sum(len(swap.ins) for swap in self.swaps)


class Candidate(NamedTuple):
    """A tensor that may be swapped, and the edges that may read it from a swap-in."""

    tensor: Tensor
    near: tuple[Edge, ...]  # that read the tensor itself in any case
    edges: tuple[Edge, ...]  # sorted by the level of the op that reads


class Planner:
    """Makes plans for one graph, many of them when they are tried."""

    def __init__(
        self,
        graph: Graph,
        outputs: Callable[[Op], bool] = lambda op: True,
        inputs: Callable[[Op], bool] = lambda op: True,
        *,
        whole: bool = False,
    ) -> None:
        """`whole`: each run of the graph runs all of it; otherwise a fetch may need one op only."""
        self.graph = graph
        self.whole = whole
        self.candidates = list(_candidates(graph, outputs, inputs))

    def distances(self) -> list[int]:
        """Of each edge that may be swapped: the levels between its ends."""
        level = self.graph.level
        return [
            level[edge.consumer] - level[candidate.tensor.op]
            for candidate in self.candidates
            for edge in candidate.edges
        ]

    def plan(self, settings: Settings) -> Plan:
        """Swaps what is read from farther than the threshold."""
        alike = dict.fromkeys((candidate.tensor for candidate in self.candidates), settings)
        return replace(self.plan_each(alike, settings), each=False)

    def plan_each(self, numbers: Mapping[Tensor, Settings], settings: Settings) -> Plan:
        """Swaps the tensors that are in `numbers`, each by its own."""
        level = self.graph.level
        swaps = []
        for candidate in self.candidates:
            own = numbers.get(candidate.tensor)
            if own is None:
                continue
            reach = level[candidate.tensor.op] + own.threshold
            far = [edge for edge in candidate.edges if level[edge.consumer] > reach]
            if far:
                near = [edge for edge in candidate.edges if level[edge.consumer] <= reach]
                swaps.append(self._swap(candidate, near, far, own))
        if not (self.whole or settings.waits_in) and any(own.groupby for own in numbers.values()):
            swaps = self._apart(swaps, numbers)
        chain = tuple(self._chain(settings.serialized))
        return Plan(settings, tuple(swaps), chain, each=True)

    def _swap(
        self, candidate: Candidate, near: list[Edge], far: list[Edge], settings: Settings
    ) -> Swap:
        ins = []
        for group in self._groups(far, 0 if settings.waits_in else settings.groupby):
            triggers = self._triggers(candidate.tensor, group, settings)
            ins.append(SwapIn(triggers, tuple(group)))
        held: tuple[int, ...] = ()
        if settings.waits_out:
            ops = {edge.consumer for edge in (*candidate.near, *near)}
            context = self.graph.context_of(candidate.tensor)
            held = tuple(sorted(op for op in ops if self._may_wait(op, context)))
        return Swap(candidate.tensor, tuple(ins), held)

    def _may_wait(self, number: int, context: Context | None) -> bool:
        controls = self.graph.ops[number].type in CONTROL_FLOW
        return not controls and self.graph.made_with(context, number)

    def _groups(self, far: list[Edge], groupby: int) -> list[list[Edge]]:
        """Consumers within `groupby` levels of the first share a swap-in; one op is never apart."""
        groups: list[list[Edge]] = []
        for edge in far:
            if groups:
                first = groups[-1][0].consumer
                apart = self.graph.level[edge.consumer] - self.graph.level[first]
                if groups[-1][-1].consumer == edge.consumer or (groupby and apart <= groupby):
                    groups[-1].append(edge)
                    continue
            groups.append([edge])
        return groups

    def _triggers(self, tensor: Tensor, group: list[Edge], settings: Settings) -> tuple[int, ...]:
        """Ops that every fetch of the consumer runs anyway, as only ancestors of it are."""
        graph, consumer = self.graph, group[0].consumer
        ahead = settings.ahead
        if settings.waits_in:
            before = set(graph.previous(consumer)) - {tensor.op}
            ran = [
                op for op in before if graph.runs_with(op, consumer) and not self._is_no_work(op)
            ]
            if ran:
                return tuple(sorted(ran))
            ahead = 1
        lowest = graph.level[tensor.op] + 1
        wanted = max(graph.level[consumer] - max(ahead, 1), lowest)
        later, earlier = range(wanted, graph.level[consumer]), range(wanted - 1, lowest - 1, -1)
        for level in (*later, *earlier):
            found = graph.ancestor(consumer, level)
            if found is not None:
                return (found,)
        return ()

    def _is_no_work(self, number: int) -> bool:
        return self.graph.ops[number].type in LEFT_ALONE

    def _apart(self, swaps: list[Swap], numbers: Mapping[Tensor, Settings]) -> list[Swap]:
        """A swap-in of its own for a consumer that does not need the trigger of its group: fetched
        alone it would run the trigger."""
        bits = {op: 1 << n for n, op in enumerate({t for s in swaps for i in s.ins for t in i[0]})}
        needs = [0] * len(self.graph.ops)  # of these, what each op waits for
        for number in self.graph.order:
            found = bits.get(number, 0)
            for other in self.graph.previous(number):
                found |= needs[other]
            needs[number] = found
        parted = []
        for swap in swaps:
            ins = []
            for swap_in in swap.ins:
                wanted = sum(bits[op] for op in swap_in.triggers)
                alone = [e for e in swap_in.edges if needs[e.consumer] & wanted != wanted]
                kept = tuple(edge for edge in swap_in.edges if edge not in alone)
                ins.append(SwapIn(swap_in.triggers, kept))
                for group in self._groups(alone, 0):
                    triggers = self._triggers(swap.tensor, group, numbers[swap.tensor])
                    ins.append(SwapIn(triggers, tuple(group)))
            parted.append(swap._replace(ins=tuple(ins)))
        return parted

    def _chain(self, levels: frozenset[int]) -> Iterable[tuple[int, int]]:
        """Runs the ops of a level one after the other: those that the same ends of the graph need,
        so that no fetch runs an op that it did not need before."""
        if not levels:
            return
        ends = _ends(self.graph)
        alike: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, op in enumerate(self.graph.ops):
            if (
                self.graph.level[number] in levels
                and not self.graph.controlled(number)
                and op.type not in LEFT_ALONE
                and op.on_device
            ):
                alike[self.graph.level[number], ends[number]].append(number)
        for row in alike.values():
            yield from pairwise(row)


def _candidates(
    graph: Graph, outputs: Callable[[Op], bool], inputs: Callable[[Op], bool]
) -> Iterable[Candidate]:
    level = graph.level
    stays = _stays(graph)
    for tensor, readers in graph.readers.items():
        op, context = graph.ops[tensor.op], graph.context_of(tensor)
        if (
            tensor.op in stays
            or context is None
            or op.type in _NEVER
            or not (op.on_device and op.outputs[tensor.port].moves and outputs(op))
        ):
            continue
        near: list[Edge] = []
        edges: list[Edge] = []
        for edge in readers:
            consumer = graph.ops[edge.consumer]
            reads_at = graph.contexts[edge.consumer]
            if consumer.type in MERGES:  # runs without it, unless its branch is taken
                alike = reads_at is not None and reads_at <= context
            else:
                alike = consumer.type not in CONTROL_FLOW and reads_at == context
            may = alike and consumer.on_device and inputs(consumer)
            (edges if may else near).append(edge)
        if edges:
            edges.sort(key=lambda edge: (level[edge.consumer], edge))
            yield Candidate(tensor, tuple(near), tuple(edges))


def _stays(graph: Graph) -> set[int]:
    """Ops whose result is memory that stays whatever is swapped: of a variable, a constant, or what
    was fed."""
    stays: set[int] = set()
    for number in graph.order:
        op = graph.ops[number]
        same = op.type in _SAME and op.inputs
        if op.type in LEFT_ALONE or (same and op.inputs[0].op in stays):
            stays.add(number)
    return stays


def _ends(graph: Graph) -> list[int]:
    """For each op the set, as bits, of the ops without a consumer that need it."""
    ends = [0] * len(graph.ops)
    bit = 1
    for number in reversed(graph.order):
        if not ends[number]:
            ends[number] = bit
            bit <<= 1
        for other in graph.previous(number):
            ends[other] |= ends[number]
    return ends
