# SPDX-License-Identifier: Apache-2.0
"""Tests of graph rewriting. What only plans runs anywhere; the rest beside a stock TensorFlow, in
an environment of `lmsbuild test tensorflow:2.21.0 --plugin` or any other that has one."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if importlib.util.find_spec("tensorflow_large_model_support") is None:
    sys.path.insert(0, str(ROOT / "lms" / "tflms"))
# Before the first import: the same sums in the same order, whatever the machine.
os.environ.update(TF_ENABLE_ONEDNN_OPTS="0", TF_CPP_MIN_LOG_LEVEL="2")

PLANNING = {
    *("test_plan.py", "test_choice.py", "test_simulator.py", "test_timing.py", "test_profiles.py"),
    *("test_tuner.py", "test_best.py", "test_parts.py"),
}


def pytest_addoption(parser):
    group = parser.getgroup("graph rewriting")
    group.addoption("--device", choices=("cpu", "cuda"), help="what TensorFlow runs on")
    group.addoption("--stock", metavar="PYTHON", help="a Python with the official wheel alone")
    group.addoption("--tier", choices=("default", "full"), default="full")
    group.addoption("--shard", metavar="I/N", help="run part I (1 to N) of N")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: only in the full tier")


def pytest_ignore_collect(collection_path, config):
    """The files that need a TensorFlow, where there is none."""
    needs = collection_path.parent == Path(__file__).parent and (
        collection_path.name.startswith("test_") and collection_path.name not in PLANNING
    )
    return True if needs and not has_tensorflow() else None


def has_tensorflow():
    """Whether there is one. Beside the other tests, tests/tensorflow looks like a package without
    an __init__.py, which has no file."""
    found = importlib.util.find_spec("tensorflow")
    return found is not None and found.origin is not None


def pytest_collection_modifyitems(config, items):
    if config.getoption("--tier", "full") == "default":
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
    shard = config.getoption("--shard", None)
    if shard:
        index, count = map(int, shard.split("/"))
        kept = [item for number, item in enumerate(items) if number % count == index - 1]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture
def said(monkeypatch):
    """What was logged."""
    import tensorflow as tf

    lines = []
    monkeypatch.setattr(
        tf.compat.v1.logging, "info", lambda text, *parts: lines.append(text % parts)
    )
    return lines
