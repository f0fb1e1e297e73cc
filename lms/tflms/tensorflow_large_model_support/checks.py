# SPDX-License-Identifier: Apache-2.0
"""What users give, as it must be: each raises ValueError that names what is not so."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

import numpy as np
import tensorflow as tf

_MOST = 1 << 30  # GiB: above any memory, and below what a float is exact for


def integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} is {value!r}, which is no integer; give one")
    return int(value)


def tuned(name: str, value: Any) -> int:
    """-1 leaves it to the tuner."""
    if integer(name, value) < -1:
        raise ValueError(f"{name} is {value}, which is too small; give 0 or more, or -1 to tune it")
    return int(value)


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, Integral | np.bool_) or value not in (0, 1):
        raise ValueError(f"{name} is {value!r}, which is neither True nor False")
    return bool(value)


def size(name: str, value: Any) -> float:
    """Of GiB, none included."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not 0 <= value < _MOST:
        raise ValueError(f"{name} is {value!r}, which is no number of GiB; give one")
    return float(value)


def names(what: str, value: Any) -> set[str]:
    """As a set; a text alone would be one of letters."""
    given = isinstance(value, Collection) and not isinstance(value, str | bytes)
    if not given or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{what} is {value!r}, which is no set of names")
    return set(value)


def device(name: str, value: Any, kind: str) -> str:
    """`kind`: CPU or GPU."""
    try:
        if tf.DeviceSpec.from_string(value).device_type == kind:
            return str(value)
    except (AttributeError, TypeError, ValueError):
        pass
    example = f"/{kind.lower()}:0"
    raise ValueError(f"{name} is {value!r}, which names no {kind}; give one, as {example!r}")
