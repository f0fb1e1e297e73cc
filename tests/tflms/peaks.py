# SPDX-License-Identifier: Apache-2.0
"""Peaks of TensorFlow's own allocator on the dry device, beside what was simulated, and beside
TensorFlow's own swapping, as a table: `python tests/tflms/peaks.py` in an environment with the
official GPU wheel 2.14.1, from which `--models` chooses some."""

import argparse
import json
import sys

from test_dry import run
from tflms_dry import MODELS

GIB = 1 << 30
SYNCHRONOUS = {"swapout_threshold": 20, "swapin_groupby": 0, "swapin_ahead": 1, "sync_mode": 3}
ASYNCHRONOUS = {**SYNCHRONOUS, "sync_mode": 0}
WAYS = {
    "without": {},
    "Grappler's swapping": {"grappler": "SWAPPING_HEURISTICS"},
    "LMS, synchronous": {"options": SYNCHRONOUS},
    "LMS, asynchronous": {"options": ASYNCHRONOUS},
}


def main():
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = made.parse_args()
    print("| model | way | peak, GiB | simulated | off by |\n|---|---|---|---|---|", flush=True)
    for model in options.models:
        plain = None
        for way, wanted in WAYS.items():
            said = run(json.dumps({"model": model, **wanted}))
            peak = said["peak"]
            cells = [model, way, f"{peak / GIB:.2f}" if said["trained"] else "out of memory"]
            if "predicted" in said:
                off = said["predicted"] / peak - 1
                cells += [f"{said['predicted'] / GIB:.2f}", f"{off:+.0%}"]
                if plain:
                    print(f"{model}: {said['without'] / plain - 1:+.1%} without", file=sys.stderr)
            else:
                cells += ["", ""]
            plain = plain or peak
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
