# SPDX-License-Identifier: Apache-2.0
"""Turns each safeguard off in turn: its test must fail.

Those of kind "torch" in a torch rebuilt from the tree LMS_SOURCE, those of kind "plugin" in a
torch_lms rebuilt from LMS_SDIST, beside the official torch. Only when nothing but this file is
asked for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import lms_device
import pytest
from lms_rebuild import PLUGIN, Rebuilder, Safeguard, safeguards, tree_of_package

pytestmark = pytest.mark.negative
KIND = "plugin" if PLUGIN else "torch"
SECONDS = 160
SAFEGUARDS = [s for s in safeguards.load(KIND) if s.since <= lms_device.torch_version()]


@pytest.fixture(scope="session")
def rebuilder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rebuilder]:
    if lms_device.device.kind != "sim":
        pytest.skip("races show on the simulated device")
    folder = tmp_path_factory.mktemp("negative")
    made = Rebuilder(tree_of_package(folder), folder)
    made.build_all()
    yield made
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def stock_python(pytestconfig: Any) -> str:
    return pytestconfig.getoption("--stock") or os.environ.get("LMS_STOCK_PYTHON", "")


@pytest.fixture(scope="session")
def passes(rebuilder: Rebuilder, stock_python: str) -> Callable[[str], tuple[int | None, str]]:
    """Whether a test passes with every safeguard, and what it said."""
    return cache(lambda test: rebuilder.run([test], stock_python, SECONDS))


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.id)
def test_without_it_its_test_fails(
    rebuilder: Rebuilder,
    passes: Callable[[str], tuple[int | None, str]],
    stock_python: str,
    safeguard: Safeguard,
) -> None:
    status, output = passes(safeguard.test)
    assert status == 0, f"{safeguard.test} fails with {safeguard.id}, too:\n{output}"
    text = rebuilder.without(safeguard)
    try:
        rebuilder.mutate(safeguard.file, text)
        status, output = rebuilder.run([safeguard.test], stock_python, SECONDS)
    finally:
        rebuilder.restore(safeguard.file)
    if status is not None and status < 0:
        status = 1  # a crash shows it, too
    # 1: it failed. 2 to 5: pytest did not run it.
    expected = None if safeguard.hangs else 1
    assert status == expected, f"{safeguard.test} does not fail without {safeguard.id}:\n{output}"
