# SPDX-License-Identifier: Apache-2.0
"""Large Model Support for any stock TensorFlow, by rewriting the graph of a model."""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {"LMS": "lms", "LMSSessionRunHook": "v1", "LMSKerasCallback": "v1"}


def __getattr__(name: str) -> Any:
    """TensorFlow is imported when a class is asked for: planning knows none."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tensorflow as tf

    from tensorflow_large_model_support import versions

    versions.check(tf.__version__)
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
