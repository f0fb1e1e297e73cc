# SPDX-License-Identifier: Apache-2.0
"""The tables of hazards in docs/ name tests and safeguards that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGES = ("docs/tensorflow.md", "docs/architecture.md")
HEADER = "| Hazard | Handling | Test | Safeguard |"


def rows(page: str) -> list[tuple[str, ...]]:
    """The cells of each hazard on a page."""
    found: list[tuple[str, ...]] = []
    inside = False
    for line in (PROJECT / page).read_text().splitlines():
        inside = line == HEADER or (inside and line.startswith("|"))
        if inside and line != HEADER and not line.startswith("|---"):
            found.append(tuple(cell.strip() for cell in line.strip("|").split(" | ")))
    return found


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def exists(test: str) -> bool:
    """Whether there is a test of the name FILE::NAME."""
    name, _, case = test.partition("::")
    case = re.escape(case.split("[")[0])
    form = rf"^TEST\({case}\)" if name.endswith(".cpp") else rf"^(async )?def {case}\("
    files = (PROJECT / "tests").rglob(Path(name).name)
    return any(re.search(form, file.read_text(), re.MULTILINE) for file in files)


def safeguards() -> set[str]:
    files = (PROJECT / "tests/safeguards").glob("*.toml")
    return {i for f in files for i in re.findall(r'^id = "(.*)"$', f.read_text(), re.MULTILINE)}


def test_hazards_are_found() -> None:
    assert all(len(rows(page)) > 10 for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_hazards_name_what_exists(page: str) -> None:
    known = safeguards()
    for hazard, *_, tests, guards in rows(page):
        assert tests == "-" or quoted(tests), hazard
        assert guards == "-" or quoted(guards), hazard
        assert [test for test in quoted(tests) if not exists(test)] == [], hazard
        assert set(quoted(guards)) <= known, hazard


def test_what_does_not_exist_is_found() -> None:
    assert exists("test_hazards.py::test_hazards_are_found")
    assert not exists("test_hazards.py::test_nothing")
    assert not exists("test_nowhere.py::test_hazards_are_found")
