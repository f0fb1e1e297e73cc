# SPDX-License-Identifier: Apache-2.0
"""Beside which TensorFlow it is imported."""

from __future__ import annotations

import importlib
import os

FORCE = "TFLMS_FORCE"


def check(running: str) -> None:
    """Raises ImportError beside a TensorFlow that it was not tested with. A tree of sources, which
    has no list of those, is for whoever changes it."""
    try:
        tested = importlib.import_module("tensorflow_large_model_support._tested").TESTED
    except ModuleNotFoundError:
        return
    minor = _minor(running)
    if os.environ.get(FORCE) == "1" or minor in map(_minor, tested):
        return
    nearest = min(tested, key=lambda version: abs(_minor(version)[1] - minor[1]))
    raise ImportError(
        f"tensorflow_large_model_support was not tested with TensorFlow {running}; the nearest "
        f"tested version is {nearest}; set {FORCE}=1 to try all the same"
    )


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
