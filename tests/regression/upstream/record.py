# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that survives the death of its process: each test is written down when it starts
and when it ends, and tests already written down are not run again.

Loaded with `-p record`; the file is named by the variable RECORD. RECORD_PART (I/N) leaves one part
of the tests. RECORD_OPS are words, one of which is in the name of every operator with a test.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))
import parts

sys.path.pop()  # a test that asks for TensorFlow is not to find our folder of that name

_FILE = Path(os.environ["RECORD"])
_INDEX, _COUNT = map(int, os.environ.get("RECORD_PART", "1/1").split("/"))
_OPS = os.environ.get("RECORD_OPS", "").split()


def _write(**entry: str) -> None:
    with _FILE.open("a") as stream:
        stream.write(json.dumps(entry) + "\n")


def pytest_configure() -> None:
    """To make the tests of every operator takes longer than to run those of a few."""
    if not _OPS:
        return
    from torch.testing._internal.common_device_type import ops

    make: Any = ops.__init__

    def make_few(self: Any, operators: Iterable[Any], *others: Any, **named: Any) -> None:
        all_of_them = list(operators)
        few = [op for op in all_of_them if any(word in op.name for word in _OPS)]
        make(self, few or all_of_them[:1], *others, **named)  # it takes no empty list

    ops.__init__ = make_few


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lines = _FILE.read_text().splitlines() if _FILE.exists() else []
    done = {json.loads(line)["test"] for line in lines}
    kept = {
        item
        for item in items
        if item.nodeid not in done and parts.is_in((_INDEX, _COUNT), item.nodeid)
    }
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(test=nodeid, outcome="started")


def pytest_sessionfinish(exitstatus: int) -> None:
    _write(test="", outcome="finished", text=f"{exitstatus:d}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        text = "" if report.outcome == "passed" else str(report.longrepr)[-2000:]
        _write(test=report.nodeid, outcome=report.outcome, text=text)
