# SPDX-License-Identifier: Apache-2.0
"""Large Model Support as a callback of Keras, 2 or 3."""

import tensorflow as tf
from digits import COUNT, digits, parser
from swapping import large_model_support


def main():
    options = parser(__doc__).parse_args()
    tf.compat.v1.logging.set_verbosity("INFO")
    images, labels = digits(options)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(COUNT),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    lms = large_model_support(options)
    callbacks = [lms] if lms else []
    model.fit(images, labels, options.batch_size, verbose=2, callbacks=callbacks)


if __name__ == "__main__":
    main()
