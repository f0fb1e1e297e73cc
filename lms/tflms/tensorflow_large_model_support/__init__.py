# SPDX-License-Identifier: Apache-2.0
"""Large Model Support for any stock TensorFlow, by rewriting the graph of a model."""

from __future__ import annotations

from typing import Any

_NAMES = ("LMS",)


def __getattr__(name: str) -> Any:
    """TensorFlow is imported when the class is asked for: planning knows none."""
    if name in _NAMES:
        from tensorflow_large_model_support import lms

        return getattr(lms, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
