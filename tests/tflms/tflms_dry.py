# SPDX-License-Identifier: Apache-2.0
"""Trains convolutions on the dry device, plain for `null`, and says what they took."""

import json
import sys

import numpy as np
import tensorflow as tf

L = tf.keras.layers
x = entry = L.Input((128, 128, 3))
for _ in range(8):
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(64, 3, padding="same")(x)))
model = tf.keras.Model(entry, L.Dense(10)(L.GlobalAveragePooling2D()(x)))
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf.keras.optimizers.SGD(0.01), loss)
wanted = json.loads(sys.argv[1])
callbacks = []
if wanted is not None:
    from tensorflow_large_model_support import LMS

    lms = LMS(**wanted.get("options", {}))
    lms.batch_size, lms.autotune_gpu_mem = 16, wanted.get("memory")
    callbacks = [lms]
said = {"trained": True}
try:
    model.fit(np.zeros((32, 128, 128, 3), "f"), np.zeros(32), 16, verbose=0, callbacks=callbacks)
except tf.errors.ResourceExhaustedError:
    said["trained"] = False
said["peak"] = tf.config.experimental.get_memory_info("GPU:0")["peak"]
if wanted is not None:
    seen = lms.simulated
    said["predicted"] = seen.after.peak + seen.variables
    said["without"] = seen.before.peak + seen.variables
    said["moved"] = seen.after.swapped_out
print(json.dumps(said))
