# SPDX-License-Identifier: Apache-2.0
"""One run of a graph with a plan, as far as memory goes: level by level, references counted.

The ops of a level run together, but for those of a serialised level. A buffer is there from the
level of its op to the level of the last op that reads it, or another name of it; what is copied
out beside other ops, a level longer. What came back is there from the level of the op that triggers
the swap-in, or where it is waited for that of its reader, to the last op that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest
from itertools import accumulate
from operator import add
from typing import NamedTuple

from tensorflow_large_model_support.graph import (
    LEFT_ALONE,
    MERGES,
    PASSED_ON,
    SAME_BUFFER,
    SWITCHES,
    Graph,
)
from tensorflow_large_model_support.plan import Plan, Swap

ROUNDING = 256  # of TensorFlow's BFC allocator
# Write their result where an input of its size was, when they are the last to read that.
IN_PLACE = frozenset(
    {
        *("Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum", "Pow"),
        *("Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Tanh", "Sigmoid", "Softplus", "Erf"),
        *("ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "TanhGrad", "SigmoidGrad", "SqrtGrad"),
        *("BiasAdd", "Neg", "Exp", "Log", "Square", "Sqrt", "Rsqrt", "Reciprocal", "Abs", "Sign"),
        *("Softmax", "LogSoftmax", "SquaredDifference", "RsqrtGrad", "ReciprocalGrad"),
    }
)


# What GPU kernels work in beside their operands, as their allocations show: the gradient of a
# convolution's input is made in a second tensor of its size; for pooling, all that is read and made
# is copied into the order of the library.
SECOND_RESULT = frozenset({"Conv2DBackpropInput", "Conv3DBackpropInputV2"})
SECOND_OPERANDS = frozenset(
    {"MaxPool3D", "AvgPool3D", "MaxPool3DGrad", "AvgPool3DGrad", "AvgPoolGrad"}
)

# Puts what it reads and makes in the order of a product of matrices, but for the largest.
IN_ORDER = frozenset({"Einsum"})


# When a convolution of a new kind first runs, TensorFlow tries the library's algorithms for it
# (unless TF_CUDNN_USE_AUTOTUNE is 0): into a second result, with a red zone of 8 MiB at each end
# of that, and of what the algorithm works in. Where there is no room for them it does without.
SEARCHED = frozenset(
    {
        *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
        *("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
    }
)
RED_ZONES = 4 * (8 << 20)

# On a GPU Grappler has these compute on images with the channels first, and what follows them, as
# far as it goes element by element: what comes from elsewhere is copied into that order.
CHANNELS_FIRST = frozenset(
    {
        *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "DepthwiseConv2dNative"),
        *("DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter"),
        *("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "FusedBatchNormGrad"),
        *("FusedBatchNormGradV2", "FusedBatchNormGradV3", "AvgPool", "AvgPoolGrad", "MaxPool"),
        *("MaxPoolGrad", "MaxPoolV2", "MaxPoolGradV2", "BiasAddGrad", "BiasAdd"),
        *("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
    }
)
FOLLOWS = (
    IN_PLACE | SWITCHES | MERGES | SAME_BUFFER - {"Reshape", "Squeeze", "ExpandDims", "Bitcast"}
)
# Their results are not made in a run, or are what they read.
_OF_NO_SIZE = LEFT_ALONE | PASSED_ON


def rounded(size: int) -> int:
    return -(-size // ROUNDING) * ROUNDING


class Memory(NamedTuple):
    """What a run takes, in bytes, at each step of it."""

    device: list[int]
    host: list[int]  # of what is swapped out
    swapped_out: int
    swapped_in: int

    @property
    def peak(self) -> int:
        return max(self.device, default=0)

    @property
    def host_peak(self) -> int:
        return max(self.host, default=0)


class Simulator:
    def __init__(self, graph: Graph, within: Mapping[int, int] | None = None) -> None:
        """`within`: what the functions take that an op runs."""
        self.within = dict(within or {})
        self.graph = graph
        self.sizes = [
            tuple(rounded(out.size) if out.size and out.moves else 0 for out in op.outputs)
            if op.on_device and op.type not in _OF_NO_SIZE
            else (0,) * len(op.outputs)
            for op in graph.ops
        ]
        self._first = self._channels_first()
        self.scratch = [self._scratch_of(number) for number in range(len(graph.ops))]
        self._searches = set(self._kinds().values())

    def _kinds(self) -> dict[tuple[object, ...], int]:
        """Of each kind of convolution, by what it reads and makes, the first."""
        found: dict[tuple[object, ...], int] = {}
        for number in self.graph.order:
            op = self.graph.ops[number]
            if op.type in SEARCHED and op.on_device:
                read = tuple(self.graph.ops[each.op].outputs[each.port] for each in op.inputs)
                found.setdefault((op.type, op.outputs, read), number)
        return found

    def _channels_first(self) -> list[bool]:
        first = [op.type in CHANNELS_FIRST and op.on_device for op in self.graph.ops]
        for number in self.graph.order:
            op = self.graph.ops[number]
            if op.type in FOLLOWS and op.on_device:
                first[number] = any(first[tensor.op] for tensor in op.inputs)
        return first

    def _scratch_of(self, number: int) -> int:
        op = self.graph.ops[number]
        if not op.on_device:
            return 0
        made = sum(self.sizes[number])
        read = [
            rounded(self.graph.ops[tensor.op].outputs[tensor.port].size or 0)
            if self.graph.ops[tensor.op].outputs[tensor.port].moves
            else 0
            for tensor in op.inputs
        ]
        if op.type in SECOND_OPERANDS:
            return made + sum(read)
        if op.type in IN_ORDER:
            return made + sum(read) - max(made, *read, 0)
        scratch = made if op.type in SECOND_RESULT else 0
        if self._first[number]:
            scratch += sum(
                self.sizes[tensor.op][tensor.port]
                for tensor in op.inputs
                if not self._first[tensor.op]
            )
        return scratch

    def run(self, plan: Plan) -> Memory:
        step, steps = self._steps(plan)
        seen = self._run(plan, step, steps)
        # A kernel's scratch goes when it was launched, and the next of the stream takes its place.
        scratch = [0] * steps
        for number, at in enumerate(step):
            scratch[at] = max(scratch[at], seen.scratch[number])
        device = list(map(add, seen.life.memory(steps), scratch))
        return Memory(device, list(accumulate(seen.host))[:steps], seen.moved_out, seen.moved_in)

    def first_peak(self, plan: Plan, threads: int = 1) -> int:
        """What an allocator sees at most, in bytes, of a first run, in which algorithms are
        searched where there is room for that. The order of a step's ops is not known: each is taken
        for the first, and all as they become ready. Nor is it whether threads launch several of
        them at once, which goes by chance: half of what more that would take is taken. What comes
        back is launched by none of them, so that with one thread, too, it may be there for two."""
        if plan.swaps:
            threads = max(threads, 2)
        place = [0] * len(self.graph.ops)
        for at, number in enumerate(self.graph.order):
            place[number] = at
        search = [0] * len(self.graph.ops)
        for number in self._searches:
            search[number] = sum(self.sizes[number]) + RED_ZONES
        step, steps = self._steps(plan)
        seen = self._run(plan, step, steps)
        in_order = self._run(plan, place, len(place))
        alone = max(_begun(seen, step, steps, 1, search),
                    _begun(in_order, place, len(place), 1, search))  # fmt: skip
        together = _begun(seen, step, steps, threads, [0] * len(search))
        return alone + max(together - alone, 0) // 2

    def _run(self, plan: Plan, step: list[int], steps: int) -> _Run:
        life = _Lives()
        scratch = list(self.scratch)
        own: list[list[int]] = [[] for _ in self.graph.ops]
        buffer: list[list[int]] = [[] for _ in self.graph.ops]
        swaps: dict[tuple[int, int], Swap] = {swap.tensor: swap for swap in plan.swaps}
        copies: dict[int, dict[int, int]] = {}  # that an op reads, by slot
        host = [0] * (steps + 1)
        moved_out = moved_in = 0
        for number in self.graph.order:
            op = self.graph.ops[number]
            begin = step[number]
            reads = [buffer[tensor.op][tensor.port] for tensor in op.inputs]
            for slot, copy in copies.get(number, {}).items():
                reads[slot] = copy
            for read in reads:
                life.read(read, begin)
            if number in self.within:
                own[number].append(life.make(self.within[number], begin))
            in_place = op.type in IN_PLACE
            for port, size in enumerate(self.sizes[number]):
                if op.type in SAME_BUFFER and port < len(reads) and op.on_device:
                    made = reads[port]
                elif op.type in PASSED_ON and op.outputs[port].moves and op.on_device:
                    made = max(
                        reads[:1] if op.type in SWITCHES else reads, key=life.size.__getitem__
                    )
                else:
                    made = life.make(size, begin)
                    own[number].append(made)
                    if in_place and size:
                        life.over[made] = tuple(reads)
                buffer[number].append(made)
                swap = swaps.get((number, port))
                if swap is None:
                    continue
                if not swap.held:
                    life.late.add(made)
                size = size or life.size[made]
                moved_out += size
                last = begin
                for swap_in in swap.ins:
                    first = min(step[edge.consumer] for edge in swap_in.edges)
                    at = first
                    if not plan.settings.waits_in:
                        ran = (step[op] for op in swap_in.triggers)
                        at = min(max(ran, default=begin + 1), first)
                    copy = life.make(size, at)
                    for reader in {edge.consumer for edge in swap_in.edges}:
                        own[reader].append(copy)
                        # What it makes comes when the copy has been read.
                        if self._first[reader] and self._first[number]:
                            scratch[reader] += max(size - sum(self.sizes[reader]), 0)
                    moved_in += size
                    last = max(last, at)
                    for reader, slot in swap_in.edges:
                        copies.setdefault(reader, {})[slot] = copy
                host[begin] += size
                host[min(last + 1, steps)] -= size
        return _Run(life, scratch, own, host, moved_out, moved_in)

    def _steps(self, plan: Plan) -> tuple[list[int], int]:
        """When each op runs; a serialised level takes as many steps as it has ops in a row."""
        if not plan.chain:
            return self.graph.level, self.graph.depth
        place = [0] * len(self.graph.ops)
        for first, second in plan.chain:
            place[second] = place[first] + 1
        width = [1] * self.graph.depth
        for number, level in enumerate(self.graph.level):
            width[level] = max(width[level], place[number] + 1)
        begins = [0, *accumulate(width)]
        steps = [begins[level] + place[n] for n, level in enumerate(self.graph.level)]
        return steps, begins[-1]


class _Lives:
    """From when to when each buffer is there."""

    def __init__(self) -> None:
        self.size: list[int] = []
        self.begin: list[int] = []
        self.end: list[int] = []
        self.readers: list[int] = []  # at its end
        self.over: dict[int, tuple[int, ...]] = {}  # buffers that may take an input's place
        self.late: set[int] = set()  # copied out while others run, for a step more

    def make(self, size: int, begin: int) -> int:
        self.size.append(size)
        self.begin.append(begin)
        self.end.append(begin)
        self.readers.append(0)
        return len(self.size) - 1

    def read(self, buffer: int, step: int) -> None:
        if step > self.end[buffer]:
            self.end[buffer], self.readers[buffer] = step, 1
        elif step == self.end[buffer]:
            self.readers[buffer] += 1

    def memory(self, steps: int, *, begun: bool = True) -> list[int]:
        """At each step, with what begins there or before that does."""
        change = [0] * (steps + 2)
        for buffer, begin in self.begins():
            change[begin if begun else begin + 1] += self.size[buffer]
            end = self.end[buffer] + (buffer in self.late)
            change[min(end + 1, steps + 1)] -= self.size[buffer]
        return list(accumulate(change))[:steps]

    def begins(self) -> Iterator[tuple[int, int]]:
        for buffer, begin in enumerate(self.begin):
            if not self.size[buffer]:
                continue
            for old in self.over.get(buffer, ()):
                if (
                    self.size[old] == self.size[buffer]
                    and self.end[old] == begin
                    and self.readers[old] == 1
                    and self.begin[old] < begin
                    and old not in self.late
                    and self.end[buffer] > begin
                ):
                    begin += 1  # what was there until then has gone
                    break
            yield buffer, begin


class _Run(NamedTuple):
    life: _Lives
    scratch: list[int]  # of each op
    own: list[list[int]]  # the buffers that each op makes, and those that come back for it
    host: list[int]  # what changes at each step
    moved_out: int
    moved_in: int


def _begun(seen: _Run, step: list[int], steps: int, threads: int, more: list[int]) -> int:
    """The most when so many ops of a step have begun, and none of them has ended. `more`: what
    each takes besides."""
    before, begins = seen.life.memory(steps, begun=False), dict(seen.life.begins())
    taken: list[list[int]] = [[] for _ in range(steps)]
    for number, at in enumerate(step):
        own = sum(seen.life.size[each] for each in seen.own[number] if begins.get(each) == at)
        taken[at].append(own + seen.scratch[number] + more[number])
    return max(map(add, before, (sum(nlargest(threads, ops)) for ops in taken)), default=0)
