# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 at 7500 x 7500 on 32 GB, a case that TFLMS was published with, as it is simulated:
`python tests/tflms/published.py` beside any TensorFlow, without a GPU. `--pictures FOLDER` keeps
what was drawn."""

import argparse
import time
from pathlib import Path

import tensorflow as tf
from tensorflow_large_model_support import LMS

GIB = 1 << 30
SIDE = 7500


def resnet50():
    """A training step on one image, as a function of it and its label."""
    model = tf.keras.applications.ResNet50(
        weights=None, input_shape=(SIDE, SIDE, 3), classes=15, classifier_activation=None
    )
    variables = model.trainable_variables

    @tf.function(
        input_signature=[
            tf.TensorSpec((1, SIDE, SIDE, 3), tf.float32),
            tf.TensorSpec((1,), tf.int32),
        ]
    )
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.01 * gradient)
        return loss

    return step


def main():
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--gpu_mem", type=float, default=32, help="GiB")
    made.add_argument("--sync_mode", type=int, default=0)
    made.add_argument("--pictures", type=Path, help="a folder for them")
    options = made.parse_args()
    tf.compat.v1.logging.set_verbosity("INFO")
    lms = LMS(sync_mode=options.sync_mode)
    lms.autotune_gpu_mem = options.gpu_mem
    concrete = resnet50().get_concrete_function()
    began = time.process_time()
    lms._concrete(concrete)
    seen = lms.simulated
    print(
        f"without: {(seen.before.peak + seen.variables) / GIB:.1f} GiB, "
        f"with: {(seen.after.peak + seen.variables) / GIB:.1f} GiB, "
        f"{seen.after.swapped_out / GIB:.1f} GiB out, {seen.after.swapped_in / GIB:.1f} in; "
        f"{time.process_time() - began:.1f} s of a processor"
    )
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
        names = iter(("without", "with", "distances"))
        for figure in lms.plan().values():
            figure.savefig(options.pictures / f"tflms-{next(names)}.png", dpi=60)


if __name__ == "__main__":
    main()
