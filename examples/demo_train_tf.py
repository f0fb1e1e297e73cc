# SPDX-License-Identifier: Apache-2.0
"""Trains a U-Net on made-up images. It knows nothing of Large Model Support.

python demo_train_tf.py              # out of memory where the network does not fit
TF_LMS=1 python demo_train_tf.py     # the same program, with Large Model Support
"""

import argparse
import hashlib
import json
import random

import numpy as np
import tensorflow as tf

layers = tf.keras.layers


def block(x, width, depth):
    """Convolutions that keep the size of the image: (N, H, W, any) to (N, H, W, width). Each is
    along one axis, because a CPU unrolls the input of a convolution."""
    for kernel in ((3, 1), (1, 3)) * depth:
        x = layers.Conv2D(width, kernel, padding="same", activation="relu")(x)
    return x


def unet(size, width, levels, depth):
    """(N, size, size, 3) to (N, size, size, 1); size divisible by 2 ** (levels - 1)."""
    entry = x = layers.Input((size, size, 3))
    skipped = []
    for level in range(levels - 1):
        x = block(x, width << level, depth)
        skipped.append(x)
        x = layers.MaxPool2D(2)(x)
    x = block(x, width << levels - 1, depth)
    for level in reversed(range(levels - 1)):
        x = layers.UpSampling2D(2)(layers.Conv2D(width << level, 1)(x))
        x = block(layers.Add()([x, skipped.pop()]), width << level, depth)
    return tf.keras.Model(entry, layers.Conv2D(1, 1)(x))


def train(options):
    """Train and give the losses (exact, as hexadecimal floats) and a hash of the parameters."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    random.seed(0)  # Keras draws the seeds of its initialisers from here
    tf.random.set_seed(0)
    model = unet(options.size, options.width, options.levels, options.depth)
    optimizer = tf.keras.optimizers.Adam(1e-3)

    @tf.function
    def step(image, wanted):
        with tf.GradientTape() as tape:
            logits = model(image, training=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    made_up = np.random.RandomState(1)
    losses = []
    for number in range(options.steps):
        image = made_up.rand(options.batch, options.size, options.size, 3).astype("float32")
        wanted = (image.mean(axis=-1, keepdims=True) > 0.5).astype("float32")
        losses.append(float(step(tf.constant(image), tf.constant(wanted))))
        print(f"step {number + 1}/{options.steps}: loss {losses[-1]:.6f}", flush=True)
    digest = hashlib.sha256()
    for value in model.get_weights():
        digest.update(value.tobytes())
    return {"losses": [loss.hex() for loss in losses], "parameters": digest.hexdigest()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=256, help="height and width of the images")
    parser.add_argument("--width", type=int, default=16, help="channels of the first level")
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--depth", type=int, default=8, help="pairs of convolutions per block")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", help="JSON file for the losses")
    options = parser.parse_args()
    result = train(options)
    if options.output:
        with open(options.output, "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
