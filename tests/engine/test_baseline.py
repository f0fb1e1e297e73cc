# SPDX-License-Identifier: Apache-2.0
"""What the benchmark compiles in place of victims.cpp, to be compared with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import core_build
import pytest

SOURCE = core_build.CORE.parent / "baseline" / "ibm.cpp"
CASES = re.findall(
    r"^TEST\((\w+)\)", (core_build.HERE / "baseline_ibm.cpp").read_text(), re.MULTILINE
)


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("baseline") / "core"
    shutil.copytree(core_build.CORE, made)
    shutil.copy(SOURCE, made / "victims.cpp")
    return made


@pytest.mark.parametrize("case", CASES)
def test_ibm(core: Path, case: str) -> None:
    done = core_build.run_case(core_build.build("sanitize", core, tests=("baseline_ibm",)), case)
    assert done.returncode == 0, done.stdout + done.stderr
