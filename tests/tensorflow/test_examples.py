# SPDX-License-Identifier: Apache-2.0
"""The example ManyModel, reduced: what it trains, and the statistics that it writes."""

import csv
from pathlib import Path

import pytest
from conftest import version

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tensorflow"
OPTIONS = ["--model=mobilenet", "--image_size=64", "--batch_size=8", "--epochs=2", "--steps=3"]
POOL = 64  # MiB; without a limit it takes 86
FIRST = "import runpy, sys; sys.path.insert(0, %r); sys.argv[0] = 'ManyModel.py'; " % str(FOLDER)
MAIN = FIRST + "runpy.run_path(%r, run_name='__main__')" % str(FOLDER / "ManyModel.py")


@pytest.fixture(autouse=True)
def _newer():
    if version() < (2, 14):
        pytest.skip("the examples are for today's Pythons")


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_many_model(programs, tmp_path):
    stats = ["--lms_stats", "--lms_stats_average", "--lms_stats_warmup_steps=1"]
    wanted = [*OPTIONS, *stats, "--output_dir=%s" % tmp_path, "--lms"]
    said = programs.run(MAIN, pool=POOL, arguments=wanted)
    assert "channels last" in said and said.count("loss: ") == 2
    steps = rows(tmp_path / "mobilenet_lms_stats.csv")
    assert [(row["phase"], row["epoch"], row["step"]) for row in steps] == [
        ("t", str(epoch), str(step)) for epoch in range(2) for step in range(3)
    ]
    assert all(float(row["seconds"]) > 0 and int(row["num_allocs"]) > 0 for row in steps)
    assert sum(int(row["bytes_reclaimed"]) for row in steps) > 0
    assert all(int(row["peak_bytes_in_use"]) <= POOL << 20 for row in steps)
    (average,) = rows(tmp_path / "mobilenet_lms_stats_average.csv")
    assert average["steps"] == "5" and float(average["megapixels"]) == 64 * 64 / 1e6
    kept = [float(row["seconds"]) for row in steps[1:]]
    assert float(average["seconds"]) == pytest.approx(sum(kept) / 5, rel=0.2)
    assert float(average["images_per_second"]) == pytest.approx(8 / float(average["seconds"]))


CALLBACKS = """
import sys
sys.path.insert(0, %r)
import numpy as np
import tensorflow as tf
from lms_stats import LMSStatsLoggerRunHook, LMSStatsTrainingStepsAverage

tf.config.experimental.set_lms_enabled(True)
model = tf.keras.Sequential([tf.keras.layers.Dense(64), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((12, 64)), np.ones((12, 1)), 4, verbose=0,
          callbacks=[LMSStatsTrainingStepsAverage()])
v1 = tf.compat.v1
with tf.Graph().as_default():
    x = tf.random.uniform((64, 64))
    hooks = [LMSStatsLoggerRunHook(sys.argv[1])]
    with v1.train.MonitoredSession(hooks=hooks) as session:
        for _ in range(3):
            session.run(x)
""" % str(FOLDER)


def test_callbacks_for_averages_and_for_sessions(programs, tmp_path):
    """One prints the average of a step once; the other writes a row for each run of a session."""
    said = programs.run(CALLBACKS, pool=POOL, arguments=[str(tmp_path / "session.csv")])
    (line,) = [line for line in said.splitlines() if line.startswith("LMS statistics, average")]
    assert "'seconds': " in line and "'num_allocs': " in line and "'num_allocs': 0.0" not in line
    steps = rows(tmp_path / "session.csv")
    assert [(row["phase"], row["step"]) for row in steps] == [("t", str(n)) for n in range(3)]
    assert all(float(row["seconds"]) > 0 for row in steps)


@pytest.mark.slow
def test_many_model_without_large_model_support(programs):
    assert "OOM when allocating" in programs.run(MAIN, pool=POOL, arguments=OPTIONS, fails=True)
