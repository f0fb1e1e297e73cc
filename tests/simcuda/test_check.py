# SPDX-License-Identifier: Apache-2.0
"""The command that tries the device on releases of torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simcuda import SimcudaError, check

METADATA = """Metadata-Version: 2.1
Requires-Dist: filelock
Requires-Dist: typing-extensions>=4.10.0
Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.2; platform_system == "Linux"
Requires-Dist: cuda-bindings<14,>=13.0.3; platform_system == "Linux"
Requires-Dist: nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"
Requires-Dist: triton==3.6.0; platform_system == "Linux"
Requires-Dist: optree>=0.13.0; extra == "optree"
"""

REPORT = """<testsuites><testsuite>
<testcase classname="tests.simcuda.test_memory" name="test_a" time="1"/>
<testcase classname="tests.simcuda.test_features" name="test_autocast[lazy-float16]" time="1"/>
<testcase classname="tests.simcuda.test_features" name="test_autocast[lazy-bfloat16]" time="0.5">
  <failure message="AssertionError: assert 1 == 2&#10;more">...</failure></testcase>
<testcase classname="tests.simcuda.test_graphs" name="test_b" time="1">
  <skipped message="no graphs here"/></testcase>
</testsuite></testsuites>
"""


def test_requirements_leave_out_what_the_device_stands_in_for() -> None:
    assert check.requirements(METADATA) == ["filelock", "typing-extensions>=4.10.0"]


@pytest.fixture
def result(tmp_path: Path) -> check.Result:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    rows, seconds = check.read_junit(report)
    return check.Result("2.14.1+cu130", "3.11", "0", seconds, rows)


def test_a_report_makes_a_row_for_each_module_and_feature(result: check.Result) -> None:
    assert list(result.rows) == ["memory", "autocast", "graphs"]
    assert (result.failed, result.seconds) == (1, 3.5)
    text = check.table([result])
    assert "| tests | 2.14.1+cu130 |" in text
    assert "| autocast | **1 of 2** |" in text and "| memory | 1 |" in text
    assert "- 2.14.1+cu130: test_autocast[lazy-bfloat16]: AssertionError: assert 1 == 2" in text
    assert "- 2.14.1+cu130: test_b: no graphs here" in text


def test_the_table_replaces_the_one_before(result: check.Result, tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"above\n{check.BEGIN}\nold\n{check.END}\nbelow\n")
    for _ in range(2):
        check.write_table(document, [result])
    text = document.read_text()
    assert text.startswith("above\n") and text.endswith(f"{check.END}\nbelow\n")
    assert "old" not in text and text.count("| autocast |") == 1
    document.write_text("no marks")
    with pytest.raises(SimcudaError, match="has no place for the table"):
        check.write_table(document, [result])
    assert document.read_text() == "no marks"


def test_plan_names_what_would_be_done(tmp_path: Path) -> None:
    (line,) = check.plan(["2.14.1"], tmp_path)
    assert line.startswith("torch 2.14.1: install the wheel into")
    assert not any(tmp_path.iterdir())


@pytest.mark.net
@pytest.mark.slow
def test_the_newest_release_is_asked_for() -> None:
    assert [int(part) for part in check.newest().split(".")] >= [2, 15, 0]


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.parametrize("version", os.environ.get("SIMCUDA_VERSIONS", "").split())
def test_the_suite_passes_on(version: str) -> None:
    """On each release that SIMCUDA_VERSIONS names; none, unless it is set."""
    result = check.check(version)
    assert not result.failed, check.table([result])
