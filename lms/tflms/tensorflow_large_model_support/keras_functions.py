# SPDX-License-Identifier: Apache-2.0
"""Where the graphs of a model of Keras are: Keras 2 and 3, and Keras in a session."""

from __future__ import annotations

import contextlib
import functools
import operator
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import function_type_utils

v1 = tf.compat.v1
Flat = Callable[..., Any]  # of the tensors of a concrete function, one by one
Rewrite = Callable[[Any], Flat | None]  # None: nothing is to be swapped


class Rewritten:
    """Calls a tf.function by what `rewrite` makes of each concrete function of it."""

    def __init__(self, function: Any, rewrite: Rewrite) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function, self._rewrite = function, rewrite
        self._made: dict[int, tuple[Any, Callable[..., Any]]] = {}
        self._methods: weakref.WeakKeyDictionary[Any, Rewritten] = weakref.WeakKeyDictionary()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        concrete = self.function.get_concrete_function(*arguments, **named)
        if id(concrete) not in self._made:
            flat = self._rewrite(concrete)
            defaults = self.function.function_spec.default_values
            made = self.function if flat is None else called(concrete, flat, defaults)
            self._made[id(concrete)] = (concrete, made)  # keeps it, and its id
        made = self._made[id(concrete)][1]
        return made(*arguments, **named)

    def __get__(self, instance: Any, owner: Any = None) -> Rewritten:
        """Of a class, its instances' method."""
        if instance is None:
            return self
        if instance not in self._methods:
            method = self.function.__get__(instance, owner)
            self._methods[instance] = Rewritten(method, self._rewrite)
        return self._methods[instance]


def called(concrete: Any, flat: Flat, defaults: Mapping[str, Any]) -> Callable[..., Any]:
    """A function of flat tensors, called as `concrete` is: its own call needs what has a default,
    too."""

    count = len(concrete.inputs) - len(concrete.captured_inputs)
    kinds = concrete.function_type.parameters if concrete.function_type is not None else {}
    places = {name: place for place, name in enumerate(kinds) if name in defaults}

    def given(arguments: tuple[Any, ...], named: dict[str, Any]) -> Sequence[Any]:
        """In the order of the function's own parameters."""
        if concrete.function_type is not None:
            left = {name: defaults[name] for name, at in places.items() if at >= len(arguments)}
            bound = function_type_utils.canonicalize_function_inputs(
                arguments, {**left, **named}, concrete.function_type
            )
            return concrete.function_type.unpack_inputs(bound)
        parts = tf.nest.flatten((arguments, named), expand_composites=True)
        return [part for part in parts if tf.is_tensor(part) or _is_number(part)]

    def call(*arguments: Any, **named: Any) -> Any:
        results = iter(flat(*given(arguments, named)[:count], *concrete.captured_inputs))
        places = tf.nest.flatten(concrete.structured_outputs, expand_composites=True)
        made = [None if place is None else next(results) for place in places]
        return tf.nest.pack_sequence_as(concrete.structured_outputs, made, expand_composites=True)

    return call


def _is_number(part: Any) -> bool:
    return hasattr(part, "__array__")


def input_shapes(model: Any) -> list[tf.TensorShape]:
    """As far as the model says them."""
    try:
        return [tf.TensorShape(each.shape) for each in tf.nest.flatten(model.inputs)]
    except (AttributeError, TypeError, ValueError):  # no model, or one that is built when called
        return []


def put(model: Any, name: str, rewritten: Callable[[Any], Any]) -> None:
    """Give the model the function `name` rewritten; once."""
    make = getattr(model, f"make_{name}")
    if getattr(model, "jit_compile", False):
        model.jit_compile = False
        make(force=True)
    elif getattr(model, name) is None:
        make()
    function = getattr(model, name)
    if isinstance(function, Rewritten) or getattr(function, "_lms", False):
        return
    setattr(model, name, _around(function, rewritten))


def _around(function: Any, rewritten: Callable[[Any], Any], depth: int = 2) -> Any:
    """A tf.function itself; newer Keras 3 has plain functions around those that it calls, some
    of them within others."""
    if hasattr(function, "get_concrete_function"):
        return rewritten(function)
    if not (depth and isinstance(function, types.FunctionType)):
        return function
    cells = []
    for cell in function.__closure__ or ():
        held = _held(cell)
        inner = _around(held, rewritten, depth - 1)
        cells.append(cell if inner is held else types.CellType(inner))
    if all(map(operator.is_, cells, function.__closure__ or ())):
        return function
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__,
        tuple(cells),
    )  # fmt: skip
    made._lms = True  # type: ignore[attr-defined]
    return made


def _held(cell: types.CellType) -> Any:
    """What is in it; None where nothing is yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _load(session: Any, values: Sequence[tuple[Any, Any]]) -> None:
    """In one run, where it can be: each is another part of the graph, which TensorFlow prepares
    anew."""
    begun, fed = [], {}
    for variable, value in values:
        begins = variable.initializer
        initial = begins.inputs[1].name
        if initial in fed:  # two variables begin as one tensor, and may differ now
            variable.load(value, session)
        else:
            begun.append(begins)
            fed[initial] = value
    session.run(begun, fed)


def in_new_session(rewrite: Callable[[tf.Graph], None]) -> None:
    """Rewrite the graph of Keras's session, which takes no change of what it has run: where it was
    changed the values of its variables go on in a new one, and its data begin anew."""
    backend = v1.keras.backend
    old = backend.get_session()
    with old.graph.as_default():
        variables = v1.global_variables()
        values = old.run(variables)
        before = old.graph.version
        rewrite(old.graph)
        if old.graph.version == before:
            return
        new = v1.Session(graph=old.graph, config=old._config)
        backend.set_session(new)
        _load(new, list(zip(variables, values, strict=True)))
        for op in old.graph.get_operations():
            if op.type == "MakeIterator":
                with contextlib.suppress(tf.errors.InvalidArgumentError):
                    new.run(op)  # one that is fed its data begins where its user feeds it
