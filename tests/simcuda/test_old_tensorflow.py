# SPDX-License-Identifier: Apache-2.0
"""The official wheels of TensorFlow 2.2 and 2.1 for CUDA 10.1 on the dry device, with the Pythons
that they are for. Their environments are made from the registry, of 2 GB each:
`python -m pytest tests/simcuda/test_old_tensorflow.py`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pythons import interpreter

from simcuda import tfinfo

TOOLS = Path(tfinfo.__file__).resolve().parents[1]
PINS = ("protobuf<3.21", "numpy<1.20", "h5py<3")
WHEELS = {"2.2.0": "3.8", "2.1.0": "3.7"}  # and the Python

PRELUDE = """
import ctypes, json, sys
import simcuda
import numpy as np
import tensorflow as tf
L = tf.keras.layers
device = simcuda.device

def say(**facts):
    print(json.dumps(facts))

def fit(x, entry, shape, batch=32, steps=3):
    model = tf.keras.Model(entry, L.Dense(10, dtype="float32")(L.Flatten()(x)))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    given = np.zeros((batch * steps, *shape), "f"), np.zeros((batch * steps,))
    done = model.fit(*given, batch_size=batch, verbose=0)
    assert not device.races()
    return done.history["loss"]

def convolutions(depth, batch):
    x = entry = L.Input((64, 64, 3))
    for _ in range(depth):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(64, 3, padding="same")(x)))
    return fit(x, entry, (64, 64, 3), batch)
"""
Run = Callable[..., Any]

pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.fixture(scope="module", params=list(WHEELS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program on a dry V100; what it says last."""
    folder = tmp_path_factory.mktemp("old")
    python = folder / "env/bin/python"
    subprocess.run([interpreter(WHEELS[request.param]), "-m", "venv", folder / "env"], check=True)
    wheels = [f"tensorflow=={request.param}", *PINS, *tfinfo.HEADER_WHEELS]
    subprocess.run([python, "-m", "pip", "install", "-q", *wheels], check=True)

    def run(code: str, *options: str) -> Any:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SIMCUDA_", "TF_"))}
        environment = {**kept, "PYTHONPATH": str(TOOLS), "TF_CPP_MIN_LOG_LEVEL": "3"}
        program = folder / "program.py"
        program.write_text(PRELUDE + code)
        words = ["--dry", "--profile", "v100-32gb-pcie3", "--order", "report", *options]
        done = subprocess.run(
            [python, "-m", "simcuda", "--framework", "tensorflow", *words, program],
            env=environment, capture_output=True, text=True, timeout=1800,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "RACE" not in done.stderr, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_keras_trains(run: Run) -> None:
    """Convolutions with batch normalisation, and recurrent layers of cuDNN."""
    said = run(
        """
convolved = convolutions(4, 16)
x = entry = L.Input((32, 64))
x = L.GRU(32, return_sequences=True)(L.LSTM(64, return_sequences=True)(x))
recurrent = fit(x, entry, (32, 64))
say(convolved=convolved, recurrent=recurrent, calls=device.unmodelled_calls(), **device.times())
"""
    )
    assert said["convolved"] == said["recurrent"] == [0]
    assert said["calls"]["cudnnRNNForwardTraining"] >= 6
    assert said["compute"] > 0 and said["in"] > 0 and said["out"] > 0


def test_what_does_not_fit_is_out_of_memory(run: Run) -> None:
    code = """
try:
    say(loss=convolutions(8, 64), peak=device.peak)
except tf.errors.ResourceExhaustedError as error:
    say(error=str(error))
"""
    assert "OOM when allocating tensor" in run(code, "--memory", "768M")["error"]
    assert run(code)["loss"] == [0]


def test_two_devices_train(run: Run) -> None:
    said = run(
        """
strategy = tf.distribute.MirroredStrategy(
    cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())
with strategy.scope():
    model = tf.keras.Sequential([L.Dense(512, input_shape=(256,)), L.Dense(10)])
    model.compile("sgd", tf.keras.losses.MeanSquaredError())
loss = model.fit(np.zeros((64, 256), "f"), np.zeros((64, 10), "f"), batch_size=32, verbose=0)
say(devices=strategy.num_replicas_in_sync, loss=loss.history["loss"], races=len(device.races()))
""",
        "--devices", "2",
    )  # fmt: skip
    assert said == {"devices": 2, "loss": [0], "races": 0}


def test_small_values_come_back_until_a_kernel_may_have_written_them(run: Run) -> None:
    """Kernels are registered with a runtime of the wheel's own, and have their names yet."""
    said = run(
        """
with tf.device("/GPU:0"):
    variable = tf.Variable(41.0)
    before = float(variable.numpy())
    variable.assign_add(1.0)
    negated = tf.logical_not(tf.constant([True, False])).numpy().tolist()
say(before=before, after=float(variable.numpy()), negated=negated,
    range=[int(one) for one in tf.data.Dataset.range(3)])
"""
    )
    assert said == {"before": 41, "after": 0, "negated": [False, True], "range": [0, 1, 2]}


def test_descriptions_are_as_long_as_those_of_cuda_10(run: Run) -> None:
    """Programs of CUDA 10.1 have no room for what later versions have added."""
    said = run(
        """
runtime = device._runtime
text = (ctypes.c_ubyte * 1024)(*[0x5A] * 1024)
assert runtime.cudaGetDeviceProperties(text, 0) == 0
written = max(i for i, byte in enumerate(text) if byte != 0x5A) + 1
version = ctypes.c_int()
assert runtime.cudaRuntimeGetVersion(ctypes.byref(version)) == 0
say(written=written, version=version.value)
"""
    )
    assert said == {"written": 712, "version": 10010}
