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
    "structures_by_default": (lambda x, d={"a": 2, "b": (3,)}: far(x) * d["b"][0], (A,), {}),
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


def test_a_variable_is_changed_in_places():
    """TensorFlow asks for its shape when the op is made."""

    def step(x, variable):
        variable.scatter_nd_add([[0]], [far(x)[0]])
        return tf.gather(variable, [1, 0])

    variables = tf.Variable(A), tf.Variable(A)
    ours = LMS(1, 0, 1).function(tf.function(step))
    np.testing.assert_array_equal(ours(B, variables[0]), tf.function(step)(B, variables[1]))


class Model:
    def __init__(self, start):
        self.state = tf.Variable(start)

    @LMS(1, 0, 1).function
    def step(self, x, times=2.0):
        """Adds."""
        self.state.assign_add(far(x) * times)
        return self.state + x


def test_a_method(said):
    """Each object has its own state; what is called twice is rewritten once."""
    one, other = Model(A), Model(B)
    found = [one.step(B), one.step(B), other.step(B)]
    expected = A + far(B) * 2.0
    np.testing.assert_array_equal(found[0], expected + B)
    np.testing.assert_array_equal(found[1], expected + far(B) * 2.0 + B)
    np.testing.assert_array_equal(found[2], B + far(B) * 2.0 + B)
    assert len([line for line in said if "Added" in line]) == 2
    assert (Model.step.__name__, Model.step.__doc__) == ("step", "Adds.")


def test_a_call_within_another_function_or_a_pipeline(said):
    """Which TensorFlow makes of Python's code; ours is left to Python."""
    ours = LMS(1, 0, 1).function(tf.function(lambda x: far(x) * A))

    @tf.function
    def outer(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ours(x) + ours(x * 2.0)
        return tf.unstack(y), tape.gradient(y, x)

    @tf.function
    def plain(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = far(x) * A + far(x * 2.0) * A
        return tf.unstack(y), tape.gradient(y, x)

    for one, other in zip(tf.nest.flatten(outer(B)), tf.nest.flatten(plain(B))):
        np.testing.assert_array_equal(one, other)
    mapped = tf.data.Dataset.from_tensors(B).map(LMS(1, 0, 1).function(lambda x: far(x) * A))
    assert mapped.element_spec.shape == (3, 3)
    np.testing.assert_array_equal(next(iter(mapped)), tf.function(far)(B) * A)
    assert len([line for line in said if "Added" in line]) == 2


def test_what_is_not_rewritten_is_called_as_it_was(said):
    lms = LMS()
    lms.autotune_gpu_mem = 1
    ours = lms.function(lambda x, d={"a": 2.0}, *, twice=True: far(x) * d["a"])
    np.testing.assert_array_equal(ours(A), far(A) * 2.0)
    assert said[-1] == "[LMS][0] LMS is not necessary. Turned LMS off."


@pytest.mark.parametrize("wrong", [None, 5])
def test_what_is_no_function(wrong):
    with pytest.raises(ValueError, match=f"{wrong} is no function"):
        LMS(1, 0, 1).function(wrong)


def test_what_the_function_does_not_take_is_its_error():
    ours = LMS(1, 0, 1).function(tf.function(lambda x: far(x)))
    with pytest.raises(TypeError):
        ours(A, B)
