# SPDX-License-Identifier: Apache-2.0
"""The functions that ops of a graph run, as the body of a loop: read as graphs, and rewritten.

A function is changed in the form that TensorFlow keeps it in, so that its signature, its results
and the order of its effects stay; the ops that call it then name the new one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import function_def_to_graph
from tensorflow.python.ops import handle_data_util

from tensorflow_large_model_support.functions import forget_colocation
from tensorflow_large_model_support.plan import Plan
from tensorflow_large_model_support.rewriting import KEPT, SCOPE, Added

v1 = tf.compat.v1
# The attributes that name what an op runs, and how many of its inputs are not that one's.
_RUNS = {
    "While": (("body",), 0),
    "StatelessWhile": (("body",), 0),
    "If": (("then_branch", "else_branch"), 1),
    "StatelessIf": (("then_branch", "else_branch"), 1),
    "Case": (("branches",), 1),
    "StatelessCase": (("branches",), 1),
    "PartitionedCall": (("f",), 0),
    "StatefulPartitionedCall": (("f",), 0),
}
_COUNT = itertools.count()


class Body:
    """A function of a graph's library, as a graph of its own to look at."""

    def __init__(self, definition: FunctionDef, graph: tf.Graph) -> None:
        self.definition, self.graph = definition, graph
        nodes = {node.name for node in definition.node_def}
        self.operations = graph.get_operations()
        self.inputs = [op for op in self.operations if op.name not in nodes]

    @property
    def name(self) -> str:
        return str(self.definition.signature.name)


class Library:
    """The functions of a graph, of which some are rewritten. What XLA compiles is none of them, nor
    what Grappler may choose another one for."""

    def __init__(self, graph: tf.Graph, shapes: tf.Graph | None = None) -> None:
        """`shapes` has the same ops, with more of the sizes."""
        self._graph, self._seen = graph, shapes or graph
        running = [op.name for op in graph.get_operations() if op.type in _RUNS]
        functions = graph.as_graph_def().library.function if running else ()  # dear, if large
        self._definitions = {each.signature.name: each for each in functions}
        self._bodies: dict[str, Body | None] = {}
        self._made: dict[str, FunctionDef] = {}
        self._found = {name: self._of(self._seen.get_operation_by_name(name)) for name in running}

    def of(self, operation: tf.Operation) -> list[Body]:
        """What an op of the graph, or of a body, runs."""
        if operation.graph is self._seen:
            return self._found.get(operation.name, [])
        return self._of(operation) if operation.type in _RUNS else []

    def _of(self, operation: tf.Operation) -> list[Body]:
        attributes, apart = _RUNS[operation.type]
        node = operation.node_def
        if _is_true(node.attr, "_XlaMustCompile"):
            return []
        inputs = list(operation.inputs)[apart:]
        names = [name for each in attributes for name in _named(node.attr[each])]
        bodies = [self._body(name, inputs) for name in names]
        return [body for body in bodies if body is not None]

    def _body(self, name: str, inputs: Sequence[tf.Tensor]) -> Body | None:
        """None: it is to be left alone, or is known, so that it is told once."""
        if name in self._bodies or name not in self._definitions:
            return None
        definition = self._definitions[name]
        self._bodies[name] = None
        if not (
            _is_true(definition.attr, "_XlaMustCompile") or "api_implements" in definition.attr
        ):
            self._bodies[name] = Body(definition, self._read(definition, inputs))
        return self._bodies[name]

    def _read(self, definition: FunctionDef, inputs: Sequence[tf.Tensor]) -> tf.Graph:
        with self._graph.as_default():
            nodes, _ = function_def_to_graph.function_def_to_graph_def(
                definition, include_library_functions=True
            )
        arguments = [arg.name for arg in definition.signature.input_arg]
        waits = {f"^{argument}" for argument in arguments}  # for what is there in any case
        kept = [node for node in nodes.node if node.name not in arguments]
        for node in kept:
            others = [name for name in node.input if name not in waits]
            del node.input[:]
            node.input.extend(others)
        forget_colocation(kept)
        del nodes.node[:]
        nodes.node.extend(kept)
        graph = tf.Graph()
        with graph.as_default():
            given = {}
            for argument, tensor in zip(arguments, inputs, strict=True):
                made = v1.placeholder(tensor.dtype.base_dtype, tensor.shape, "lms_argument")
                handle_data_util.copy_handle_data(tensor, made)
                given[f"{argument}:0"] = made
            used = {name for node in kept for name in node.input}
            given = {name: made for name, made in given.items() if used & {name, name[:-2]}}
            tf.graph_util.import_graph_def(nodes, input_map=given, name="")
        return graph

    # What becomes of them -----------------------------------------------------------------------

    def rewrite(self, body: Body, plan: Plan, cpu_device: str) -> Added:
        """As a function of another name, which `put` has the callers take."""
        made = self._changed(body.name)
        place = tf.DeviceSpec.from_string(cpu_device).to_string()
        nodes = {node.name: node for node in made.node_def}
        names = [operation.name for operation in body.operations]
        scope = _free_scope({*nodes, *(arg.name for arg in made.signature.input_arg)})
        for number, swap in enumerate(plan.swaps):
            source = body.operations[swap.tensor.op].outputs[swap.tensor.port]
            first = swap.ins[0].edges[0]
            text = nodes[names[first.consumer]].input[first.slot]
            out = _identity(f"{scope}/swapout_{number}", text, source.dtype, place)
            made.node_def.append(out)
            for held in swap.held:
                nodes[names[held]].input.append(f"^{out.name}")
            for count, swap_in in enumerate(swap.ins):
                back = _identity(
                    f"{scope}/swapin_{number}_{count}", f"{out.name}:output:0", source.dtype,
                    place,
                )  # fmt: skip
                back.input.extend(f"^{names[trigger]}" for trigger in swap_in.triggers)
                made.node_def.append(back)
                for edge in swap_in.edges:
                    nodes[names[edge.consumer]].input[edge.slot] = f"{back.name}:output:0"
        for before, after in plan.chain:
            nodes[names[after]].input.append(f"^{names[before]}")
        return Added(len(plan.swaps), plan.swap_ins)

    def _changed(self, name: str) -> FunctionDef:
        if name not in self._made:
            made = FunctionDef()
            made.CopyFrom(self._definitions[name])
            made.signature.name = f"{name}_lms_{next(_COUNT)}"
            self._made[name] = made
        return self._made[name]

    def put(self) -> None:
        """Has all who ran a function that was rewritten run the new one: also in functions that are
        changed for that alone."""
        again = True
        while again:
            again = False
            for name, definition in self._definitions.items():
                if name in self._made or self._bodies.get(name) is None:
                    continue
                if any(run in self._made for node in definition.node_def for run in _runs(node)):
                    self._changed(name)
                    again = True
        names = {name: made.signature.name for name, made in self._made.items()}
        if not names:
            return
        for made in self._made.values():
            for node in made.node_def:
                for attribute in _RUNS.get(node.op, ((), 0))[0]:
                    for function in _functions(node.attr[attribute]):
                        function.name = names.get(function.name, function.name)
        definition = GraphDef()
        definition.versions.CopyFrom(self._graph.as_graph_def().versions)
        definition.library.function.extend(self._made.values())
        with self._graph.as_default():
            tf.graph_util.import_graph_def(definition, name="")
        for operation in self._graph.get_operations():
            self._take(operation, names)

    def _take(self, operation: tf.Operation, names: dict[str, str]) -> None:
        # pylint: disable=protected-access
        for attribute in _RUNS.get(operation.type, ((), 0))[0]:
            value = operation.node_def.attr[attribute]
            before = _named(value)
            after = [names.get(name, name) for name in before]
            if before == after:
                continue
            if value.HasField("func"):
                operation._set_func_attr(attribute, after[0])
            else:
                operation._set_func_list_attr(attribute, after)


def _free_scope(names: Collection[str]) -> str:
    """As a graph of TensorFlow's would name it; nothing does so within a function."""
    scopes = itertools.chain([SCOPE], (f"{SCOPE}_{number}" for number in itertools.count(1)))
    return next(s for s in scopes if not any(name.startswith(f"{s}/") for name in names))


def _identity(name: str, text: str, dtype: tf.DType, device: str) -> NodeDef:
    node = NodeDef(name=name, op="Identity", input=[text], device=device)
    node.attr["T"].type = dtype.base_dtype.as_datatype_enum
    for kept, value in KEPT.items():
        node.attr[kept].CopyFrom(value)
    return node


def _functions(value: Any) -> Sequence[Any]:
    return [value.func] if value.HasField("func") else value.list.func


def _named(value: Any) -> list[str]:
    return [function.name for function in _functions(value)]


def _runs(node: NodeDef) -> Iterator[str]:
    for attribute in _RUNS.get(node.op, ((), 0))[0]:
        yield from _named(node.attr[attribute])


def _is_true(attributes: Any, name: str) -> bool:
    return name in attributes and attributes[name].b  # to look in it would make it
