# SPDX-License-Identifier: Apache-2.0
"""Numbers as people write and read them: sizes in bytes, and ids."""

import operator
import re
from typing import Any, Optional

LARGEST = (1 << 63) - 1  # what the libraries can take

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def integer(value: Any) -> Optional[int]:
    """An int from Python or NumPy, None for anything else, a bool included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def parse(name: str, size: Any) -> int:
    """Bytes: of an integer, or of a string such as "8GiB", "512M" or "1.5g".

    Raises TypeError for what is neither, and ValueError for a string that is no size, a negative
    number or one beyond LARGEST; both call it `name`.
    """
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", size, re.IGNORECASE)
        if match is None:
            raise ValueError(
                f"{name} must be bytes or a size such as '512MiB' or '8G', got {size!r}"
            )
        amount = float(match.group(1)) * _UNITS[match.group(2).lower()]  # may be infinite
    else:
        number = integer(size)
        if number is None:
            raise TypeError(
                f"{name} must be a number of bytes or a string such as '8GiB', got {size!r}"
            )
        if number < 0:
            raise ValueError(f"{name} cannot be negative, got {number}")
        amount = number
    if amount > LARGEST:
        raise ValueError(f"{name} must be less than 8 EiB, got {size!r}")
    return int(amount)


def text(size: int) -> str:
    """Such as "1.5 GiB"; at most 10 characters below 10 PiB."""
    if size < 1024:
        return f"{size} B"
    amount, units = size / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        del units[0]
    return f"{amount:.1f} {units[0]}"
