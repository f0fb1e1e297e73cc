# SPDX-License-Identifier: Apache-2.0
"""A graph of TensorFlow's as the planner sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tensorflow_large_model_support.arithmetic import flops
from tensorflow_large_model_support.graph import (
    MERGES,
    NEXT_ITERATIONS,
    PLACEHOLDERS,
    SAME_BUFFER,
    Branch,
    Graph,
    Op,
    Output,
    Tensor,
)

_LEARNING_PHASE = "keras_learning_phase"  # a placeholder, and Keras' name for it
# int32 lies in host memory, by TensorFlow's convention; the others are not plain memory.
_STAYS = frozenset({tf.int32, tf.string, tf.resource, tf.variant})


def read(
    operations: Sequence[tf.Operation], gpu_device: str | None = None, *, training: bool = True
) -> Graph:
    """`gpu_device`: of several, the one whose ops are meant; None: all that are not on a CPU.
    `training`: what Keras' learning phase will be, where it is fed."""
    numbers = {operation.name: number for number, operation in enumerate(operations)}
    here = _placed_on(gpu_device)
    ops = []
    for operation in operations:
        kind = operation.type
        inputs = [Tensor(numbers[one.op.name], one.value_index) for one in operation.inputs]
        after = [numbers[one.name] for one in operation.control_inputs]
        if kind in MERGES:  # the edge back, of a loop
            inputs = [one for one in inputs if operations[one.op].type not in NEXT_ITERATIONS]
        outputs = tuple(map(_output, operation.outputs))
        on_device = here(operation.device)
        width = operation.outputs[0].dtype.size if operation.outputs else 4
        ops.append(
            Op(operation.name, kind, tuple(inputs), tuple(after), outputs, on_device,
               flops(operation), width)
        )  # fmt: skip
    graph = Graph(ops)

    def untaken(branch: Branch) -> bool:
        return branch.port != training and _is_learning_phase(graph, branch.predicate)

    if any(op.name.startswith(_LEARNING_PHASE) for op in ops):
        return graph.without(untaken)
    return graph


def _is_learning_phase(graph: Graph, predicate: Tensor) -> bool:
    op = graph.ops[predicate.op]
    while op.type in SAME_BUFFER and op.inputs:
        op = graph.ops[op.inputs[0].op]
    return op.type in PLACEHOLDERS and op.name.startswith(_LEARNING_PHASE)


def _output(tensor: tf.Tensor) -> Output:
    dtype = tensor.dtype
    shape = tensor.shape
    size = None
    if shape.rank is not None and shape.is_fully_defined():
        size = shape.num_elements() * dtype.size
    # pylint: disable=protected-access
    return Output(size, dtype.base_dtype not in _STAYS and not dtype._is_ref_dtype)


def _placed_on(gpu_device: str | None) -> Callable[[str], bool]:
    known: dict[str, bool] = {}
    wanted = tf.DeviceSpec.from_string(gpu_device) if gpu_device else None

    def placed(device: str) -> bool:
        if device not in known:
            spec = tf.DeviceSpec.from_string(device)
            if wanted is None:
                known[device] = spec.device_type != "CPU"
            else:
                # Where none is named, TensorFlow takes the first GPU.
                index = wanted.device_index or 0
                gpu = spec.device_type in ("GPU", None)
                known[device] = gpu and (spec.device_index or 0) == index
        return known[device]

    return placed


def variables_bytes(operations: Sequence[tf.Operation]) -> int:
    """Of all variables that ops of the graph make or hold."""
    total = 0
    for operation in operations:
        if operation.type in ("VariableV2", "Variable"):
            total += _output(operation.outputs[0]).size or 0
        elif operation.type == "VarHandleOp":
            shape, dtype = operation.get_attr("shape"), operation.get_attr("dtype")
            dims = [dim.size for dim in shape.dim]
            if not shape.unknown_rank and all(dim >= 0 for dim in dims):
                total += math.prod(dims) * dtype.size
    return total
