# SPDX-License-Identifier: Apache-2.0
"""Losses, gradients and weights are those of the unmodified model, digit for digit."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_large_model_support import LMS

L = tf.keras.layers
BATCH = 4


@pytest.fixture(autouse=True)
def the_same_sums():
    """Grappler's arithmetic orders sums anew where it sees a pattern, which a swap may part."""
    tf.config.experimental.enable_op_determinism()
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    yield
    tf.keras.mixed_precision.set_global_policy("float32")


def convolutions():
    """Residual blocks with batch normalisation and dropout."""
    x = entry = L.Input((16, 16, 3))
    for width in (8, 8, 16):
        y = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(x)))
        x = L.Add()([L.Conv2D(width, 1)(x), y])
    x = L.Dropout(0.3)(L.MaxPooling2D()(x))
    return tf.keras.Model(entry, L.Dense(4, dtype="float32")(L.Flatten()(x))), (16, 16, 3)


def resnet50():
    model = tf.keras.applications.ResNet50(
        weights=None, input_shape=(32, 32, 3), classes=4, classifier_activation=None
    )
    return model, (32, 32, 3)


def unet3d():
    x = entry = L.Input((8, 8, 8, 1))
    skipped = []
    for width in (4, 8):
        x = L.Conv3D(width, 3, padding="same", activation="relu")(x)
        skipped.append(x)
        x = L.MaxPooling3D(2)(x)
    for width in (8, 4):
        x = L.UpSampling3D(2)(x)
        x = L.Concatenate()([x, skipped.pop()])
        x = L.Conv3D(width, 3, padding="same", activation="relu")(x)
    return tf.keras.Model(entry, L.Dense(4, dtype="float32")(L.Flatten()(x))), (8, 8, 8, 1)


def transformer():
    x = entry = L.Input((12, 16))
    for _ in range(2):
        y = L.LayerNormalization()(x)
        x = L.Add()([x, L.MultiHeadAttention(2, 8)(y, y)])
        y = L.Dense(32, activation="gelu")(L.LayerNormalization()(x))
        x = L.Add()([x, L.Dense(16)(y)])
    return tf.keras.Model(entry, L.Dense(4, dtype="float32")(L.Flatten()(x))), (12, 16)


def recurrent():
    """In a while-loop, which is left as it is."""
    x = entry = L.Input((6, 5))
    x = L.Dense(8, activation="tanh")(x)
    x = L.RNN(L.LSTMCell(8), return_sequences=True)(x)
    x = L.Add()([x, L.Dense(8)(L.LayerNormalization()(x))])
    return tf.keras.Model(entry, L.Dense(4)(L.GRU(7)(x))), (6, 5)


class Branches(L.Layer):
    """Takes the one or the other way, by what it reads."""

    def call(self, x):
        return tf.cond(tf.reduce_sum(x) > 100.0, lambda: tf.nn.relu(x), lambda: tf.tanh(x) * 2.0)


def branches():
    x = entry = L.Input((9,))
    for _ in range(3):
        x = Branches()(L.Dense(16)(x))
    return tf.keras.Model(entry, L.Dense(4)(x)), (9,)


def data(shape, count=3 * BATCH + 2):
    """The last batch is smaller."""
    draw = np.random.RandomState(1)
    return draw.rand(count, *shape).astype("float32"), draw.randint(4, size=count)


def fit(make, *callbacks, **options):
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)
    model, shape = make()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"metrics": ["accuracy"], "jit_compile": False, **options}
    model.compile(tf.keras.optimizers.Adam(1e-3), loss, **options)
    given = tf.data.Dataset.from_tensor_slices(data(shape)).map(lambda x, y: (x * 2.0, y))
    given = given.batch(BATCH).prefetch(2)
    history = model.fit(given, epochs=2, verbose=0, callbacks=list(callbacks)).history
    values = model.evaluate(given, verbose=0, callbacks=list(callbacks))
    guessed = model.predict(data(shape)[0], BATCH, verbose=0, callbacks=list(callbacks))
    return history, values, guessed, model.get_weights()


def assert_equal(one, other):
    assert one[:2] == other[:2]
    np.testing.assert_array_equal(one[2], other[2])
    for ours, theirs in zip(one[3], other[3]):
        np.testing.assert_array_equal(ours, theirs)


def added(said):
    """How many swap-outs were added to the graph that trains."""
    line = next(line for line in said if "Added" in line)
    return int(line.split("(")[1].split()[0])


MODELS = [convolutions, unet3d, transformer, recurrent, branches]
EVERY_MODEL = [
    *(pytest.param(make, id=make.__name__) for make in MODELS),
    pytest.param(resnet50, id="resnet50", marks=pytest.mark.slow),
]
NUMBERS = {
    "asynchronous": {"swapout_threshold": 3, "swapin_ahead": 4, "swapin_groupby": 5},
    "synchronous": {"swapout_threshold": 1, "sync_mode": 3, "serialization": ["5:40"]},
}


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("make", EVERY_MODEL)
def test_keras_trains_to_the_same_digits(make, numbers, said):
    lms = LMS(**{"swapin_ahead": 1, "swapin_groupby": 0, **NUMBERS[numbers]})
    assert_equal(fit(make), fit(make, lms))
    assert added(said) > 5


def test_what_addn_begins_with():
    """TensorFlow sums into an operand that nobody else holds, so that the last digit goes by who
    does: docs/tflms.md tells of it."""
    given = [tf.constant(np.random.RandomState(n).rand(64, 64).astype("float32")) for n in range(3)]
    first, second, third = map(tf.sin, given)

    @tf.function
    def alone(*given):
        return tf.add_n([*map(tf.sin, given)])

    @tf.function
    def held(*given):
        operands = [*map(tf.sin, given)]
        return tf.add_n(operands), operands[:2]

    np.testing.assert_array_equal(alone(*given), first + second + third)
    np.testing.assert_array_equal(held(*given)[0], third + second + first)
    assert (alone(*given) != held(*given)[0]).numpy().any()


def test_mixed_precision(said):
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    assert_equal(fit(convolutions), fit(convolutions, LMS(3, 0, 1)))
    assert added(said) > 5


def test_several_steps_in_one_call(said):
    plain = fit(convolutions, steps_per_execution=2)
    assert_equal(plain, fit(convolutions, LMS(3, 0, 1), steps_per_execution=2))


def test_a_model_that_was_saved(tmp_path, said):
    tf.keras.utils.set_random_seed(0)
    model, shape = convolutions()
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.save(tmp_path / "model.keras")
    x, y = data(shape)
    losses = []
    for callbacks in ([], [LMS(3, 0, 1)]):
        tf.keras.utils.set_random_seed(0)
        loaded = tf.keras.models.load_model(tmp_path / "model.keras")
        loaded.jit_compile = False
        losses.append(loaded.fit(x, y, BATCH, verbose=0, callbacks=callbacks).history)
    assert losses[0] == losses[1] and added(said) > 5


def test_a_batch_at_a_time(said):
    """By hand, which has no callbacks."""

    def train(*callbacks):
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(0)
        model, shape = convolutions()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=False)
        for callback in callbacks:
            callback.set_model(model)
            callback.on_train_begin()
        batches = [data(shape, BATCH) for _ in range(2)]
        return [model.train_on_batch(*batch) for batch in batches], model.get_weights()

    plain, ours = train(), train(LMS(3, 0, 1))
    assert added(said) > 5
    for one, other in zip(*map(tf.nest.flatten, (plain, ours))):
        np.testing.assert_array_equal(one, other)


def test_a_function_of_ones_own(said):
    """Gradients, too; the function is called from Python and from another function."""
    x, y = data((16, 16, 3))

    def train(rewritten):
        tf.keras.utils.set_random_seed(0)
        model, _ = convolutions()
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(images, *, labels):
            with tf.GradientTape() as tape:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
                loss = tf.reduce_mean(each)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return {"loss": loss, "gradients": gradients}

        called = rewritten(step)
        found = [called(x[at : at + 4], labels=tf.constant(y[at : at + 4])) for at in (0, 4)]
        return [each.numpy() for each in tf.nest.flatten(found)]

    lms = LMS(3, 2, 3)
    for ours, theirs in zip(train(lms.function), train(lambda step: step)):
        np.testing.assert_array_equal(ours, theirs)
    assert added(said) > 5 and len([line for line in said if "Added" in line]) == 1


def test_what_xla_compiles_is_refused():
    @tf.function(jit_compile=True)
    def function(x):
        return tf.nn.relu(x) * 2.0

    with pytest.raises(ValueError, match="because XLA compiles it"):
        LMS(1, 0, 1).function(function)(tf.ones(3))


def test_a_call_that_xla_compiles_is_one_op(said):
    @tf.function(jit_compile=True)
    def inner(x):
        return tf.nn.relu(x) * 2.0

    @tf.function
    def outer(x):
        before = tf.sin(x)
        return tf.cos(inner(tf.exp(inner(before)))) + before

    expected = outer(tf.ones(3))
    np.testing.assert_array_equal(LMS(2, 0, 1).function(outer)(tf.ones(3)), expected)
    assert any("2 calls are compiled by XLA" in line for line in said) and added(said) == 1


COMPILED = """
import sys
import numpy as np
import tensorflow as tf
from tensorflow_large_model_support import LMS

tf.compat.v1.logging.info = lambda text, *parts: print(text % parts)
x = entry = tf.keras.layers.Input((8,))
for _ in range(4):
    x = tf.keras.layers.Dense(8, activation="relu")(x)
model = tf.keras.Model(entry, x)
model.compile("sgd", "mse", jit_compile=True)
model.fit(np.ones((8, 8)), np.ones((8, 8)), verbose=0, callbacks=[LMS(2, 0, 1)])
"""


def test_keras_that_would_compile_by_xla():
    """Keras 3 does so by itself where it may, which is not where ops must be deterministic."""
    places = [str(Path(__file__).parents[2] / "lms" / "tflms"), *sys.path]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "[LMS][0] XLA, which chooses itself what lies where, is turned off." in said
    assert added(said) > 2


def test_an_eager_model_is_left_alone(said):
    tf.keras.utils.set_random_seed(0)
    model, shape = convolutions()
    model.compile(
        "sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True
    )
    model.fit(*data(shape, 4), verbose=0, callbacks=[LMS()])
    LMS().run()
    assert said == [
        "[LMS][0] The model runs eagerly, without a graph. Nothing is swapped.",
        "[LMS][0] There is no graph of a session here. Nothing is swapped.",
    ]
