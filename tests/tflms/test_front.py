# SPDX-License-Identifier: Apache-2.0
"""The official wheel with a GPU device of the newest release, on the simulated one: `lmsbuild test
tensorflow:2.21.0 --plugin --cuda 12.5 --tier full front`."""

import pytest
import tensorflow as tf
from test_dry import simulated

PROGRAM = """
import sys
import simcuda, numpy as np, tensorflow as tf
L = tf.keras.layers
what = sys.argv[1]
if what == "mixed":
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
shape = (64, 64, 3) if what in ("conv", "mixed") else (32, 64)
x = entry = L.Input(shape)
if what in ("conv", "mixed"):
    x = L.MaxPool2D()(L.ReLU()(L.BatchNormalization()(L.Conv2D(32, 3, padding="same")(x))))
elif what == "lstm":
    x = L.GRU(32, return_sequences=True)(L.LSTM(64, return_sequences=True)(x))
else:
    x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 16)(x, x))
model = tf.keras.Model(entry, L.Dense(10, dtype="float32")(L.Flatten()(x)))
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss)
model.fit(np.zeros((96, *shape), "f"), np.zeros(96), batch_size=32, verbose=0)
times = simcuda.device.times()
assert times["compute"] > 0 and times["out"] > 0 and not simcuda.device.races()
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["conv", "mixed", "lstm", "attention"])
def test_keras_trains(what, tmp_path):
    if not tf.__version__.startswith("2.21."):
        pytest.skip("of the newest release")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    simulated(program, what)
