# SPDX-License-Identifier: Apache-2.0
"""Tuning of real graphs, of the models that are trained elsewhere here: what fits, and how fast."""

from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow_large_model_support import LMS
from tensorflow_large_model_support.best import Best
from tensorflow_large_model_support.choice import Settings
from tensorflow_large_model_support.functions import Unrolled
from tensorflow_large_model_support.plan import Plan, Planner
from tensorflow_large_model_support.profiles import DEFAULT, Profile
from tensorflow_large_model_support.reading import read
from tensorflow_large_model_support.simulator import Simulator
from tensorflow_large_model_support.timing import Timer
from tensorflow_large_model_support.tuner import Tuner
from test_training import assert_equal, branches, convolutions, fit, transformer, unet3d

DOCS = Path(__file__).resolve().parents[2] / "docs" / "tflms.md"
MODELS = {  # with a batch that makes copies worth a thought
    convolutions: 4096,
    unet3d: 4096,
    transformer: 16384,
    branches: 1 << 20,
}


def graph_of(make, batch):
    """That of a training step."""
    model, shape = make()
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(given, labels):
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(given))
            loss = tf.reduce_mean(each)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        )
        return loss

    given = tf.TensorSpec((None, *shape)), tf.TensorSpec((None,), tf.int32)
    unrolled = Unrolled(step.get_concrete_function(*given))
    return read(unrolled.graph(batch).get_operations())


def times(graph, shares):
    """With three numbers and with each tensor's own, as multiples of what a step takes without
    swapping, of each share of the memory that can be had."""
    planner, simulator, timer = Planner(graph, whole=True), Simulator(graph), Timer(graph, DEFAULT)
    without = Plan(Settings(graph.depth))
    peak, alone = simulator.run(without).peak, timer.run(without).total
    fitted = []
    for share in shares:
        limit = int(peak * share)
        tuned = Tuner(planner, simulator, timer, limit, print).tune(Settings(-1, -1, -1))
        if tuned is None:
            continue
        best = Best(planner, simulator, timer, limit).improve(tuned)
        assert simulator.run(best.plan).peak <= limit
        fitted.append(tuple(timer.run(each.plan).total / alone for each in (tuned, best)))
    return fitted


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_best_is_at_least_as_fast_as_three_numbers(make):
    fitted = times(graph_of(make, MODELS[make]), (0.9, 0.8, 0.7, 0.6, 0.5))
    if make is branches:  # whose tensors are read next to where they are made
        assert not fitted
    else:
        assert all(best <= three for three, best in fitted)
        assert any(best < three for three, best in fitted)


@pytest.mark.skipif(not tf.__version__.startswith("2.21."), reason="the page tells 2.21's")
def test_the_page_tells_these_times():
    told = " ".join(DOCS.read_text().split())
    for make, share, text in (
        (transformer, 0.5, "takes {1:.2f} times as long as without swapping, with three numbers "
                           "for all {0:.2f} times; "),
        (convolutions, 0.8, "of the convolutions in 0.8 of it {1:.2f} and {0:.2f} times"),
    ):  # fmt: skip
        (found,) = times(graph_of(make, MODELS[make]), [share])
        assert text.format(*found) in told


def test_arithmetic_is_counted():
    """Of each forward product and convolution, and twice that on the way back."""
    counted = {}
    for make in MODELS:
        graph = graph_of(make, 8)
        for op in graph.ops:
            if op.flops:
                counted.setdefault(op.type, []).append(op.flops)
    assert {"Conv2D", "Conv3D", "MatMul", "Einsum", "Conv3DBackpropFilterV2"} <= set(counted)
    # The last convolution: 8 images of 8 x 8, from 16 channels to 16.
    assert counted["Conv2D"][0] == 2 * 8 * 16 * 16 * 3 * 3 * 3 * 8
    for kind in ("Input", "Filter"):
        back = counted[f"Conv2DBackprop{kind}"]
        assert set(back) <= set(counted["Conv2D"])


def test_each_tensor_by_its_own_numbers_trains_to_the_same_digits(said):
    lms = LMS(plan="best")
    lms.batch_size, lms.autotune_gpu_mem = 4, 740e3 / (1 << 30)
    lms.profile = Profile("slow", 1e12, 1e12, 1e12, 1e12, 1e7, 1e7)
    assert_equal(fit(convolutions), fit(convolutions, lms))
    assert lms.simulated.plan.each and lms.simulated.plan.swaps
    assert lms.simulated.after.peak < lms.simulated.before.peak
    assert any("Configuration: each tensor by its own numbers, sync_mode: " in s for s in said)
    assert any("A step takes " in line and "as slow would at best" in line for line in said)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"plan": "fast"}, "plan is 'fast', which is none of"),
        ({"plan": "best", "swapin_ahead": 3}, "so that there are none to give; leave"),
    ],
)
def test_what_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        LMS(**wrong)
    lms = LMS()
    with pytest.raises(ValueError, match="profile is 'fast', which is none of"):
        lms.profile = "fast"
    assert lms.profile == DEFAULT  # where TensorFlow sees no GPU
