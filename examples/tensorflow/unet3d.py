# SPDX-License-Identifier: Apache-2.0
"""A 3D U-Net that segments scans, as of a brain in four modalities, with Large Model Support."""

import numpy as np
import tensorflow as tf
from segmentation import parser, train

layers = tf.keras.layers
MODALITIES, CLASSES = 4, 3


def block(x, width):
    for _ in range(2):
        x = layers.Conv3D(width, 3, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def network(side, depth, width):
    """Halves the scan `depth` times, and doubles it again beside what it was."""
    x = entry = layers.Input((side, side, side, MODALITIES))
    passed = []
    for step in range(depth):
        x = block(x, width << step)
        passed.append(x)
        x = layers.MaxPooling3D()(x)
    x = block(x, width << depth)
    for step in reversed(range(depth)):
        x = layers.UpSampling3D()(x)
        x = block(layers.Concatenate()([x, passed[step]]), width << step)
    return tf.keras.Model(entry, layers.Conv3D(CLASSES, 1, activation="sigmoid")(x))


def dice(truth, found):
    """One less the share of each class in which both agree."""
    axes = (1, 2, 3)
    both = tf.reduce_sum(truth * found, axes)
    each = tf.reduce_sum(truth, axes) + tf.reduce_sum(found, axes)
    return 1 - tf.reduce_mean((2 * both + 1) / (each + 1), -1)


def main():
    made = parser(__doc__, image_size=144)
    made.add_argument("--depth", type=int, default=4, help="how often it is halved")
    made.add_argument("--width", type=int, default=16, help="channels of the first block")
    options = made.parse_args()
    if options.image_size % (1 << options.depth):
        made.error(f"--image_size is no multiple of {1 << options.depth}, as --depth needs")
    side = options.image_size
    draw = np.random.RandomState(0)
    scans = draw.rand(options.batch_size, side, side, side, MODALITIES).astype("float32")
    truth = (scans[..., :CLASSES] > 0.5).astype("float32")
    train(options, network(side, options.depth, options.width), dice, scans, truth)


if __name__ == "__main__":
    main()
