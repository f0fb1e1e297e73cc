# SPDX-License-Identifier: Apache-2.0
"""The options for Large Model Support by rewriting the graph, which these examples share."""

import argparse


def add_options(parser, *, on):
    """`on`: whether it is so without --lms or --no-lms."""
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--lms", action=switch, default=on, help="with Large Model Support")
    for name in ("swapout_threshold", "swapin_groupby", "swapin_ahead"):
        parser.add_argument(f"--{name}", type=int, default=-1, help="-1: tuned")
    parser.add_argument("--sync_mode", type=int, default=0, choices=range(4))
    parser.add_argument(
        "--serialization", type=int, default=-1, help="from this level on; -1: none"
    )
    parser.add_argument("--serialization_by_size", type=float, default=0, help="GiB; 0: none")
    parser.add_argument("--plan", choices=("numbers", "best"), default="numbers")
    parser.add_argument("--gpu_mem", type=float, help="GiB to tune for; without, the GPU's")


def large_model_support(options):
    """None without --lms."""
    if not options.lms:
        return None
    from tensorflow_large_model_support import LMS

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
