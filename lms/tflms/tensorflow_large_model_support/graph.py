# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph of TensorFlow's when it is decided what to swap; knows no TensorFlow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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


class Edge(NamedTuple):
    """Where an op reads a tensor."""

    consumer: int
    slot: int


class Graph:
    """Ops in any order, without the edges that close loops, so that there is no cycle."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.order, self.level = _levels(ops)
        self.inside = _inside_control_flow(ops, self.order)
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
        for power, above in enumerate(self._above):
            if steps >> power & 1:
                number = above[number]
        return None if self.controlled(number) else number

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
        return self.inside[number] or self.ops[number].type in CONTROL_FLOW

    def sizes(self) -> list[int]:
        """The bytes that ops make in device memory, op by op."""
        return [
            sum(output.size or 0 for output in op.outputs if output.moves)
            if op.on_device and op.type not in LEFT_ALONE | SAME_BUFFER
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


def _inside_control_flow(ops: Sequence[Op], order: Sequence[int]) -> list[bool]:
    """Whether an op lies in a loop, or in a branch that may not be taken."""
    frames, branches = [0] * len(ops), [0] * len(ops)
    for number in order:
        op = ops[number]
        waits_for = {tensor.op for tensor in op.inputs} | set(op.after)
        frame = max((frames[other] for other in waits_for), default=0)
        branch = max((branches[other] for other in waits_for), default=0)
        if op.type in ENTERS:
            frame += 1
        elif op.type in EXITS:
            frame -= 1
        elif not frame and op.type in SWITCHES:
            branch += 1
        elif not frame and op.type in MERGES:
            branch -= 1
        frames[number], branches[number] = max(frame, 0), max(branch, 0)
    return [bool(frame or branch) for frame, branch in zip(frames, branches, strict=True)]
