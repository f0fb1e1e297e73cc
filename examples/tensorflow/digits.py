# SPDX-License-Identifier: Apache-2.0
"""What the examples of MNIST share: the digits, and the options."""

import argparse

import numpy as np
from swapping import add_options

COUNT = 10


def parser(what):
    made = argparse.ArgumentParser(description=what)
    made.add_argument("--data", help="mnist.npz of Keras; without, ten made-up shapes and noise")
    made.add_argument("--steps", type=int, default=100)
    made.add_argument("--batch_size", type=int, default=32)
    add_options(made, on=True)
    return made


def digits(options):
    """Images and labels for as many steps as there are to be."""
    count = options.steps * options.batch_size
    if options.data:
        with np.load(options.data) as file:
            images, labels = file["x_train"] / np.float32(255), file["y_train"]
            chosen = np.arange(count) % len(images)
            return images[chosen, ..., None].astype("float32"), labels[chosen].astype("int32")
    draw = np.random.RandomState(0)
    shapes = draw.rand(COUNT, 28, 28, 1) > 0.7
    labels = draw.randint(COUNT, size=count)
    noise = draw.rand(count, 28, 28, 1) * 0.5
    return (shapes[labels] + noise).astype("float32"), labels.astype("int32")
