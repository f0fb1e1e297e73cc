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


def run(core: Path, case: str, *options: str, speculates: bool) -> None:
    program = core_build.build("sanitize", core, tests=("baseline_ibm", "test_random"))
    done = core_build.run_case(
        program, case, *options, variables={"LMS_IBM_SPECULATE": str(int(speculates))}
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_ibm(core: Path, case: str) -> None:
    run(core, case, speculates=case.startswith("speculating"))


def test_speculating_ibm_keeps_the_bytes_of_random_programs(core: Path) -> None:
    run(core, "random_programs", "seeds=10", "steps=1000", "policy=0", speculates=True)
