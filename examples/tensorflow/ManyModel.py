# SPDX-License-Identifier: Apache-2.0
"""Trains a model of keras.applications on images of any size, with the allocator's Large Model
Support of a patched TensorFlow."""

import sys
from pathlib import Path

import tensorflow as tf
from lms_stats import LMSStatsAverage, LMSStatsLogger
from many_models import parser, switch, together, train


def arguments():
    made = parser(__doc__)
    switch(made, "--lms", "with Large Model Support")
    switch(made, "--lms_stats", "write what it did in each step")
    switch(made, "--lms_stats_average", "write the averages of the steps")
    made.add_argument(
        "--lms_stats_warmup_steps", type=int, default=5, help="that the averages leave out"
    )
    made.add_argument("--output_dir", type=Path, default=Path("model_outputs"))
    return made.parse_args()


def callbacks(options, rank):
    name = options.model if rank == 0 else f"{options.model}_rank{rank}"
    made = []
    if options.lms_stats:
        made.append(LMSStatsLogger(options.output_dir / f"{name}_lms_stats.csv"))
    if options.lms_stats_average:
        made.append(
            LMSStatsAverage(
                options.output_dir / f"{name}_lms_stats_average.csv",
                options.image_size,
                batch_size=options.batch_size,
                start_batch=options.lms_stats_warmup_steps,
            )
        )
    return made


def main():
    options = arguments()
    if not hasattr(tf.config.experimental, "set_lms_enabled"):
        sys.exit(
            "ManyModel cannot run because this TensorFlow has no Large Model Support in its "
            "allocator; install a patched one, or take Keras_ManyModel.py"
        )
    others = together()
    if options.lms:
        tf.config.experimental.set_lms_enabled(True)
    train(options, callbacks(options, others.rank()), others)


if __name__ == "__main__":
    main()
