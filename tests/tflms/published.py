# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 at 7500 x 7500 on 32 GB, the case that TFLMS was published with, as it is simulated:
`python tests/tflms/published.py` beside any TensorFlow, without a GPU. `--pictures FOLDER` keeps
what was drawn; `--graph` (with Keras 2) has Keras make the graph in the way of TensorFlow 1, as it
was then, and puts what TFLMS's log said beside."""

import argparse
import time
from pathlib import Path

import tensorflow as tf
from tensorflow_large_model_support import LMS

GIB = 1 << 30
MIB = 1 << 20
SIDE = 7500
CLASSES = 15
# The published log of TFLMS v2. Its learning parameters are twice the kernels of this network,
# which are what RMSprop has a second tensor for.
THEIRS = {
    "vertices": 14678,
    "edges": 18812,
    "MiB of kernels, twice": 179.18,
    "topological levels": 742,
    "swapout_threshold": 358,
    "swapin_groupby": 742,
    "swap-outs": 146,
    "swap-ins": 146,
    "GiB out": 108.89,
    "GiB in": 108.89,
}


def resnet50():
    return tf.keras.applications.ResNet50(
        weights=None, input_shape=(SIDE, SIDE, 3), classes=CLASSES,
        classifier_activation=None,
    )  # fmt: skip


def step():
    """A training step on one image, as a function of it and its label."""
    model = resnet50()
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


def graph():
    """The graph that Keras trains in, and the MiB of its kernels. No variable is made."""
    tf.compat.v1.disable_v2_behavior()
    made = tf.Graph()
    with made.as_default():
        model = resnet50()
        loss = tf.keras.losses.CategoricalCrossentropy(from_logits=True)
        model.compile("rmsprop", loss)
        model._make_train_function()
        kernels = [each.shape for each in model.trainable_weights if "kernel" in each.name]
    return made, sum(shape.num_elements() for shape in kernels) * 4 / MIB


def in_graph(lms):
    """What of TFLMS's log can be said of ours."""
    made, kernels = graph()
    operations = made.get_operations()
    counted = len(operations), sum(len(op.inputs) + len(op.control_inputs) for op in operations)
    lms.batch_size = 1
    with made.as_default():
        lms.run(made)
    seen = lms.simulated
    return dict(zip(THEIRS, (
        *counted,
        round(2 * kernels, 2),
        len(seen.before.device),
        seen.plan.settings.threshold,
        seen.plan.settings.groupby,
        len(seen.plan.swaps),
        seen.plan.swap_ins,
        round(seen.after.swapped_out / GIB, 2),
        round(seen.after.swapped_in / GIB, 2),
    ), strict=True))  # fmt: skip


def main():
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--gpu_mem", type=float, default=32, help="GiB")
    made.add_argument("--sync_mode", type=int, default=0)
    made.add_argument("--graph", action="store_true", help="in the way of TensorFlow 1")
    made.add_argument("--pictures", type=Path, help="a folder for them")
    options = made.parse_args()
    tf.compat.v1.logging.set_verbosity("INFO")
    lms = LMS(sync_mode=options.sync_mode)
    lms.autotune_gpu_mem = options.gpu_mem
    began = time.process_time()
    if options.graph:
        print("| | ours | TFLMS |\n|---|---|---|")
        for name, ours in in_graph(lms).items():
            print(f"| {name} | {ours} | {THEIRS[name]} |")
    else:
        lms._concrete(step().get_concrete_function())
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
