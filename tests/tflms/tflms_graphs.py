# SPDX-License-Identifier: Apache-2.0
"""Graphs for the tests of planning, and what becomes of one when a plan is put into it."""

from __future__ import annotations

import graphlib
import random
from collections.abc import Iterable, Mapping

from hypothesis import strategies as st
from tensorflow_large_model_support.graph import Graph, Op, Output, Tensor
from tensorflow_large_model_support.plan import Plan

WORK = (0, 250, 2000)  # operations for each byte of a result
KINDS = ("Conv2D", "Relu", "AddV2", "Identity", "Reshape", "VarHandleOp", "Const", "Placeholder")


def op(
    name: str, kind: str, inputs: Iterable[tuple[int, int]] = (), after: Iterable[int] = (),
    sizes: Iterable[int | None] = (1024,), on_device: bool = True,
) -> Op:  # fmt: skip
    outputs = tuple(Output(size, moves=True) for size in sizes)
    made = tuple(Tensor(*each) for each in inputs)
    return Op(name, kind, made, tuple(after), outputs, on_device)


def chain(length: int, size: int = 1024) -> Graph:
    """As of a network's training: forward ops, then for each, from the last, one of its gradient
    that reads what the op read."""
    ops = [op("x", "Placeholder", sizes=[size])]
    for number in range(length):
        ops.append(op(f"forward/{number}", "Conv2D", [(number, 0)], sizes=[size]))
    for number in reversed(range(length)):
        before = len(ops) - 1
        kind = "Conv2DBackpropFilter"
        ops.append(op(f"backward/{number}", kind, [(before, 0), (number, 0)], sizes=[size]))
    return Graph(ops)


def training(length: int, seed: int) -> Graph:
    """As `chain`, with ways past ops, and sizes and arithmetic by chance."""
    draw = random.Random(seed)
    ops = [op("x", "Placeholder", sizes=[1 << 20])]

    def add(name: str, kind: str, inputs: list[tuple[int, int]], size: int) -> None:
        ops.append(op(name, kind, inputs, sizes=[size])._replace(flops=size * draw.choice(WORK)))

    reads = []
    for number in range(length):
        before = [(number, 0)]
        if number > 4 and draw.random() < 0.2:
            before.append((number - draw.randrange(1, 4), 0))
        reads.append((before, draw.choice([4, 8, 16, 32, 64]) << 20))
        add(f"forward/{number}", "MatMul", *reads[-1])
    for number in reversed(range(length)):
        before, size = reads[number]
        add(f"backward/{number}", "MatMul", [(len(ops) - 1, 0), *before], size)
    return Graph(ops)


@st.composite
def graphs(draw: st.DrawFn, most: int = 40) -> Graph:
    ops: list[Op] = []
    for number in range(draw(st.integers(2, most))):
        kind = draw(st.sampled_from(KINDS))
        inputs, after = [], []
        if number and kind not in ("VarHandleOp", "Const", "Placeholder"):
            for _ in range(draw(st.integers(1, 3))):
                source = draw(st.integers(0, number - 1))
                inputs.append((source, draw(st.integers(0, len(ops[source].outputs) - 1))))
            after = draw(st.lists(st.integers(0, number - 1), max_size=2))
        sizes = draw(st.lists(st.sampled_from([None, 4, 4096, 1 << 20]), min_size=1, max_size=2))
        on_device = draw(st.integers(0, 9)) > 0
        ops.append(op(f"scope{number % 3}/{number}", kind, inputs, after, sizes, on_device))
    return Graph(ops)


PREDICATES = (1, 2)  # ops of `branching`


@st.composite
def branching(draw: st.DrawFn) -> Graph:
    """With loops, and conditionals in conditionals, as TensorFlow 1 makes them, whose branches read
    what the same branches made before, as those of gradients do."""
    ops = [op(name, "Placeholder") for name in ("x", "p", "q")]
    made: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}

    def add(kind: str, inputs: list[tuple[int, int]], count: int = 1) -> int:
        ops.append(op(f"{kind}{len(ops)}", kind, inputs, sizes=[1024] * count))
        return len(ops) - 1

    def block(context: tuple[tuple[int, int], ...], entry: tuple[int, int], most: int) -> None:
        tensors = made.setdefault(context, [])
        tensors.append(entry)
        for _ in range(draw(st.integers(1, most))):
            reads = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=2))
            left = [each for each in PREDICATES if each not in dict(context)]
            if left and draw(st.booleans()):
                predicate = draw(st.sampled_from(left))
                results = []
                for port in (0, 1):
                    inner = (*context, (predicate, port))
                    switch = add("Switch", [reads[0], (predicate, 0)], 2)
                    block(inner, (switch, port), most - 1)
                    results.append(made[inner][-1])
                tensors.append((add("Merge", results), 0))
            elif draw(st.integers(0, 4)) == 0:  # a loop, as it looks without the way back
                tensors.append((add("Exit", [(add("Enter", reads), 0)]), 0))
            else:
                tensors.append((add("Conv2D", reads), 0))

    block((), (0, 0), 5)
    return Graph(ops)


class Put:
    """A graph with a plan in it: nodes are the numbers of ops, and ("out", tensor), ("in", n)."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.waits: dict[object, set[object]] = {
            number: set(graph.previous(number)) for number in range(len(graph.ops))
        }
        self.reads = {
            (number, slot): tensor
            for number, one in enumerate(graph.ops)
            for slot, tensor in enumerate(one.inputs)
        }
        self.value: dict[object, Tensor] = {}  # of each swap-in: the tensor that it gives
        for swap in plan.swaps:
            out = ("out", swap.tensor)
            self.waits[out] = {swap.tensor.op}
            for held in swap.held:
                self.waits[held].add(out)
            for swap_in in swap.ins:
                node = ("in", len(self.value))
                self.value[node] = swap.tensor
                self.waits[node] = {out, *swap_in.triggers}
                for edge in swap_in.edges:
                    assert self.reads[edge] == swap.tensor, "read twice, or another tensor"
                    self.reads[edge] = node
        for number, one in enumerate(graph.ops):
            read = [self.reads[number, slot] for slot in range(len(one.inputs))]
            sources = {each.op if isinstance(each, Tensor) else each for each in read}
            extra = self.waits[number] - {tensor.op for tensor in one.inputs}
            self.waits[number] = sources | extra | set(one.after)
        for first, second in plan.chain:
            self.waits[second].add(first)

    def order(self) -> list[object]:
        """Raises graphlib.CycleError."""
        return list(graphlib.TopologicalSorter(self.waits).static_order())

    def needed(self, fetched: object) -> set[object]:
        """What runs when this is fetched."""
        seen, todo = {fetched}, [fetched]
        while todo:
            for other in self.waits[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen


def run(graph: Graph, put: Put, taken: Mapping[int, int]) -> dict[object, object]:
    """What each op that runs computes, as `values`, with these values of the predicates: an op
    runs if all that it waits for did, a Merge if one of its inputs is there."""
    found: dict[object, object] = {}

    def value(read: object) -> object:  # None: not there
        if not isinstance(read, Tensor):
            return found.get(read)
        source = graph.ops[read.op]
        if source.type == "Switch" and read.port != taken[source.inputs[1].op]:
            return None
        return (found[read.op], read.port) if read.op in found else None

    for node in put.order():
        if isinstance(node, int):
            reads = [put.reads[node, slot] for slot in range(len(graph.ops[node].inputs))]
        else:
            reads = [node[1] if node[0] == "out" else ("out", put.value[node])]
        sources = {each.op if isinstance(each, Tensor) else each for each in reads}
        seen = [value(read) for read in reads]
        merges = isinstance(node, int) and graph.ops[node].type == "Merge"
        there = any(each is not None for each in seen) if merges else None not in seen
        if there and all(other in found for other in put.waits[node] - sources):
            if isinstance(node, int):
                found[node] = hash((graph.ops[node].name, tuple(seen)))
            else:
                (found[node],) = seen
    return found


def values(graph: Graph, put: Put) -> dict[object, object]:
    """A number for each op, that says which ops and tensors it was computed from."""
    found: dict[object, int] = {}
    for node in put.order():
        if isinstance(node, int):
            one = graph.ops[node]
            parts = []
            for slot in range(len(one.inputs)):
                read = put.reads[node, slot]
                tensor = read if isinstance(read, Tensor) else put.value[read]
                parts.append((found[tensor.op], tensor.port))
            found[node] = hash((one.name, tuple(parts)))
    return found
