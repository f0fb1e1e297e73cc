# SPDX-License-Identifier: Apache-2.0
"""The examples, reduced, as programs of their own; and Keras in graph mode."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "tensorflow"
TF2_14 = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16)


def run(program, *options, fails=False, **more):
    """What it says, on both streams."""
    places = [str(EXAMPLES), str(ROOT / "lms" / "tflms"), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), **more}
    done = subprocess.run(
        [sys.executable, str(program), *options],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout
    return done.stdout


def swap_outs(said):
    return int(re.search(r"\((\d+) swap-out operations", said)[1])


@pytest.mark.parametrize(
    "name",
    [
        "mnist_session",
        "mnist_keras",
        pytest.param(
            "mnist_estimator",
            marks=pytest.mark.skipif(not TF2_14, reason="this TensorFlow has no Estimator"),
        ),
    ],
)
def test_mnist(name):
    numbers = ("--swapout_threshold=3", "--swapin_groupby=0", "--swapin_ahead=1")
    said = run(EXAMPLES / f"{name}.py", "--steps=4", "--batch_size=8", *numbers)
    assert swap_outs(said) > 3
    loss = float(re.findall(r"loss:? (?:= )?([\d.]+)", said)[-1])
    assert 0 < loss < 20


SEGMENTATION = {
    "unet3d": ("--image_size=8", "--depth=2", "--width=4"),
    "deeplab": ("--image_size=32", "--backbone=mobilenet"),
}


@pytest.mark.parametrize("name", SEGMENTATION)
def test_segmentation(name):
    small = (*SEGMENTATION[name], "--steps=2", "--batch_size=2")
    numbers = ("--swapout_threshold=10", "--swapin_groupby=0", "--swapin_ahead=2")
    said = run(EXAMPLES / f"{name}.py", *small, *numbers)
    assert swap_outs(said) > 10
    assert 0 < float(re.findall(r"loss: ([\d.]+)", said)[-1]) < 20


@pytest.mark.parametrize("name", SEGMENTATION)
def test_segmentation_of_sizes_that_do_not_halve(name):
    said = run(EXAMPLES / f"{name}.py", "--image_size=30", fails=True)
    assert "error: --image_size is no multiple of 16" in said and "Traceback" not in said


MANY = EXAMPLES / "Keras_ManyModel.py"
SMALL = ("--model=MobileNet", "--image_size=32", "--batch_size=2", "--steps=2")
NUMBERS = ("--swapout_threshold=20", "--swapin_groupby=0", "--swapin_ahead=3")


def test_many_models():
    """The device has no channels first."""
    said = run(MANY, *SMALL, "--lms", *NUMBERS, TF_CPP_MIN_LOG_LEVEL="2")
    assert swap_outs(said) > 3
    assert "Channels first needs a GPU, of which TensorFlow sees none: channels last." in said
    assert float(re.findall(r"loss: ([\d.]+)", said)[-1]) > 0


def test_tensors_are_shown_by_sessions_alone():
    """That they are when memory runs out: test_dry.py."""
    said = run(MANY, *SMALL, "--show_tensors_on_oom", fails=not TF2_14)
    if TF2_14:
        assert "loss: " in said
    else:
        assert "TensorFlow lists tensors for sessions alone, and Keras 3 has none; `pip" in said
        assert "Traceback" not in said


def test_many_models_says_what_is_missing():
    said = run(MANY, *SMALL, fails=True, OMPI_COMM_WORLD_RANK="0")
    assert "MPI started it and Horovod is not installed; `pip install horovod`" in said
    assert "ManyModel cannot run because this TensorFlow has no Large Model Support" in run(
        EXAMPLES / "ManyModel.py", fails=True
    )


def test_the_profiler_is_started_and_stopped(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from many_models import CudaProfileCallback

    called = []

    class Runtime:
        cudaProfilerStart = staticmethod(lambda: called.append(("start", *now)))  # noqa: N815
        cudaProfilerStop = staticmethod(lambda: called.append(("stop", *now)))  # noqa: N815

    callback = CudaProfileCallback(2, 1, 3, Runtime)
    for now in [(epoch, batch) for epoch in range(3) for batch in range(4)]:
        if now[1] == 0:
            callback.on_epoch_begin(now[0])
        callback.on_train_batch_begin(now[1])
    assert called == [("start", 1, 1), ("stop", 1, 3)]


GRAPH_MODE = """
import numpy as np, tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
v1.logging.set_verbosity("INFO")
from tensorflow_large_model_support import LMS

def train(*callbacks):
    v1.keras.backend.clear_session()
    L = v1.keras.layers
    x = entry = L.Input((8, 8, 3))
    for _ in range(4):
        x = L.ReLU()(L.Conv2D(4, 3, padding="same")(x))
    model = v1.keras.Model(entry, L.Dense(4)(L.Flatten()(x)))
    model.compile("adam", "mse")
    draw = np.random.RandomState(0)
    model.set_weights([draw.rand(*each.shape) * 0.1 for each in model.get_weights()])
    begin = tf.constant([1.0])
    twins = [v1.Variable(begin), v1.Variable(begin)]
    session = v1.keras.backend.get_session()
    session.run([each.initializer for each in twins])
    twins[1].load([5.0], session)
    given = draw.rand(12, 8, 8, 3)
    data = given, np.ones((12, 4))
    options = {"epochs": 2, "verbose": 0, "callbacks": list(callbacks)}
    if ITERATED:
        read = tf.data.Dataset.from_tensor_slices(data).batch(4).repeat()
        options.update(steps_per_epoch=3, validation_data=read, validation_steps=1)
        said = model.fit(read, **options).history
    else:
        said = model.fit(*data, 4, shuffle=False, validation_data=data, **options).history
    assert [float(each[0]) for each in v1.keras.backend.get_session().run(twins)] == [1.0, 5.0]
    weights = [each.tolist() for each in model.get_weights()]
    return (said["loss"], weights), said["val_loss"]

(plain, seen), (ours, ours_seen) = train(), train(LMS(3, 0, 1))
assert plain == ours
np.testing.assert_allclose(seen, ours_seen, 1e-6)  # no two runs add it up in one order
"""


@pytest.mark.skipif(not TF2_14, reason="Keras 3 has no graph mode")
@pytest.mark.parametrize("iterated", [False, True])
def test_keras_in_graph_mode(tmp_path, iterated):
    """The session that set the weights has run the graph; what trains is a new one."""
    (tmp_path / "program.py").write_text(f"ITERATED = {iterated}\n{GRAPH_MODE}")
    assert swap_outs(run(tmp_path / "program.py")) > 3
