# SPDX-License-Identifier: Apache-2.0
"""Trains a model of keras.applications on images of any size, with Large Model Support by
rewriting its graph, beside any TensorFlow."""

import os
import sys

import tensorflow as tf
from many_models import parser, switch, together, train
from swapping import add_options, large_model_support

v1 = tf.compat.v1


def arguments():
    made = parser(__doc__)
    add_options(made, on=False)
    switch(made, "--show_tensors_on_oom", "list the tensors that are there when memory runs out")
    return made.parse_args()


def reporting():
    """Options of `compile` with which TensorFlow lists tensors when memory runs out: it does so for
    what a session runs."""
    if getattr(tf.keras, "__version__", "2").startswith("3"):
        sys.exit(
            "--show_tensors_on_oom cannot be used because TensorFlow lists tensors for sessions "
            "alone, and Keras 3 has none; `pip install tf_keras` and set TF_USE_LEGACY_KERAS=1, or "
            "take TensorFlow 2.14"
        )
    v1.disable_eager_execution()
    return {"options": v1.RunOptions(report_tensor_allocations_upon_oom=True)}


def main():
    options = arguments()
    v1.logging.set_verbosity("INFO")
    # Its convolutions work in memory that no simulation sees.
    os.environ.setdefault("TF_LMS_SIMULATOR_MEM_RATIO", "0.8")
    compiled = reporting() if options.show_tensors_on_oom else None
    lms = large_model_support(options)
    train(options, [lms] if lms else [], together(), compiled)


if __name__ == "__main__":
    main()
