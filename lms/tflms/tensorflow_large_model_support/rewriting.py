# SPDX-License-Identifier: Apache-2.0
"""A plan, put into a graph of TensorFlow's in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tensorflow_large_model_support.plan import Plan, Swap

v1 = tf.compat.v1
SCOPE = "lms"
# Grappler leaves a node with this attribute where it is; an identity it would bypass.
KEPT = {"_grappler_do_not_remove": v1.AttrValue(b=True)}


class Added(NamedTuple):
    swap_outs: int
    swap_ins: int


def rewrite(
    graph: tf.Graph, operations: Sequence[tf.Operation], plan: Plan, cpu_device: str
) -> Added:
    """Adds the plan's swap-outs and swap-ins; `operations` are those the plan numbers."""
    # pylint: disable=protected-access
    with (
        graph.as_default(),
        v1.device(None),
        v1.control_dependencies(None),
        graph._attr_scope(KEPT),
        v1.name_scope(f"{SCOPE}/"),
        tf.device(cpu_device),
    ):
        for swap in plan.swaps:
            _add(operations, swap)
    for first, second in plan.chain:
        operations[second]._add_control_input(operations[first])
    return Added(len(plan.swaps), plan.swap_ins)


def _add(operations: Sequence[tf.Operation], swap: Swap) -> None:
    # pylint: disable=protected-access
    source = operations[swap.tensor.op]
    tensor = source.outputs[swap.tensor.port]
    stem = f"{source.name}_{swap.tensor.port}".replace("/", "_").lstrip("_")
    out = tf.identity(tensor, name=f"swapout_{stem}")
    for number in swap.held:
        operations[number]._add_control_input(out.op)
    for swap_in in swap.ins:
        with v1.control_dependencies([operations[number] for number in swap_in.triggers]):
            back = tf.identity(out, name=f"swapin_{stem}")
        for edge in swap_in.edges:
            operations[edge.consumer]._update_input(edge.slot, back)
