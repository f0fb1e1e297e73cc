# SPDX-License-Identifier: Apache-2.0
"""What users give, as it must be: each raises ValueError that names what is not so."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

import tensorflow as tf

_MOST = 1 << 30  # GiB: above any memory, and below what a float is exact for


def integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} is {value!r}, which is no integer; give one")
    return int(value)


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


def levels(name: str, value: Any) -> list[Any]:
    """What each of them says is seen when there is a graph."""
    if not isinstance(value, Collection) or isinstance(value, str | bytes):
        raise ValueError(f"{name} is {value!r}, which is no list; give one, as [1, '3:5', 7]")
    return list(value)


def device(name: str, value: Any, kind: str) -> str:
    """`kind`: CPU or GPU."""
    try:
        if tf.DeviceSpec.from_string(value).device_type == kind:
            return str(value)
    except (AttributeError, TypeError, ValueError):
        pass
    example = f"/{kind.lower()}:0"
    raise ValueError(f"{name} is {value!r}, which names no {kind}; give one, as {example!r}")
