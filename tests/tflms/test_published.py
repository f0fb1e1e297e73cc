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


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(KERAS_3, reason="the page tells it of Keras 2"),
]


def published(*options):
    places = [str(PROGRAM.parents[2] / "lms" / "tflms"), *sys.path]
    return subprocess.run(
        [sys.executable, str(PROGRAM), *options], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip


def peaks(said):
    """GiB without and with swapping."""
    return re.search(r"without: (\S+) GiB, with: (\S+) GiB", said).groups()


def told():
    """The page, as one line."""
    return " ".join(DOCS.read_text().split())


def test_resnet50_in_32_gib_is_swapped_as_it_was_then():
    done = published("--graph")
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|$", done.stdout, re.MULTILINE)
    ours, theirs = ({row[0]: float(row[at]) for row in rows} for at in (1, 2))
    for same in ("MiB of kernels, twice", "swapout_threshold"):
        assert ours[same] == theirs[same]
    for alike in ("GiB out", "GiB in", "topological levels", "edges"):
        assert ours[alike] == pytest.approx(theirs[alike], rel=0.07)
    assert ours["swapin_groupby"] == ours["topological levels"]  # as theirs
    without, within = peaks(done.stdout)
    assert 130 < float(without) < 140 and float(within) < 32 * 0.9 + 0.2
    assert f"{without} GiB are simulated without swapping, and {within} with." in told()
    for row in done.stdout.splitlines()[2 : 2 + len(rows)]:
        assert row in DOCS.read_text()


def test_as_a_function_it_takes_less():
    done = published()
    without, within = peaks(done.stdout)
    (out,) = re.findall(r"([\d.]+) GiB out", done.stdout)
    (count,) = re.findall(r"Added (\d+) operations", done.stderr)
    (levels,) = re.findall(r"has (\d+) topological levels", done.stderr)
    threshold, ahead, groupby = re.findall(
        r"Configuration: swapout_threshold: (\d+), swapin_ahead: (\d+), swapin_groupby: (\d+)",
        done.stderr,
    )[0]
    assert (
        f"a step needs {without} GiB, and {within} with swapping: {out} GiB go out and come back, "
        f"in {count} operations, with the threshold {threshold}, ahead {ahead} and groupby "
        f"{groupby} of {levels} levels"
    ) in told()
