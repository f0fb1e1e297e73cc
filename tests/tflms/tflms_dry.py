# SPDX-License-Identifier: Apache-2.0
"""Trains a model on the dry device, plain for `null`, and says what it took.

What is wanted, as JSON: `model`, `options` of LMS or none, `memory` to tune for, and `grappler`:
the mode of TensorFlow's own memory optimizer.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "tensorflow"))
L = tf.keras.layers


def convolutions():
    x = entry = L.Input((128, 128, 3))
    for _ in range(8):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(64, 3, padding="same")(x)))
    return tf.keras.Model(entry, L.Dense(10)(L.GlobalAveragePooling2D()(x))), 16


def resnet50():
    return tf.keras.applications.ResNet50(weights=None, classifier_activation=None), 64


def unet3d():
    import unet3d

    x = unet3d.network(96, 4, 16)
    return tf.keras.Model(x.inputs, L.GlobalAveragePooling3D()(x.outputs[0])), 1


def deeplab():
    import deeplab

    x = deeplab.network(512, "resnet50")
    return tf.keras.Model(x.inputs, L.GlobalAveragePooling2D()(x.outputs[0])), 4


def transformer():
    x = entry = L.Input((512, 512))
    for _ in range(6):
        seen = L.MultiHeadAttention(8, 64)(L.LayerNormalization()(x), x)
        x = L.Add()([x, seen])
        y = L.Dense(512)(L.Dense(2048, activation="gelu")(L.LayerNormalization()(x)))
        x = L.Add()([x, y])
    return tf.keras.Model(entry, L.Dense(10)(L.GlobalAveragePooling1D()(x))), 16


MODELS = {make.__name__: make for make in (convolutions, resnet50, unet3d, deeplab, transformer)}


def main():
    wanted = json.loads(sys.argv[1]) or {}
    # Of two threads that launch ops a loaded machine may stop either, and peaks go by that.
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if "grappler" in wanted:
        from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
        from tensorflow.python.eager import context

        config = config_pb2.ConfigProto()
        modes = rewriter_config_pb2.RewriterConfig
        rewriting = config.graph_options.rewrite_options
        rewriting.memory_optimization = getattr(modes, wanted["grappler"])
        context.context()._config = config
    model, batch = MODELS[wanted.get("model", "convolutions")]()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Keras 3 would have XLA compile what LMS is not given, which then plans its memory itself.
    model.compile(tf.keras.optimizers.SGD(0.01), loss, jit_compile=False)
    callbacks, lms = [], None
    if "options" in wanted or "memory" in wanted:
        from tensorflow_large_model_support import LMS

        lms = LMS(**wanted.get("options", {}))
        lms.batch_size, lms.autotune_gpu_mem = batch, wanted.get("memory")
        callbacks = [lms]
    said = {"trained": True}
    with tf.device("/cpu:0"):  # arrays would lie on the GPU all the time
        images, labels = np.zeros((batch, *model.input_shape[1:]), "f"), np.zeros(batch)
        given = tf.data.Dataset.from_tensors((images, labels)).repeat(2)
    try:
        model.fit(given, verbose=0, callbacks=callbacks)
    except tf.errors.ResourceExhaustedError:
        said["trained"] = False
    said["peak"] = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    if lms:
        seen = lms.simulated
        said["without"], said["predicted"] = seen.first_peaks()
        said["moved"] = seen.after.swapped_out
    print(json.dumps(said))


if __name__ == "__main__":
    main()
