# SPDX-License-Identifier: Apache-2.0
"""The GPU device of the wheel for CUDA on the simulated device. That is dry: no number means
anything; shapes, memory, copies and their order do. The wheel for the CPU has no such device."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from conftest import HERE, MIB, version_text

DRY = ("--dry", "--profile", "v100-32gb-pcie3")

PRELUDE = """
import ctypes, json, sys
import simcuda
import numpy as np
import tensorflow as tf
L = tf.keras.layers
device = simcuda.device

def say(**facts):
    print(json.dumps(facts))

def fit(depth, batch, steps=3):
    x = entry = L.Input((64, 64, 3))
    for _ in range(depth):
        x = L.Conv2D(64, 3, padding="same")(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    model = tf.keras.Model(entry, L.Dense(10)(L.Flatten()(x)))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(1e-3), loss)
    images, labels = np.zeros((batch * steps, 64, 64, 3), "f"), np.zeros((batch * steps,))
    return model.fit(images, labels, batch_size=batch, verbose=0).history["loss"]
"""

TRAINS = """
if sys.argv[1] == "lms":
    tf.config.experimental.set_lms_enabled(True)
try:
    loss = fit(depth=8, batch=64)
except tf.errors.ResourceExhaustedError as error:
    say(error=str(error))
else:
    say(loss=loss, races=len(device.races()), **device.counters(), **device.times())
"""


@pytest.fixture
def dry(pytestconfig, tmp_path):
    """Runs a program on the dry device: what it says last, or its standard error if it `fails`. It
    may have `races`, or none. `host` is what Large Model Support may have of the profile's machine,
    where by itself it takes a share of the machine that the test runs on."""
    if "+cpu" in version_text():
        pytest.skip("the wheel has no GPU device")
    pythons = {"lms": sys.executable, "stock": pytestconfig.getoption("--stock")}

    def run(code, *options, wheel="lms", arguments=(), fails=False, races=False, host=None):
        dropped = ("SIMCUDA_", "TF_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD")
        env = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        env.update(
            PYTHONPATH=str(HERE.parents[1] / "tools"), TF_CPP_MIN_LOG_LEVEL="3",
            SIMCUDA_ORDER="report",
        )  # fmt: skip
        if host:
            env["TF_GPU_HOST_MEM_LIMIT_IN_MB"] = str(host // MIB)
        program = tmp_path / "program.py"
        program.write_text(PRELUDE + textwrap.dedent(code))
        done = subprocess.run(
            [pythons[wheel], "-m", "simcuda", *options, str(program), *arguments],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
            timeout=900,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        assert races or "RACE" not in done.stderr, done.stderr
        return done.stderr if fails else json.loads(done.stdout.splitlines()[-1])

    return run


def test_a_product_takes_its_arithmetic(dry):
    """It runs on the GPU, in the profile's memory, at the profile's rate."""
    said = dry(
        """
        [gpu] = tf.config.list_physical_devices("GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
        with tf.device("/GPU:0"):
            a = tf.zeros((2048, 1024))
            begin = device.times()["compute"]
            b = tf.matmul(a, a, transpose_b=True)
        value = float(b[0, 0])
        say(where=b.device, shape=list(b.shape), value=value, capacity=device.capacity,
            used=device.used, took=device.times()["compute"] - begin)
        """,
        *DRY, wheel="stock",
    )  # fmt: skip
    assert said["where"].endswith("GPU:0") and said["shape"] == [2048, 2048]
    assert said["value"] == 0 and said["capacity"] == (32 << 30) - (512 << 20)
    assert 24 * MIB <= said["used"] <= 128 * MIB
    exact = 2 * 2048 * 2048 * 1024 / 14e12 * 1e9
    assert exact <= said["took"] <= exact + 20_000  # and the launches of what takes one element


def test_small_values_come_back_until_a_kernel_may_have_written_them(dry):
    said = dry(
        """
        with tf.device("/GPU:0"):
            made = tf.constant(41, tf.int64)
            moved = tf.identity(made)
            variable = tf.Variable(41.0)
            before = float(variable)
            variable.assign_add(1.0)
        say(made=int(made), moved=int(moved), before=before, after=float(variable),
            range=[int(i) for i in tf.data.Dataset.range(3)], rows=len(tf.where(tf.ones(9) > 0)))
        """,
        *DRY, wheel="stock",
    )  # fmt: skip
    assert said == {
        "made": 41, "moved": 41, "before": 41, "after": 0, "range": [0, 1, 2], "rows": 0
    }  # fmt: skip


def test_shapes_are_right_that_kernels_make_of_shapes(dry):
    """Of a batch that is not known before it comes: what `tensordot`, and so a Dense layer on three
    dimensions, takes from one and multiplies."""
    said = dry(
        """
        @tf.function(input_signature=[tf.TensorSpec([None, None, 8])])
        def product(x):
            return tf.tensordot(x, tf.ones((8, 2)), [[2], [0]])
        shape = tf.shape(tf.ones((2, 6, 8)))
        rows = tf.reshape(tf.range(12), (4, 3))
        say(product=product(tf.ones((2, 6, 8))).shape.as_list(), places=shape.device[-5:],
            gathered=tf.gather(shape, [2, 0]).numpy().tolist(),
            wide=tf.gather(shape, tf.constant([1], tf.int64)).numpy().tolist(),
            rows=tf.gather(rows, [3, 1]).numpy().tolist(),
            multiplied=int(tf.reduce_prod(shape)),
            # Where longer values lay before: what a kernel writes leaves none of them.
            cast=tf.cast(shape, tf.int64).numpy().tolist())
        """,
        *DRY, wheel="stock",
    )  # fmt: skip
    assert said.pop("cast") == [0, 0, 0]
    assert said == {
        "product": [2, 6, 2], "places": "GPU:0", "gathered": [8, 2], "wide": [6],
        "rows": [[9, 10, 11], [3, 4, 5]], "multiplied": 96,
    }  # fmt: skip


def test_xla_makes_no_graph_of_many_kernels(dry):
    """Which a dry device refuses: Keras' Adafactor is one function of more kernels than a graph
    needs to be worth it."""
    said = dry(
        """
        @tf.function(jit_compile=True)
        def many(x):
            for _ in range(8):
                x = tf.nn.softmax(x @ x) + tf.reduce_mean(x)
            return x
        say(shape=many(tf.ones((8, 8))).shape.as_list(), where=many(tf.ones((8, 8))).device[-5:])
        """,
        *DRY, wheel="stock",
    )  # fmt: skip
    assert said == {"shape": [8, 8], "where": "GPU:0"}


def test_what_does_not_fit_is_out_of_memory_unless_it_moves(dry):
    """Convolutions, batch normalisation and Adam in three quarters of a GiB."""
    options = [*DRY, "--memory", "768M"]
    official = dry(TRAINS, *options, wheel="stock", arguments=["stock"])
    assert "OOM when allocating" in official["error"]
    roomy = dry(TRAINS, *DRY, wheel="stock", arguments=["stock"])
    ours = dry(TRAINS, *options, arguments=["lms"])
    assert ours["loss"] == roomy["loss"] == [0]
    assert ours["races"] == roomy["races"] == 0
    assert ours["ops"] == roomy["ops"] and ours["compute"] == roomy["compute"]
    assert roomy["d2h_pinned_bytes"] == 0 and ours["d2h_pinned_bytes"] > 1000 * MIB
    assert ours["h2d_bytes"] > roomy["h2d_bytes"] and ours["now"] > roomy["now"]


PUBLISHED = """
if sys.argv[1] == "lms":
    tf.config.experimental.set_lms_enabled(True)
side = 7500
model = tf.keras.applications.ResNet50(weights=None, input_shape=(side, side, 3), classes=10)
model.compile(tf.keras.optimizers.legacy.SGD(0.1), "categorical_crossentropy")
try:
    model.fit(np.zeros((1, side, side, 3), "f"), np.zeros((1, 10), "f"), verbose=0)
except tf.errors.ResourceExhaustedError as error:
    say(error=str(error))
else:
    say(peak=device.peak, **device.counters())
"""


def test_the_published_case(dry):
    """Keras' ResNet-50 on an image of 7500 x 7500, on 32 GB."""
    official = dry(PUBLISHED, *DRY, wheel="stock", arguments=["stock"])
    assert "OOM when allocating" in official["error"]
    ours = dry(PUBLISHED, *DRY, arguments=["lms"], host=400 << 30)
    assert ours["peak"] < 32 << 30
    assert ours["d2h_pinned_bytes"] > 60 << 30 and ours["h2d_bytes"] > 60 << 30


CONTENTS = """
tf.config.experimental.set_lms_enabled(True)
numbers = np.random.default_rng(0)
given = [numbers.standard_normal((1024, 1024)).astype("f") for _ in range(100)]
# Of a tensor TensorFlow keeps what the host has read once.
read = lambda one: tf.identity(one).numpy()
same = lambda a, b: a.tobytes() == b.tobytes()
with tf.device("/GPU:0"):
    kept = [tf.constant(one) for one in given]
    made = [tf.linalg.matmul(one, one) for one in kept]
    first = [one.numpy() for one in made]
    for _ in range(2):  # in both directions, so that each has made way once more
        kept.reverse(), made.reverse(), given.reverse(), first.reverse()
        again = [(same(read(a), b), same(read(c), d))
                 for a, b, c, d in zip(kept, given, made, first)]
say(right=sum(map(sum, again)), fills=len({one.tobytes() for one in first}),
    words=min(len(np.unique(one.view("u4"))) for one in first), races=len(device.races()),
    **device.counters())
"""


def test_every_byte_comes_back(dry):
    """What was copied there, and what a library has made: 800 MiB, in 543 MiB."""
    said = dry(CONTENTS, *DRY, "--contents", "all", "--memory", "768M")
    assert said["right"] == 200 and said["fills"] == 100 and said["words"] > 1 << 19
    assert said["races"] == 0
    assert said["d2h_pinned_bytes"] >= 400 * MIB and said["h2d_pinned_bytes"] > 500 * MIB
    without = dry(CONTENTS, *DRY, "--memory", "768M")
    assert without["right"] == 100 and without["fills"] == 1  # zeros are like zeros


def test_layers_of_cudnn(dry):
    """Recurrent layers, and XLA's optimiser for an embedding. What takes no more than a launch is
    named, what cannot be told is refused."""
    said = dry(
        """
        model = tf.keras.Sequential([
            L.Input((7,), dtype="int32"), L.Embedding(50, 8), L.LSTM(8, return_sequences=True),
            L.Bidirectional(L.GRU(8)), L.Dense(2)])
        model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        loss = model.fit(np.zeros((8, 7)), np.zeros((8,)), verbose=0).history["loss"]
        try:
            refused = str(tf.linalg.cholesky(tf.eye(4)))
        except tf.errors.InternalError as error:
            refused = str(error)
        say(loss=loss, calls=device.unmodelled_calls(), refused=refused)
        """,
        *DRY, wheel="stock",
    )  # fmt: skip
    assert said["loss"] == [0] and said["calls"]["cudnnRNNForwardTraining"] == 3
    assert set(said["calls"]) == {"cudnnRNN" + name for name in (
        "ForwardTraining", "BackwardData", "BackwardWeights")}  # fmt: skip
    assert "cuSolverDN call failed" in said["refused"]


ORDER = """
cuda = ctypes.CDLL("libcuda.so.1")
one, two, event = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
memory, host = ctypes.c_uint64(), ctypes.c_void_p()
size = ctypes.c_size_t(1 << 20)
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), size) == 0
assert cuda.cuMemHostAlloc(ctypes.byref(host), size, 0) == 0
for stream in one, two:
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
assert cuda.cuEventCreate(ctypes.byref(event), 2) == 0
assert cuda.cuMemcpyHtoDAsync_v2(memory, host, size, one) == 0
if sys.argv[1] == "waits":
    assert cuda.cuEventRecord(event, one) == 0
    assert cuda.cuStreamWaitEvent(two, event, 0) == 0
handle = ctypes.c_void_p()
blas = ctypes.CDLL("libcublas.so.11")
assert blas.cublasCreate_v2(ctypes.byref(handle)) == 0
assert blas.cublasSetStream_v2(handle, two) == 0
n, zero = 64, ctypes.c_float(0)
blas.cublasSgemm_v2(handle, 0, 0, n, n, n, ctypes.byref(zero), memory, n, memory, n,
                    ctypes.byref(zero), ctypes.c_void_p(memory.value + (1 << 19)), n)
say(races=[(race.first.name, race.second.name, race.bytes) for race in device.races()])
"""


@pytest.mark.parametrize("waits", [True, False])
def test_a_product_that_does_not_wait_for_a_copy_is_a_race(dry, waits):
    """By the interfaces that TensorFlow uses. One that a test does not expect fails it."""
    if not waits:
        with pytest.raises(AssertionError, match=r"RACE copy h2d .* and then cublasSgemm"):
            dry(ORDER, *DRY, arguments=["does not"])
    said = dry(ORDER, *DRY, arguments=["waits" if waits else "does not"], races=not waits)
    names = {(first, second) for first, second, _ in said["races"]}
    assert names == (set() if waits else {("copy h2d", "cublasSgemm")})


def test_a_device_that_computes_is_refused(dry):
    assert "give --dry and a profile" in dry("", "--framework", "tensorflow", fails=True)
