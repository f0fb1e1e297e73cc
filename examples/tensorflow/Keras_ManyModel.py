# SPDX-License-Identifier: Apache-2.0
"""Trains a model of keras.applications on images of any size, with Large Model Support by
rewriting its graph, beside any TensorFlow."""

import os

import tensorflow as tf
from many_models import parser, together, train

v1 = tf.compat.v1


def arguments():
    made = parser(__doc__)
    for name in ("swapout_threshold", "swapin_groupby", "swapin_ahead"):
        made.add_argument(f"--{name}", type=int, default=-1, help="-1: tuned")
    made.add_argument("--sync_mode", type=int, default=0, choices=range(4))
    made.add_argument("--serialization", type=int, default=-1, help="from this level on; -1: none")
    made.add_argument("--serialization_by_size", type=float, default=0, help="GiB; 0: none")
    made.add_argument("--plan", choices=("numbers", "best"), default="numbers")
    made.add_argument("--gpu_mem", type=float, help="GiB to tune for; without, the GPU's")
    return made.parse_args()


def large_model_support(options):
    from tensorflow_large_model_support import LMS

    # Its convolutions work in memory that no simulation sees.
    os.environ.setdefault("TF_LMS_SIMULATOR_MEM_RATIO", "0.8")
    lms = LMS(
        swapout_threshold=options.swapout_threshold,
        swapin_groupby=options.swapin_groupby,
        swapin_ahead=options.swapin_ahead,
        sync_mode=options.sync_mode,
        serialization=[f"{options.serialization}:"] if options.serialization >= 0 else [],
        serialization_by_size=options.serialization_by_size,
        plan=options.plan,
    )
    lms.batch_size, lms.autotune_gpu_mem = options.batch_size, options.gpu_mem
    return lms


def main():
    options = arguments()
    v1.logging.set_verbosity("INFO")
    callbacks = [large_model_support(options)] if options.lms else []
    train(options, callbacks, together())


if __name__ == "__main__":
    main()
