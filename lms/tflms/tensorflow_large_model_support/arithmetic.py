# SPDX-License-Identifier: Apache-2.0
"""How much operations compute: products and convolutions, beside which all others are traffic."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf


def flops(operation: tf.Operation) -> int:
    """0 for what is neither, and where a shape is not known."""
    counted = _COUNTED.get(operation.type)
    if counted is None:
        return 0
    try:
        return 2 * counted(operation)
    except (TypeError, ValueError):  # a dimension is not known, or their number
        return 0


def _elements(tensor: tf.Tensor) -> int:
    return math.prod(tensor.shape.as_list())


def _forward(operation: tf.Operation, apart: int = 1) -> int:
    """For each element of the result, those of the filter but for the last dimensions."""
    taps = math.prod(operation.inputs[1].shape.as_list()[:-apart])
    return taps * _elements(operation.outputs[0])


def _backward_input(operation: tf.Operation, apart: int = 1) -> int:
    taps = math.prod(operation.inputs[1].shape.as_list()[:-apart])
    return taps * _elements(operation.inputs[2])


def _backward_filter(operation: tf.Operation, apart: int = 1) -> int:
    taps = math.prod(operation.outputs[0].shape.as_list()[:-apart])
    return taps * _elements(operation.inputs[2])


def _product(transposed: str) -> Callable[[tf.Operation], int]:
    def counted(operation: tf.Operation) -> int:
        left = operation.inputs[0].shape.as_list()
        inner = left[-2 if operation.get_attr(transposed) else -1]
        return inner * _elements(operation.outputs[0])

    return counted


def _einsum(operation: tf.Operation) -> int:
    """All dimensions that the equation names; those of `...` once."""
    equation = operation.get_attr("equation").decode()
    sizes: dict[str, int] = {}
    broadcast = 1
    for labels, tensor in zip(equation.split("->")[0].split(","), operation.inputs, strict=True):
        before, dots, after = labels.partition("...")
        shape = tensor.shape.as_list()
        end = len(shape) - len(after)
        sizes.update(zip(before, shape, strict=False))
        sizes.update(zip(after, shape[end:], strict=True))
        if dots:
            broadcast = max(broadcast, math.prod(shape[len(before) : end]))
    return broadcast * math.prod(sizes.values())


def _depthwise(count: Callable[[tf.Operation, int], int]) -> Callable[[tf.Operation], int]:
    return lambda operation: count(operation, 2)


_COUNTED: dict[str, Callable[[tf.Operation], int]] = {
    **dict.fromkeys(("Conv2D", "Conv3D"), _forward),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _backward_input),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), _backward_filter),
    "DepthwiseConv2dNative": _depthwise(_forward),
    "DepthwiseConv2dNativeBackpropInput": _depthwise(_backward_input),
    "DepthwiseConv2dNativeBackpropFilter": _depthwise(_backward_filter),
    "MatMul": _product("transpose_a"),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product("adj_x")),
    "Einsum": _einsum,
}
