# SPDX-License-Identifier: Apache-2.0
"""Trains one model in one way on the CPU device and prints what came of it as a line of JSON.

Runs on every TensorFlow that the suites know, official or patched, in a process of its own: a pool
is made once. Losses are exact (hexadecimal), so equal runs print equal lines.
"""

import argparse
import json
import os
import random
import sys
from functools import partial

import numpy as np
import tensorflow as tf

keras = tf.keras
layers = tf.keras.layers


def fix(threads):
    """The same sums in the same order, whatever the machine."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    random.seed(0)  # Keras draws the seeds of its initialisers from here
    np.random.seed(0)
    tf.random.set_seed(0)
    if hasattr(tf.config.experimental, "enable_op_determinism"):
        tf.config.experimental.enable_op_determinism()


# ---- models


def resnet(batch):
    return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)


def unet3d(batch):
    """3D U-Net of three levels on 16^3 volumes; convolutions along one axis at a time, because a
    CPU unrolls their input, as much of it as the processor's cache holds: hundreds of MiB that the
    batch must exceed."""

    def block(x, width):
        for kernel in ((3, 1, 1), (1, 3, 1), (1, 1, 3)) * 3:
            x = layers.Conv3D(width, kernel, padding="same", activation="relu")(x)
        return x

    entry = x = layers.Input((16, 16, 16, 1), batch_size=batch)
    skipped = []
    for width in (8, 16):
        x = block(x, width)
        skipped.append(x)
        x = layers.MaxPool3D(2)(x)
    x = block(x, 32)
    for width in (16, 8):
        x = layers.UpSampling3D(2)(x)
        x = block(layers.Add()([layers.Conv3D(width, 1)(x), skipped.pop()]), width)
    return keras.Model(entry, layers.Conv3D(1, 1)(x))


class Attention(layers.Layer):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = layers.Dense(3 * width)
        self.out = layers.Dense(width)

    def call(self, x):
        batch, length, width = x.shape
        parts = tf.reshape(self.qkv(x), (batch, length, 3, self.heads, width // self.heads))
        q, k, v = tf.unstack(tf.transpose(parts, (2, 0, 3, 1, 4)))
        weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (width // self.heads) ** -0.5)
        mixed = tf.transpose(tf.matmul(weights, v), (0, 2, 1, 3))
        return self.out(tf.reshape(mixed, (batch, length, width)))


def transformer(batch, depth=8):
    """A pre-norm transformer of `depth` layers on 256 tokens."""
    entry = x = layers.Input((256, 64), batch_size=batch)
    for _ in range(depth):
        x = layers.Add()([x, Attention(64, 4)(layers.LayerNormalization()(x))])
        inner = layers.Dense(256, activation="relu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(64)(inner)])
    return keras.Model(entry, layers.Dense(64)(x))


# Name -> how it is made for a batch, the batch, the shapes of one input and of one target.
MODELS = {
    "resnet": (resnet, 4, (64, 64, 3), (10,)),
    "unet3d": (unet3d, 384, (16, 16, 16, 1), (16, 16, 16, 1)),
    "transformer": (transformer, 4, (256, 64), (256, 64)),
    "shallow": (partial(transformer, depth=4), 4, (256, 64), (256, 64)),
}


def batches(shape, target, batch, steps):
    made_up = np.random.RandomState(1)
    return [
        tuple(made_up.rand(batch, *one).astype("float32") for one in (shape, target))
        for _ in range(steps)
    ]


# ---- ways to train


def fit(make, data):
    """Keras compile and fit: one batch an epoch, so that each loss is seen."""
    model = make()
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    losses = []
    for x, y in data:
        history = model.fit(x, y, batch_size=len(x), epochs=1, verbose=0, shuffle=False)
        losses.append(history.history["loss"][0])
    return losses, model.get_weights()


def _step(model, optimizer):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.math.squared_difference(model(x, training=True), y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return step


def function(make, data):
    """A loop of one's own over a tf.function, fed by tf.data from its own threads."""
    model = make()
    step = tf.function(_step(model, keras.optimizers.Adam(1e-3)))
    flow = tf.data.Dataset.from_generator(
        lambda: iter(data),
        (tf.float32, tf.float32),
        (tf.TensorShape(data[0][0].shape), tf.TensorShape(data[0][1].shape)),
    )
    losses = [float(step(x, y)) for x, y in flow.map(lambda x, y: (x * 2.0, y)).prefetch(2)]
    return losses, model.get_weights()


def eager(make, data):
    """Every operation by itself."""
    model = make()
    step = _step(model, keras.optimizers.Adam(1e-3))
    losses = [float(step(tf.constant(x), tf.constant(y))) for x, y in data]
    return losses, model.get_weights()


def configuration(lms_enabled):
    """Of a session. The official wheel folds constants in the pool and does not look whether there
    is room: a 3D U-Net by an Estimator in 96 MiB is a segmentation fault instead of an error, if it
    is not told to leave them. Ours folds."""
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = 1
    if not hasattr(tf.config.experimental, "set_lms_enabled"):
        config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
        config.graph_options.rewrite_options.constant_folding = 2  # off
    if lms_enabled:
        config.gpu_options.experimental.lms_enabled = True
    return config


def session(make, data, lms_enabled):
    """A graph in a session of TensorFlow 1."""
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    v1.set_random_seed(0)
    config = configuration(lms_enabled)
    with v1.Session(config=config) as run:
        v1.keras.backend.set_session(run)
        model = make()
        x = v1.placeholder(tf.float32, data[0][0].shape)
        y = v1.placeholder(tf.float32, data[0][1].shape)
        loss = tf.reduce_mean(tf.math.squared_difference(model(x, training=True), y))
        train = v1.train.AdamOptimizer(1e-3).minimize(loss)
        run.run(v1.global_variables_initializer())
        losses = [float(run.run([loss, train], {x: a, y: b})[0]) for a, b in data]
        return losses, run.run(v1.trainable_variables())


def estimator(make, data, lms_enabled):
    """tf.estimator with a RunConfig."""
    import tempfile

    v1 = tf.compat.v1
    config = configuration(lms_enabled)
    losses = []

    class Watch(v1.train.SessionRunHook):
        def __init__(self, loss):
            self.loss = loss

        def before_run(self, context):
            return v1.train.SessionRunArgs(self.loss)

        def after_run(self, context, values):
            losses.append(float(values.results))

    def model_fn(features, labels, mode):
        loss = tf.reduce_mean(tf.math.squared_difference(make()(features, training=True), labels))
        train = v1.train.AdamOptimizer(1e-3).minimize(loss, v1.train.get_global_step())
        return v1.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train, training_hooks=[Watch(loss)]
        )

    def input_fn():
        xs, ys = (np.concatenate(part) for part in zip(*data))
        return v1.data.Dataset.from_tensor_slices((xs, ys)).batch(len(data[0][0]), True)

    with tempfile.TemporaryDirectory() as folder:
        run_config = tf.estimator.RunConfig(
            model_dir=folder, tf_random_seed=0, session_config=config, save_checkpoints_steps=None,
            save_checkpoints_secs=None, save_summary_steps=1000,
        )  # fmt: skip
        found = v1.estimator.Estimator(model_fn, config=run_config)
        found.train(input_fn, steps=len(data))
    return losses, []


WAYS = {f.__name__: f for f in (fit, function, eager, session, estimator)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--by", choices=("environment", "call", "config"), default="environment")
    options = parser.parse_args()
    fix(options.threads)
    if options.by == "call":
        tf.config.experimental.set_lms_enabled(True)
    model, batch, *shapes = MODELS[options.model]

    def make():
        return model(batch)

    way = WAYS[options.way]
    data = batches(*shapes, batch, options.steps)
    result = {"outcome": "finished", "version": tf.__version__}
    try:
        extra = (options.by == "config",) if way in (session, estimator) else ()
        losses, weights = way(make, data, *extra)
        result["losses"] = [float(loss).hex() for loss in losses]
        result["weights"] = [float(np.sum(np.abs(w), dtype=np.float64)).hex() for w in weights]
    except tf.errors.ResourceExhaustedError as error:
        result.update(outcome="out of memory", message=str(error))
    if hasattr(tf.config.experimental, "get_lms_enabled"):
        result["enabled"] = tf.config.experimental.get_lms_enabled()
        result["statistics"] = tf.experimental.lms_statistics()
        result["summary"] = tf.experimental.lms_summary()
    print(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # what a pool that ran full leaves behind is not the test's subject


if __name__ == "__main__":
    main()
