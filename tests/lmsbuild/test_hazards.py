# SPDX-License-Identifier: Apache-2.0
"""The tables of hazards in docs/ name tests and safeguards that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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


def safeguards() -> dict[str, set[str]]:
    """The tests that must fail without each, without file and parameters. The plug-in may have one
    of the same name."""
    found: dict[str, set[str]] = {}
    for file in (PROJECT / "tests/safeguards").glob("*.toml"):
        for entry in tomllib.loads(file.read_text())["safeguard"]:
            found.setdefault(entry["id"], set()).add(function_of(entry["test"]))
    return found


def function_of(test: str) -> str:
    """Without its file and parameters."""
    return test.rpartition("::")[2].split("[")[0]


def test_hazards_are_found() -> None:
    assert all(len(rows(page)) > 10 for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_hazards_name_what_exists(page: str) -> None:
    known = safeguards()
    for hazard, *_, tests, guards in rows(page):
        assert tests == "-" or quoted(tests), hazard
        assert guards == "-" or quoted(guards), hazard
        assert [test for test in quoted(tests) if not exists(test)] == [], hazard
        assert set(quoted(guards)) <= known.keys(), hazard


@pytest.mark.parametrize("page", PAGES)
def test_the_first_safeguard_is_of_the_test_that_is_named(page: str) -> None:
    known = safeguards()
    for hazard, *_, tests, guards in rows(page):
        for guard in quoted(guards)[:1]:
            named = {function_of(test) for test in quoted(tests)}
            assert named & known[guard], f"{hazard}: {guard} is of {known[guard]}"


def test_what_does_not_exist_is_found() -> None:
    assert exists("test_hazards.py::test_hazards_are_found")
    assert not exists("test_hazards.py::test_nothing")
    assert not exists("test_nowhere.py::test_hazards_are_found")
