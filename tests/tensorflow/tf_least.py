# SPDX-License-Identifier: Apache-2.0
"""Programs of test_least.py: `python tf_least.py NAME` prints what came of one, and what its
operation with the most needed."""

import json
import os
import random
import sys

import numpy as np
import tensorflow as tf

keras = tf.keras
layers = tf.keras.layers
stats = getattr(tf, "experimental", None)
STEPS = 3


def numbers(*shape):
    return tf.constant(np.random.RandomState(sum(shape)).rand(*shape).astype("float32"))


def train(model, optimizer, loss, x):
    with tf.GradientTape() as tape:
        found = loss(model(x, training=True))
    by = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(found, by), by))
    return found


def gan():
    """A DCGAN on 64 x 64, whose two networks take turns."""

    def block(x, width, layer):
        x = layer(width, 4, 2, padding="same", use_bias=False)(x)
        return layers.LeakyReLU(0.2)(layers.BatchNormalization()(x))

    entry = layers.Input((100,))
    x = layers.Reshape((4, 4, 128))(layers.Dense(4 * 4 * 128, use_bias=False)(entry))
    for width in (64, 32, 16):
        x = block(x, width, layers.Conv2DTranspose)
    image = layers.Conv2DTranspose(3, 4, 2, padding="same", activation="tanh")(x)
    generator = keras.Model(entry, image)

    entry = layers.Input((64, 64, 3))
    x = entry
    for width in (16, 32, 64, 128):
        x = block(x, width, layers.Conv2D)
    discriminator = keras.Model(entry, layers.Dense(1)(layers.Flatten()(x)))

    real, noise = numbers(64, 64, 64, 3), numbers(64, 100)
    first, second = keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01)

    @tf.function
    def step():
        made = generator(noise, training=True)
        one = train(discriminator, first, lambda y: tf.reduce_mean(tf.nn.softplus(-y)), real)
        two = train(discriminator, first, lambda y: tf.reduce_mean(tf.nn.softplus(y)), made)
        with tf.GradientTape() as tape:
            judged = discriminator(generator(noise, training=True), training=True)
            three = tf.reduce_mean(tf.nn.softplus(-judged))
        by = generator.trainable_variables
        second.apply_gradients(zip(tape.gradient(three, by), by))
        return one, two, three

    return [[float(loss) for loss in step()] for _ in range(STEPS)]


def densenet():
    """A block, each layer of which reads all before it."""
    entry = x = layers.Input((32, 32, 16))
    for _ in range(12):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Concatenate()([x, layers.Conv2D(12, 3, padding="same", use_bias=False)(y)])
    model = keras.Model(entry, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))
    optimizer, images = keras.optimizers.SGD(0.01), numbers(16, 32, 32, 16)
    step = tf.function(lambda: train(model, optimizer, lambda y: tf.reduce_mean(y * y), images))
    return [float(step()) for _ in range(STEPS)]


def ragged():
    """Rows of many lengths, made one tensor (RaggedTensorToTensor) and taken apart again."""
    lengths = [1 + 37 * i % 4096 for i in range(800)]
    kept, found = [], []
    for i in range(STEPS):
        rows = tf.RaggedTensor.from_row_lengths(numbers(sum(lengths)) + float(i), lengths)
        full = rows.to_tensor()
        kept.append(tf.reduce_sum(full, axis=1))
        again = tf.RaggedTensor.from_tensor(full, lengths=lengths)
        found.append([float(tf.reduce_sum(again.values)), float(kept[0][7])])
    return found


def loop():
    """Recurrent steps, kept in a TensorArray and made one tensor, with their gradients."""
    w, x = tf.Variable(numbers(1024, 1024) / 1024), numbers(512, 1024)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            kept, now = tf.TensorArray(tf.float32, 12, clear_after_read=False), x
            for i in tf.range(12):
                now = tf.tanh(tf.matmul(now, w))
                kept = kept.write(i, now)
            loss = tf.reduce_mean(kept.stack() ** 2)
        w.assign_sub(tape.gradient(loss, w))
        return loss

    return [float(step()) for _ in range(STEPS)]


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    random.seed(0)
    tf.random.set_seed(0)
    found = globals()[sys.argv[1]]()
    most = stats.lms_statistics()["devices"][0]["peak_bytes_active"] if len(sys.argv) > 2 else 0
    print(json.dumps([found, most]))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
