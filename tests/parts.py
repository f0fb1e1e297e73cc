# SPDX-License-Identifier: Apache-2.0
"""The parts that a matrix, or a file's tests, are divided into.

A test is in one by its name alone: whatever else there is, it is in the same part, so that parts of
different commits divide what both have. For the oldest Python that a suite runs in, 3.7.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pytest


def is_in(part: tuple[int, int], test: str) -> bool:
    """Whether a test (its pytest node id) is in `part` ((3, 4): the third of four)."""
    return zlib.crc32(test.encode()) % part[1] == part[0] - 1


def not_in(shard: str | None, items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those of `items` that are not in the part that --shard names; none where it names none."""
    if shard is None:
        return set()
    try:
        index, count = map(int, shard.split("/"))
    except ValueError:
        index, count = 0, 0
    if not 1 <= index <= count:
        raise pytest.UsageError(f"--shard takes I/N with I from 1 to N, not {shard}")
    # The same from whatever folder pytest was started in.
    return {i for i in items if not is_in((index, count), i.nodeid.rpartition("tests/")[2])}
