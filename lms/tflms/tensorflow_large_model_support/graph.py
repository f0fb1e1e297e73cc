# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph of TensorFlow's when it is decided what to swap; knows no TensorFlow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

VARIABLES = frozenset(
    {"Variable", "VariableV2", "VarHandleOp", "ReadVariableOp", "AutoReloadVariable"}
)
CONSTANTS = frozenset({"Const", "HostConst", "ImmutableConst"})
PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg"})
LEFT_ALONE = VARIABLES | CONSTANTS | PLACEHOLDERS
ENTERS = frozenset({"Enter", "RefEnter"})
EXITS = frozenset({"Exit", "RefExit"})
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
MERGES = frozenset({"Merge", "RefMerge"})
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
CONTROL_FLOW = ENTERS | EXITS | SWITCHES | MERGES | NEXT_ITERATIONS | {"LoopCond"}
# Of control flow, what hands its input on as it is.
PASSED_ON = CONTROL_FLOW - {"LoopCond"}
LOOPS = ENTERS  # of which no simulation knows how much the iterations keep
# Ops of a loop's body with which the tensors of all iterations stay.
KEEPING = frozenset({"TensorListPushBack", "TensorListSetItem", "TensorListPopBack", "StackPushV2"})
# Of their results one is of no known size, and next to nothing.
SPARE_RESULTS = frozenset({"FusedBatchNormV3"})
# Their result is their first input, under another shape or name.
SAME_BUFFER = frozenset(
    {
        *("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient"),
        *("PreventGradient", "Snapshot", "Bitcast", "CheckNumerics", "EnsureShape"),
    }
)
# Of these no kernel makes anything.
NO_WORK = LEFT_ALONE | SAME_BUFFER | PASSED_ON


class Tensor(NamedTuple):
    """An output of an op."""

    op: int
    port: int


class Output(NamedTuple):
    """What is known of it."""

    size: int | None  # bytes; None: some dimension is not known
    moves: bool  # of a type that lies in device memory and can be copied


class Op(NamedTuple):
    name: str
    type: str
    inputs: tuple[Tensor, ...]
    after: tuple[int, ...]  # its control inputs
    outputs: tuple[Output, ...]
    on_device: bool = True  # not placed elsewhere
    flops: int = 0  # arithmetic, of products and convolutions
    width: int = 4  # bytes of the numbers that it computes with


class Branch(NamedTuple):
    """What runs if this predicate sends its Switches this way."""

    predicate: Tensor
    port: int


Context = frozenset[Branch]  # all of which must be taken


class Edge(NamedTuple):
    """Where an op reads a tensor."""

    consumer: int
    slot: int


class Graph:
    """Ops in any order, without the edges that close loops, so that there is no cycle."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.order, self.level = _levels(ops)
        self.contexts = _contexts(ops, self.order)
        self.readers: dict[Tensor, list[Edge]] = defaultdict(list)
        for number, op in enumerate(ops):
            for slot, tensor in enumerate(op.inputs):
                self.readers[tensor].append(Edge(number, slot))
        self.depth = max(self.level, default=-1) + 1

    @property
    def edges(self) -> int:
        return sum(len(op.inputs) + len(op.after) for op in self.ops)

    def previous(self, number: int) -> list[int]:
        """The ops that an op waits for."""
        op = self.ops[number]
        return [*(tensor.op for tensor in op.inputs), *op.after]

    def ancestor(self, number: int, level: int) -> int | None:
        """An op of this level that `number` waits for, along its longest way; None: there is none
        that runs whenever `number` does."""
        steps = self.level[number] - level
        found = number
        for power, above in enumerate(self._above):
            if steps >> power & 1:
                found = above[found]
        return found if self.runs_with(found, number) else None

    @cached_property
    def _above(self) -> list[list[int]]:
        """For each power of two: the op that is as many levels up the longest way to an op."""
        above = [list(range(len(self.ops)))]
        for number, level in enumerate(self.level):
            if level:
                above[0][number] = next(
                    op for op in self.previous(number) if self.level[op] == level - 1
                )
        while 1 << len(above) < self.depth:
            last = above[-1]
            above.append([last[op] for op in last])
        return above

    def controlled(self, number: int) -> bool:
        """Whether an op belongs to the control flow of the graph: it may not run, or run often."""
        return self.contexts[number] != frozenset() or self.ops[number].type in CONTROL_FLOW

    def context_of(self, tensor: Tensor) -> Context | None:
        """When the tensor is made; None: in a loop."""
        context = self.contexts[tensor.op]
        op = self.ops[tensor.op]
        if context is not None and op.type in SWITCHES:
            return context | {Branch(op.inputs[1], tensor.port)}
        return context

    def runs_with(self, number: int, other: int) -> bool:
        """Whether an op runs, once, whenever `other` does, so that that may wait for it."""
        controls = self.ops[number].type in CONTROL_FLOW
        return not controls and self.made_with(self.contexts[number], other)

    def made_with(self, context: Context | None, other: int) -> bool:
        """Whether what is made in this context is made, once, whenever `other` runs."""
        wanted = self.contexts[other]
        return context is not None and wanted is not None and context <= wanted

    def without(self, untaken: Callable[[Branch], bool]) -> Graph:
        """The same, but for branches that are known not to be taken: nothing there takes memory or
        time."""
        ops = []
        for number, op in enumerate(self.ops):
            outputs = list(op.outputs)
            for port in range(len(outputs)):
                context = self.context_of(Tensor(number, port))
                if context and any(map(untaken, context)):
                    outputs[port] = Output(0, moves=False)
            context = self.contexts[number]
            runs = not (context and any(map(untaken, context)))
            ops.append(op._replace(
                outputs=tuple(outputs), on_device=op.on_device and runs, flops=op.flops * runs
            ))  # fmt: skip
        return Graph(ops)

    def sizes(self) -> list[int]:
        """The bytes that ops make in device memory, op by op."""
        return [
            sum(output.size or 0 for output in op.outputs if output.moves)
            if op.on_device and op.type not in NO_WORK
            else 0
            for op in self.ops
        ]


def _levels(ops: Sequence[Op]) -> tuple[list[int], list[int]]:
    """An order in which each op comes after what it waits for; the longest way to each op."""
    level = [0] * len(ops)
    waits = [len(op.inputs) + len(op.after) for op in ops]
    following: list[list[int]] = [[] for _ in ops]
    for number, op in enumerate(ops):
        for tensor in op.inputs:
            following[tensor.op].append(number)
        for other in op.after:
            following[other].append(number)
    order = [number for number, count in enumerate(waits) if count == 0]
    for number in order:  # grows meanwhile
        here = level[number] + 1
        for other in following[number]:
            level[other] = max(level[other], here)
            waits[other] -= 1
            if waits[other] == 0:
                order.append(other)
    if len(order) != len(ops):
        raise ValueError("the graph has a cycle that no loop of TensorFlow's explains")
    return order, level


def _contexts(ops: Sequence[Op], order: Sequence[int]) -> list[Context | None]:
    """In which branches each op lies; None: in a loop."""
    if not any(op.type in SWITCHES | ENTERS for op in ops):
        return [frozenset()] * len(ops)
    frames = [0] * len(ops)
    contexts: list[Context] = [frozenset()] * len(ops)
    for number in order:
        op = ops[number]
        waits_for = {tensor.op for tensor in op.inputs} | set(op.after)
        frame = max((frames[other] for other in waits_for), default=0)
        frame += (op.type in ENTERS) - (op.type in EXITS)
        frames[number] = max(frame, 0)
        made = [contexts[other] for other in op.after]
        for tensor in op.inputs:
            context = contexts[tensor.op]
            source = ops[tensor.op]
            if source.type in SWITCHES and not frames[tensor.op]:
                context |= {Branch(source.inputs[1], tensor.port)}
            made.append(context)
        if made and op.type in MERGES:  # runs when one of its inputs is there
            contexts[number] = frozenset.intersection(*made)
        elif made:
            contexts[number] = frozenset().union(*made)
    return [None if frame else each for frame, each in zip(frames, contexts, strict=True)]
