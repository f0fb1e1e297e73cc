# SPDX-License-Identifier: Apache-2.0
"""A rewritten function is called as the one that it was made of."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_large_model_support import LMS

A, B = (tf.constant(np.random.RandomState(n).rand(3, 3).astype("float32")) for n in (0, 1))


def far(x):
    """What is read again far away."""
    early = tf.sin(x)
    return tf.exp(tf.cos(tf.tanh(early))) * early


def compare(function, *arguments, **named):
    """As it is, and rewritten; each result is the same, and of the same structure."""
    plain = tf.function(function)
    ours = LMS(1, 0, 1).function(tf.function(function))(*arguments, **named)
    theirs = plain(*arguments, **named)
    tf.nest.assert_same_structure(ours, theirs, expand_composites=True)
    for one, other in zip(
        *(tf.nest.flatten(each, expand_composites=True) for each in (ours, theirs))
    ):
        if other is None:
            assert one is None
        else:
            np.testing.assert_array_equal(one, other)


CALLS = {
    "names_in_another_order": (lambda b, a: far(b) - a, (), {"a": A, "b": B}),
    "names_after_places": (lambda c, b, a: far(b) - a + c * 2, (A,), {"a": A + 1, "b": B}),
    "defaults": (lambda x, scale=2.0, *, twice=True: far(x) * scale + float(twice), (A,), {}),
    "what_is_no_tensor": (lambda x, n, *, way: far(x) * n + len(way), (A, 3), {"way": "abc"}),
    "arrays": (lambda x, y: far(x) - y, (A.numpy(), np.float32(3)), {}),
    "structures": (
        lambda d, t: {"s": far(d["b"]) - d["a"], "t": t[::-1]},
        ({"b": B, "a": A}, (A, B)), {},
    ),
    "nothing_among_results": (lambda x: ((far(x), None), [None, x]), (A,), {}),
    "nothing_at_all": (lambda x: None if far(x) is not None else x, (A,), {}),
    "nothing_as_an_argument": (lambda x, y=None, z=None: far(x) - z, (A,), {"z": B}),
    "slices": (lambda x: tf.IndexedSlices(far(x), tf.constant([0, 1, 2])), (A,), {}),
    "ragged": (
        lambda r: r.with_values(far(r.values)),
        (tf.ragged.constant([[1.0, 2.0], [3.0]]),), {},
    ),
    "many": (
        lambda *all_, **others: far(all_[1]) - all_[0] + others["z"] - others["y"],
        (A, B), {"z": A, "y": B},
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_bound_as_that_of_the_function(call):
    function, arguments, named = CALLS[call]
    compare(function, *arguments, **named)


def test_a_variable_is_an_argument():
    """It is the variable that is passed, not what it holds."""

    def step(x, variable):
        variable.assign_add(far(x))
        return variable * 2.0

    variables = tf.Variable(A), tf.Variable(A)
    ours = LMS(1, 0, 1).function(tf.function(step))
    for _ in range(2):
        np.testing.assert_array_equal(ours(B, variables[0]), tf.function(step)(B, variables[1]))
    np.testing.assert_array_equal(variables[0], variables[1])


def test_what_the_function_does_not_take_is_its_error():
    ours = LMS(1, 0, 1).function(tf.function(lambda x: far(x)))
    with pytest.raises(TypeError):
        ours(A, B)
