# SPDX-License-Identifier: Apache-2.0
"""pytest plugin: `--shard=I/N` runs the I-th of N parts, the same split on every machine."""

from __future__ import annotations

import zlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="I/N", help="run only the I-th of N parts")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shard = config.getoption("--shard")
    if not shard:
        return
    index, count = map(int, shard.split("/"))
    # A hash, not a position: adding a test moves no other test to another shard.
    kept = [item for item in items if zlib.crc32(item.nodeid.encode()) % count == index - 1]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
