# SPDX-License-Identifier: Apache-2.0
"""A TensorFlow program that needs more than it may have, and how it is limited."""

from __future__ import annotations

TENSORFLOW = """
import tensorflow as tf
tf.keras.utils.set_random_seed(0)
layers = [tf.keras.layers.Dense(512, activation="tanh") for _ in range(8)]
model = tf.keras.Sequential([tf.keras.layers.InputLayer((512,)), *layers])
optimizer = tf.keras.optimizers.SGD(0.1)
data = tf.random.normal((2048, 512))

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(data)))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss

print(" ".join(float(step()).hex() for _ in range(2)), tf.__file__)
"""
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
LIMIT = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "48"}
