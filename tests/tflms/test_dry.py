# SPDX-License-Identifier: Apache-2.0
"""The wheel with a GPU device, on the simulated one: true sizes, TensorFlow's own allocator, and no
numbers. `lmsbuild test tensorflow:2.14.1 --plugin --cuda 11.8 --tier full dry` has that wheel."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import tensorflow as tf
from tflms_dry import MODELS

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
MANY = ROOT / "examples" / "tensorflow" / "Keras_ManyModel.py"
KERAS_3 = getattr(tf.keras, "__version__", "2").startswith("3")
# By how much a peak is another one than simulated: of operators that Keras 3 makes of several ops,
# Grappler keeps copies in another order of dimensions, and a scaled softmax beside the plain one.
UNSEEN = {"deeplab": 0.2, "transformer": 0.25} if KERAS_3 else {}
PROGRAM = Path(__file__).with_name("tflms_dry.py")


def simulated(program, *arguments, options=(), fails=False, **more):
    """What a program says, on both streams."""
    if tf.sysconfig.get_build_info().get("cuda_version") not in ("11.8", "12.5.1"):
        pytest.skip("the wheel has no GPU device that can be simulated")
    dropped = ("SIMCUDA_", "TF_", "CUDA_VISIBLE_DEVICES")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    places = [str(ROOT / "tools"), str(ROOT / "lms" / "tflms")]
    variables.update(PYTHONPATH=os.pathsep.join(places), TF_CPP_MIN_LOG_LEVEL="3")
    variables.update(SIMCUDA_ORDER="report")
    if KERAS_3:  # an algorithm that is tried and finds no room is an error there, and no other
        variables.update(TF_CUDNN_USE_AUTOTUNE="0")
    variables.update(more)
    words = ["--dry", "--profile", "v100-32gb-pcie3", "--framework", "tensorflow", *options]
    done = subprocess.run(
        [sys.executable, "-m", "simcuda", *words, str(program), *arguments],
        env=variables, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert "RACE" not in done.stderr, done.stderr
    return done


@cache
def run(wanted="null", *options):
    return json.loads(simulated(PROGRAM, wanted, options=options).stdout.splitlines()[-1])


def synchronous(model="convolutions", run=run):
    numbers = {"swapout_threshold": 20, "swapin_groupby": 0, "swapin_ahead": 1, "sync_mode": 3}
    return run(json.dumps({"model": model, "options": numbers}))


@pytest.mark.slow
def test_what_is_swapped_is_out_of_the_gpus_memory():
    plain, swapped = run(), synchronous()
    assert plain["trained"] and swapped["trained"]
    assert swapped["peak"] < plain["peak"] / 2 and swapped["moved"] > plain["peak"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_peak_is_as_simulated(model):
    """Where computing waits for the copies; otherwise it runs ahead of them."""
    plain, swapped = run(json.dumps({"model": model})), synchronous(model)
    within = UNSEEN.get(model, 0.1)
    assert swapped["without"] == pytest.approx(plain["peak"], rel=within)
    assert swapped["predicted"] == pytest.approx(swapped["peak"], rel=within)


@pytest.mark.slow
def test_the_peak_is_the_same_each_time():
    """With one thread that launches ops, however busy the machine is."""
    first, again = synchronous("deeplab"), synchronous("deeplab", run.__wrapped__)
    assert first["peak"] == pytest.approx(again["peak"], rel=0.001)


@pytest.mark.slow
def test_grappler_swaps_less():
    """TensorFlow's own pass, on a device on which the model is out of memory with it, too."""
    wanted = json.dumps({"grappler": "SWAPPING_HEURISTICS"})
    assert not run(wanted, "--memory", "1G")["trained"]
    assert run(wanted)["peak"] == pytest.approx(run()["peak"], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, 0.4 if KERAS_3 else 0.5])
def test_it_trains_where_it_is_out_of_memory_otherwise(memory):
    """With the numbers as they are, or tuned for about half a GiB; all in less than the device
    keeps."""
    size = ("--memory", "1G")
    assert not run("null", *size)["trained"]
    numbers = {"swapout_threshold": 20, "swapin_groupby": 0, "swapin_ahead": 1}
    wanted = {"options": {} if memory else numbers, "memory": memory}
    swapped = run(json.dumps(wanted), *size)
    assert swapped["trained"] and swapped["peak"] < GIB < swapped["without"]


@pytest.mark.slow
def test_tensors_are_shown_when_memory_runs_out():
    """By TensorFlow, the largest first; with Keras 3 it is said why not. With one thread it is the
    same op that finds no room, however busy the machine is."""
    size = ("--model=MobileNet", "--image_size=224", "--batch_size=64", "--steps=1")
    one = {"options": ["--memory=1G"], "TF_NUM_INTEROP_THREADS": "1"}
    done = simulated(MANY, *size, "--show_tensors_on_oom", fails=True, **one)
    if KERAS_3:
        assert "lists tensors for sessions alone, and Keras 3 has none" in done.stderr
        return
    assert "OOM when allocating tensor with shape[64," in done.stderr
    listed = re.findall(r"^\s+([\d.]+)MiB from (\S+)", done.stderr, re.MULTILINE)
    assert len(listed) > 5 and any("conv" in name for _, name in listed)
