# SPDX-License-Identifier: Apache-2.0
"""Sizes as people write them."""

from __future__ import annotations

import re

from .errors import SimcudaError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str | int) -> int:
    """``64M`` -> 67108864. Units K, M, G, T (powers of 1024), with or without ``iB`` or ``B``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", str(text), re.IGNORECASE)
    if not match:
        raise SimcudaError(f"{text!r} is not a size; write it like 64M or 1.5G")
    size = float(match[1]) * _UNITS[match[2].lower()]
    if size >= 1 << 63:
        raise SimcudaError(f"{text!r} is too large a size")
    return int(size)


def format_bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
