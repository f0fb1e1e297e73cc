# SPDX-License-Identifier: Apache-2.0
"""Functions that a graph runs, in loops, in branches and where they are called, are rewritten, too:
results are those of the unmodified ones, digit for digit."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_large_model_support import LMS
from test_training import added, assert_equal, convolutions, fit, the_same_sums

v1 = tf.compat.v1
__all__ = ["the_same_sums"]  # for every test here, too
X = np.random.RandomState(0).rand(4, 8).astype("float32")
W = [np.random.RandomState(n).rand(8, 8).astype("float32") / 4 for n in range(4)]


def block(x, weights):
    """Its first results are read again at the end."""
    early = tf.sin(x)
    x = early
    for weight in weights:
        x = tf.tanh(tf.matmul(x, weight))
    return x * early + tf.cos(early)


def within(said):
    """How many tensors are swapped in functions."""
    return sum(int(line.split()[1]) for line in said if " tensors are swapped within " in line)


def in_a_loop(x, weights):
    return tf.while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, block(y, weights)), (0, x))[1]


def in_a_loop_of_python(x, weights):
    for _ in tf.range(3):
        x = block(x, weights)
    return x


def in_a_loop_in_a_loop(x, weights):
    def outer(n, y):
        return n + 1, in_a_loop(block(y, weights), weights) + tf.sin(y)

    return tf.while_loop(lambda n, _: n < 2, outer, (0, x))[1]


def in_branches(x, weights):
    yes = tf.cond(tf.reduce_sum(x) > 0, lambda: block(x, weights), lambda: tf.exp(x))
    return tf.cond(tf.reduce_sum(x) < 0, lambda: tf.exp(yes), lambda: block(yes, weights))


def in_branches_of_branches(x, weights):
    """Whose gradients Grappler leaves colocated with ops that it has removed."""

    def no():
        return tf.cond(tf.reduce_max(x) > 2, lambda: block(x * 2.0, weights), lambda: x)

    y = tf.cond(tf.reduce_sum(x) > 0, lambda: block(x, weights), no)
    return tf.cond(tf.reduce_sum(y) > 0, lambda: block(y, weights), lambda: -y) * x


def in_a_case(x, weights):
    branches = [lambda: tf.exp(x), lambda: block(x, weights), lambda: x]
    return tf.switch_case(tf.cast(tf.reduce_sum(x) > 0, tf.int32), branches)


def in_a_scan(x, weights):
    return tf.scan(lambda y, _: block(y, weights), tf.range(3), x)


WAYS = [
    *(in_a_loop, in_a_loop_of_python, in_a_loop_in_a_loop, in_a_scan),
    *(in_branches, in_branches_of_branches, in_a_case),
]


@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_functions_train_to_the_same_digits(way, mode, said):
    def train(rewritten):
        weights = [tf.Variable(each) for each in W]

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(way(x, weights))
            gradients = tape.gradient(loss, weights)
            for weight, gradient in zip(weights, gradients):
                weight.assign_sub(0.01 * gradient)
            return loss, gradients

        called = rewritten(step)
        found = [called(tf.constant(X)) for _ in range(3)]
        return [each.numpy() for each in tf.nest.flatten([found, weights])]

    ours = train(LMS(2, 0, 2, sync_mode=mode).function)
    assert within(said) > 1
    for one, other in zip(ours, train(lambda step: step)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("way", [*WAYS, "called"], ids=lambda way: getattr(way, "__name__", way))
def test_sessions_train_to_the_same_digits(way, said):
    called = tf.function(in_a_loop) if way == "called" else tf.autograph.to_graph(way)

    def train(lms=None):
        graph = tf.Graph()
        with graph.as_default():
            x = v1.placeholder(tf.float32, (4, 8))
            weights = [v1.get_variable(f"w{n}", initializer=each, use_resource=True)
                       for n, each in enumerate(W)]  # fmt: skip
            loss = tf.reduce_sum(called(x, weights))
            step = v1.train.AdamOptimizer(0.01).minimize(loss)
            begin = v1.global_variables_initializer()
        if lms:
            lms.run(graph)
        with v1.Session(graph=graph) as session:
            session.run(begin)
            losses = [session.run([loss, step], {x: X})[0] for _ in range(3)]
            return [*losses, *session.run(weights)]

    ours = train(LMS(2, 0, 2))
    assert within(said) > 1
    for one, other in zip(ours, train()):
        np.testing.assert_array_equal(one, other)


def test_several_steps_in_one_call(said):
    """Keras puts the model into the body of a loop."""
    plain = fit(convolutions, steps_per_execution=3)
    assert_equal(plain, fit(convolutions, LMS(3, 0, 1), steps_per_execution=3))
    assert added(said) > 5


def steps(weights):
    """Many in one call; no tensor stays from one to the next."""

    @tf.function
    def function(x):
        loss = tf.constant(0.0)
        for _ in tf.range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(block(x, weights))
            for weight, gradient in zip(weights, tape.gradient(loss, weights)):
                weight.assign_sub(0.01 * gradient)
        return loss

    return function


def test_what_a_body_takes_is_tuned(said):
    wide = np.tile(X, (512, 1))

    def train(rewritten):
        weights = [tf.Variable(each) for each in W]
        called = rewritten(steps(weights))
        return [called(tf.constant(wide)).numpy(), *(each.numpy() for each in weights)]

    known = LMS(1000, 0, 1)
    train(known.function)
    before = known.simulated.before.peak
    assert before > 5 * wide.nbytes  # of the body
    lms = LMS()
    lms.autotune_gpu_mem = (0.75 * before / 0.9 + known.simulated.variables) / (1 << 30)
    for one, other in zip(train(lms.function), train(lambda step: step)):
        np.testing.assert_array_equal(one, other)
    assert within(said) > 0 and lms.simulated.after.peak <= 0.75 * before
    lms.autotune_gpu_mem = (0.05 * before) / (1 << 30)
    with pytest.raises(ValueError, match="no configuration was found"):
        train(lms.function)


def test_a_loop_that_keeps_tensors_cannot_be_tuned():
    weights = [tf.Variable(each) for each in W]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(in_a_loop(x, weights))
        return tape.gradient(loss, weights)

    lms = LMS()
    lms.autotune_gpu_mem = 1e-6
    with pytest.raises(ValueError, match="is a while-loop, whose memory no simulation knows"):
        lms.function(step)(tf.constant(X))


def test_a_batch_size_is_known_within(said):
    graph = tf.Graph()
    with graph.as_default():
        in_a_loop(v1.placeholder(tf.float32, (None, 8)), W)
    lms = LMS(2, 0, 1)
    lms.batch_size = 4096
    lms.run(graph)
    assert within(said) > 1 and lms.simulated.after.swapped_out >= 4096 * 8 * 4


def test_filters_know_what_is_within():
    weights = [tf.Variable(each) for each in W]
    lms = LMS(2, 0, 1)
    lms.excl_output_by_types = {"Sin"}
    found = lms.function(tf.function(lambda x: in_a_loop(x, weights)))(tf.constant(X))
    np.testing.assert_array_equal(found, tf.function(in_a_loop)(tf.constant(X), weights))
    lms.excl_output_by_types = {"Sinn"}
    with pytest.raises(ValueError, match="names 'Sinn', which no operation"):
        lms.function(tf.function(lambda x: in_a_loop(x, weights)))(tf.constant(X))


def test_what_xla_compiles_within_is_left_alone(said):
    inner = tf.function(lambda x: block(x, W), jit_compile=True)

    @tf.function
    def outer(x):
        return in_a_loop(inner(x), W)

    found = LMS(2, 0, 1).function(outer)(tf.constant(X))
    np.testing.assert_array_equal(found, outer(tf.constant(X)))
    assert within(said) > 0


def test_the_swaps_are_in_the_body():
    """And wait for what triggers them."""
    graph = tf.Graph()
    with graph.as_default():
        in_a_loop(v1.placeholder(tf.float32, (4, 8)), W)
    LMS(2, 0, 1).run(graph)
    (loop,) = [op for op in graph.get_operations() if op.type.endswith("While")]
    name = loop.get_attr("body").name
    (body,) = [
        each for each in graph.as_graph_def().library.function if each.signature.name == name
    ]
    nodes = [node for node in body.node_def if node.name.startswith("lms/")]
    outs = [node for node in nodes if "swapout" in node.name]
    ins = [node for node in nodes if "swapin" in node.name]
    assert outs and len(ins) >= len(outs) and all("CPU:0" in node.device for node in nodes)
    for node in ins:
        assert node.input[0].startswith("lms/swapout") and node.input[1].startswith("^")
        assert node.attr["_grappler_do_not_remove"].b


def test_a_body_is_rewritten_for_each_device(said):
    """And has nodes of the same names already."""

    def graph():
        made = tf.Graph()
        with made.as_default():
            x = v1.placeholder(tf.float32, (4, 8), name="x")

            def body(n, y):
                with tf.name_scope("lms/"):
                    y = tf.identity(y, name="swapout_0")
                with tf.device("/gpu:0"):
                    z = block(y, W)
                with tf.device("/gpu:1"):
                    return n + 1, block(z, W) + z

            y = tf.while_loop(lambda n, _: n < 3, body, (0, x))[1]
            tf.identity(y, name="y")
        return made

    ours = graph()
    for device in ("/gpu:0", "/gpu:1"):
        LMS(1, 0, 1, gpu_device=device).run(ours)
    assert within(said) > 3 and len([line for line in said if "Added" in line]) == 2
    found = []
    for each in (ours, graph()):
        config = v1.ConfigProto(allow_soft_placement=True)
        with v1.Session(graph=each, config=config) as session:
            found.append(session.run("y:0", {"x:0": X}))
    np.testing.assert_array_equal(*found)
