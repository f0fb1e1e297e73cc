# SPDX-License-Identifier: Apache-2.0
"""Numbers as people write and read them: sizes in bytes, and ids."""

import operator
import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def integer(value):
    """An int from Python or NumPy, None for anything else, a bool included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def parse(name, size):
    """Bytes: an integer, or a string such as "8GiB". Errors call it `name`.

    Raises:
      TypeError: For what is neither.
      ValueError: For a string that is no size, or a negative number.
    """
    number = integer(size)
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", size, re.IGNORECASE)
        if match is None:
            raise ValueError(
                f"{name} must be bytes or a size such as '512MiB' or '8G', got {size!r}"
            )
        number = int(float(match.group(1)) * _UNITS[match.group(2).lower()])
    if number is None:
        raise TypeError(
            f"{name} must be a number of bytes or a string such as '8GiB', got {size!r}"
        )
    if number < 0:
        raise ValueError(f"{name} cannot be negative, got {number}")
    return number


def text(size):
    """A number of bytes, in the largest unit that fits."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{int(amount)} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError
