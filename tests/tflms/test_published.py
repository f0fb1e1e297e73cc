# SPDX-License-Identifier: Apache-2.0
"""The case that TFLMS was published with, as docs/tflms.md tells it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

KERAS_3 = getattr(tf.keras, "__version__", "2") >= "3"
PROGRAM = Path(__file__).with_name("published.py")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "tflms.md"


@pytest.mark.slow
@pytest.mark.skipif(KERAS_3, reason="it makes no graph of TensorFlow 1")
def test_resnet50_in_32_gib_is_swapped_as_it_was_then():
    places = [str(PROGRAM.parents[2] / "lms" / "tflms"), *sys.path]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--graph"], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|$", done.stdout, re.MULTILINE)
    ours, theirs = ({row[0]: float(row[at]) for row in rows} for at in (1, 2))
    for same in ("MiB of kernels, twice", "swapout_threshold"):
        assert ours[same] == theirs[same]
    for alike in ("GiB out", "GiB in", "topological levels", "edges"):
        assert ours[alike] == pytest.approx(theirs[alike], rel=0.07)
    assert ours["swapin_groupby"] == ours["topological levels"]  # as theirs
    peaks = re.search(r"without: (\S+) GiB, with: (\S+) GiB", done.stdout)
    without, within = map(float, peaks.groups())
    assert 130 < without < 140 and within < 32 * 0.9 + 0.2
    for row in done.stdout.splitlines()[2 : 2 + len(rows)]:
        assert row in DOCS.read_text()
