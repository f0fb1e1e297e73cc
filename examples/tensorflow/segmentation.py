# SPDX-License-Identifier: Apache-2.0
"""What the examples of segmentation share: the options, and how they train."""

import argparse

import tensorflow as tf
from swapping import add_options, large_model_support


def parser(what, image_size):
    made = argparse.ArgumentParser(description=what)
    made.add_argument("--image_size", type=int, default=image_size, help="points of a side")
    made.add_argument("--batch_size", type=int, default=1)
    made.add_argument("--epochs", type=int, default=1)
    made.add_argument("--steps", type=int, default=10, help="of an epoch")
    add_options(made, on=True)
    return made


def train(options, model, loss, given, truth):
    """Of one batch, again and again."""
    tf.compat.v1.logging.set_verbosity("INFO")
    model.compile(tf.keras.optimizers.Adam(1e-4), loss)
    lms = large_model_support(options)
    data = tf.data.Dataset.from_tensors((given, truth)).repeat()
    model.fit(
        data, epochs=options.epochs, steps_per_epoch=options.steps, verbose=2,
        callbacks=[lms] if lms else [],
    )  # fmt: skip
