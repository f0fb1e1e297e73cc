# SPDX-License-Identifier: Apache-2.0
"""The parts that a file's tests are divided into."""

from __future__ import annotations

import zlib


def is_in(part: tuple[int, int], test: str) -> bool:
    """Whether a test (its pytest node id) is in `part` ((3, 4): the third of four). Chosen by its
    name alone: whatever else there is, a test is in the same part."""
    return zlib.crc32(test.encode()) % part[1] == part[0] - 1
