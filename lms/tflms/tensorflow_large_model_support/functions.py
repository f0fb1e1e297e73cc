# SPDX-License-Identifier: Apache-2.0
"""A tf.function's graph as one without calls, and a rewritten graph as a function again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.ops import handle_data_util

v1 = tf.compat.v1
_COMPILED = "_XlaMustCompile"
# What tells the runtime to lower a loop or a branch; taken off meanwhile, as the inliner does so.
_LOWER, _LOWERS = "_lower_using_switch_merge", "_lms_lower"


_COUNT = itertools.count()


class Unrolled:
    """The graph of a concrete function with the functions that it calls put in their places, but
    for those that XLA compiles: such a call is one op, as a step of Keras 2's optimizers is."""

    def __init__(self, concrete: Any) -> None:
        self.concrete = concrete
        function = concrete.graph
        self.inputs = [tensor.name for tensor in function.inputs]
        # Not by their own names, which an import takes for scopes of others.
        self.fed = [f"lms_input_{number}" for number in range(len(self.inputs))]
        self.outputs = [tensor.name for tensor in function.outputs]
        self.control_outputs = [operation.name for operation in function.control_outputs]
        self.captures = len(concrete.captured_inputs)
        definition = function.as_graph_def()
        _refuse_compiled(concrete)
        self.definition = _inlined(definition, function, self._fetches())

    def _fetches(self) -> list[str]:
        return [*self.inputs, *self.outputs, *(f"{name}:0" for name in self.control_outputs)]

    def graph(
        self, batch_size: int | None = None, model_inputs: Sequence[tf.TensorShape] = ()
    ) -> tf.Graph:
        """A graph to look at and to change. With a batch size, the leading dimension of what is
        fed or read is that, so that TensorFlow's shape inference finds all others; what is read
        first is the model's inputs, where it has some."""
        definition = GraphDef()
        definition.CopyFrom(self.definition)
        if batch_size is not None:
            _set_batch_size(definition, batch_size, model_inputs)
        given = set(self.inputs)
        kept = [node for node in definition.node if f"{node.name}:0" not in given]
        forget_colocation(kept)
        del definition.node[:]
        definition.node.extend(kept)
        used = {name for node in kept for name in node.input}
        graph = tf.Graph()
        with graph.as_default():
            inputs = {}
            for tensor, name in zip(self.concrete.graph.inputs, self.fed, strict=True):
                shape = _led(tensor.shape, batch_size) if tensor.dtype != tf.resource else None
                made = v1.placeholder(tensor.dtype, shape, name)
                _know_what_is_held(tensor, made)
                if used & {tensor.op.name, tensor.name}:
                    inputs[tensor.name] = made
            tf.graph_util.import_graph_def(definition, input_map=inputs, name="")
        return graph

    @property
    def compiled(self) -> list[str]:
        """The calls of what XLA compiles."""
        return [node.name for node in self.definition.node if _is_compiled(node)]

    def variables_bytes(self) -> int:
        """Of the variables that the function uses."""
        total = 0
        for tensor in self.concrete.graph.inputs:
            data = handle_data_util.get_resource_handle_data(tensor)
            if tensor.dtype == tf.resource and data.is_set:
                for one in data.shape_and_type:
                    shape = tf.TensorShape(one.shape)
                    if shape.is_fully_defined():
                        total += shape.num_elements() * tf.as_dtype(one.dtype).size
        return total

    def function(self, definition: GraphDef) -> Callable[..., Any]:
        """What does by this definition what the concrete function does: of flat tensors, lists."""

        def body(*arguments: tf.Tensor) -> list[tf.Tensor]:
            for tensor, made in zip(self.concrete.graph.inputs, arguments, strict=True):
                _know_what_is_held(tensor, made)
            given = dict(zip(self.fed, arguments, strict=True))
            found = tf.graph_util.import_graph_def(
                definition,
                input_map=given,
                return_elements=[*self.outputs, *self.control_outputs],
                name="",
            )
            results, effects = found[: len(self.outputs)], found[len(self.outputs) :]
            with tf.control_dependencies(effects):
                made = [tf.identity(result) for result in results]
                return made or [tf.constant(0)]

        signature = [
            tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.concrete.graph.inputs
        ]
        return v1.wrap_function(body, signature)


def _know_what_is_held(tensor: tf.Tensor, made: tf.Tensor) -> None:
    """What reads or changes the variable has its shape."""
    data = handle_data_util.get_resource_handle_data(tensor)
    if data.is_set:
        handle_data_util.set_handle_data(made, data)


def _is_compiled(node: Any) -> bool:
    return _COMPILED in node.attr and node.attr[_COMPILED].b  # to look in it would make it


def _refuse_compiled(concrete: Any) -> None:
    if _is_compiled(concrete.function_def):
        raise ValueError(
            f"{concrete.name} cannot be rewritten because XLA compiles it and chooses itself what "
            "lies where; use jit_compile=False"
        )


def _inlined(definition: GraphDef, graph: tf.Graph, fetches: Sequence[str]) -> GraphDef:
    _rename(definition, _LOWER, _LOWERS)
    for function in definition.library.function:
        if "api_implements" in function.attr:  # one of several bodies, chosen by Grappler
            del function.attr["api_implements"]
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers.append("function")
    meta = v1.train.export_meta_graph(graph_def=definition, graph=graph)
    meta.collection_def.clear()
    collection = meta_graph_pb2.CollectionDef()
    collection.node_list.value.extend(fetches)
    meta.collection_def["train_op"].CopyFrom(collection)
    done = tf_optimizer.OptimizeGraph(config, meta)
    _rename(done, _LOWERS, _LOWER)
    _name_anew(done)
    return done


def _name_anew(definition: GraphDef) -> None:
    """Grappler has changed functions of the library, which the program has by these names, too."""
    suffix = f"_lms_{next(_COUNT)}"
    names = {function.signature.name for function in definition.library.function}

    def rename(function: Any) -> None:
        if function.name in names:
            function.name += suffix

    bodies = definition.library.function
    for node in (*definition.node, *(node for body in bodies for node in body.node_def)):
        if node.op in names:
            node.op += suffix
        for attribute in node.attr.values():
            if attribute.HasField("func"):
                rename(attribute.func)
            for function in attribute.list.func if attribute.HasField("list") else ():
                rename(function)
    for body in bodies:
        body.signature.name += suffix
    for gradient in definition.library.gradient:
        gradient.function_name += suffix
        if gradient.gradient_func in names:
            gradient.gradient_func += suffix


def _rename(definition: GraphDef, old: str, new: str) -> None:
    bodies = definition.library.function
    for node in (*definition.node, *(node for body in bodies for node in body.node_def)):
        if old in node.attr:
            node.attr[new].CopyFrom(node.attr[old])
            del node.attr[old]


def with_batch_size(graph: tf.Graph, batch_size: int) -> tf.Graph:
    """The same graph, with more of the sizes."""
    definition = graph.as_graph_def()
    _set_batch_size(definition, batch_size)
    sized = tf.Graph()
    with sized.as_default():
        tf.graph_util.import_graph_def(definition, name="")
    return sized


def _set_batch_size(
    definition: GraphDef, batch_size: int, model_inputs: Sequence[tf.TensorShape] = ()
) -> None:
    """The unknown leading dimensions of what comes from outside are that from now on, and all other
    shapes are to be inferred anew. A generator's batches have no shapes; the model's inputs do."""
    for node in definition.node:
        if "_output_shapes" in node.attr:
            del node.attr["_output_shapes"]
        if node.op in ("Placeholder", "PlaceholderWithDefault"):
            _lead(node.attr["shape"].shape, batch_size)
        if node.op.startswith("Iterator") and "output_shapes" in node.attr:
            shapes = node.attr["output_shapes"].list.shape
            for shape, model_input in zip(shapes, model_inputs, strict=False):
                read = tf.TensorShape(shape)
                if read.is_compatible_with(model_input):
                    shape.CopyFrom(read.merge_with(model_input).as_proto())
            for shape in shapes:
                _lead(shape, batch_size)


def _lead(shape: Any, batch_size: int) -> None:
    if not shape.unknown_rank and shape.dim and shape.dim[0].size < 0:
        shape.dim[0].size = batch_size


def forget_colocation(nodes: Sequence[NodeDef]) -> None:
    """With what is not among them: an input, whose place is the caller's, or an op that Grappler
    has removed."""
    prefix = b"loc:@"
    there = {prefix + node.name.encode() for node in nodes}
    for node in nodes:
        if "_class" in node.attr:
            places = node.attr["_class"].list
            others = [s for s in places.s if s in there or not s.startswith(prefix)]
            del places.s[:]
            places.s.extend(others)


def _led(shape: tf.TensorShape, batch_size: int | None) -> tf.TensorShape:
    if batch_size is None or not shape.rank or shape.dims[0].value is not None:
        return shape
    return tf.TensorShape([batch_size, *shape.dims[1:]])
