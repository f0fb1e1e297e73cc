# SPDX-License-Identifier: Apache-2.0
"""One run of a graph with a plan, as far as time goes.

Three lines work beside each other, each on one thing at a time, in the order in which things become
ready: kernels, copies out, copies in. A kernel takes the longer of its arithmetic and its traffic.
A time is what the profile's figures would allow, so a lower bound: good for comparing plans.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tensorflow_large_model_support.graph import NO_WORK, Graph, Op
from tensorflow_large_model_support.plan import Plan
from tensorflow_large_model_support.profiles import Profile

SECOND = 10**9
_KERNELS, _OUT, _IN, _NO_LINE = range(4)


class Timing(NamedTuple):
    """Nanoseconds."""

    total: int
    kernels: int  # that the device computes
    copies_out: int
    copies_in: int
    ends: list[int]  # of each op

    @property
    def waited(self) -> int:
        return self.total - self.kernels


class Timer:
    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.graph, self.profile = graph, profile
        self.cost = [self._cost(op) for op in graph.ops]
        self._following: list[list[int]] = [[] for _ in graph.ops]
        self._waits = [0] * len(graph.ops)
        for number in range(len(graph.ops)):
            for other in set(graph.previous(number)):
                self._following[other].append(number)
                self._waits[number] += 1

    def copy_out(self, size: int) -> int:
        return self.profile.copy + int(size * SECOND / self.profile.link_out)

    def copy_in(self, size: int) -> int:
        return self.profile.copy + int(size * SECOND / self.profile.link_in)

    def run(self, plan: Plan) -> Timing:
        """What reads a swapped tensor waits for its op as before, and for the swap-in besides."""
        count = len(self.graph.ops)
        waits, cost, line = list(self._waits), list(self.cost), [_KERNELS] * count
        more: dict[int, list[int]] = {}  # that follow an op, or a copy
        for number, each in enumerate(cost):
            if not each:
                line[number] = _NO_LINE

        def add(takes: int, on: int, after: tuple[int, ...]) -> int:
            cost.append(takes)
            line.append(on)
            waits.append(len(after))
            node = len(cost) - 1
            for other in after:
                more.setdefault(other, []).append(node)
            return node

        def hold(number: int, after: int) -> None:
            more.setdefault(after, []).append(number)
            waits[number] += 1

        for swap in plan.swaps:
            size = self.graph.ops[swap.tensor.op].outputs[swap.tensor.port].size or 0
            out = add(self.copy_out(size), _OUT, (swap.tensor.op,))
            for number in swap.held:
                hold(number, out)
            for swap_in in swap.ins:
                back = add(self.copy_in(size), _IN, (out, *swap_in.triggers))
                for number in {edge.consumer for edge in swap_in.edges}:
                    hold(number, back)
        for first, second in plan.chain:
            hold(second, first)
        return self._run(waits, cost, line, more)

    def _run(
        self, waits: list[int], cost: list[int], line: list[int], more: dict[int, list[int]]
    ) -> Timing:
        count = len(self.graph.ops)
        free, busy = [0] * 3, [0] * 3
        ends = [0] * len(cost)
        ready = [0] * len(cost)
        heap = [(0, node) for node, left in enumerate(waits) if not left]
        heapify(heap)
        while heap:
            at, node = heappop(heap)
            on = line[node]
            if on != _NO_LINE:
                began = max(at, free[on])
                at = free[on] = began + cost[node]
                busy[on] += cost[node]
            ends[node] = at
            following = self._following[node] if node < count else ()
            for other in (*following, *more.get(node, ())):
                if ready[other] < at:
                    ready[other] = at
                waits[other] -= 1
                if not waits[other]:
                    heappush(heap, (ready[other], other))
        return Timing(max(ends, default=0), busy[_KERNELS], busy[_OUT], busy[_IN], ends[:count])

    def _cost(self, op: Op) -> int:
        if not op.on_device or op.type in NO_WORK:
            return 0
        if op.outputs and not any(output.moves for output in op.outputs):
            return 0  # a shape, or another thing of the host's
        traffic = sum(output.size or 0 for output in op.outputs if output.moves)
        for tensor in op.inputs:
            read = self.graph.ops[tensor.op].outputs[tensor.port]
            traffic += (read.size or 0) if read.moves else 0
        if not traffic:
            return 0
        work = max(traffic / self.profile.bandwidth, op.flops / self.profile.rate(op.width))
        return self.profile.kernel + int(work * SECOND)
