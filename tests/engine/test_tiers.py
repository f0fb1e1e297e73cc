# SPDX-License-Identifier: Apache-2.0
"""Which modes of the simulated device the default tier leaves out."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tiers


class Item:
    """Of pytest, as far as it is asked."""

    def __init__(self, function: str, **parameters: Any) -> None:
        case = "-".join(map(str, parameters.values()))
        self.name = f"{function}[{case}]" if parameters else function
        self.nodeid = f"tests/regression/test_it.py::{self.name}"
        if parameters:
            self.callspec = SimpleNamespace(params=parameters)


def kept(items: list[Item]) -> list[str]:
    return [item.name for item in items if item not in tiers.in_other_modes(items)]


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text(
        'test = "test_it.py::test_one[1-lazy]"\nwhy = "x"\ntest = "test_it.py::test_all"\n'
    )
    monkeypatch.setattr(tiers, "SAFEGUARDS", tmp_path)


def test_one_mode_is_left_of_each_case() -> None:
    items = [Item("test_x", size=size, mode=mode) for size in (1, 2) for mode in tiers.MODES]
    assert kept(items) == ["test_x[1-late-write]", "test_x[2-late-write]"]


def test_what_safeguards_name_is_left() -> None:
    items = [Item("test_one", size=size, mode=mode) for size in (1, 2) for mode in tiers.MODES]
    assert kept(items) == ["test_one[1-lazy]", "test_one[1-late-write]", "test_one[2-late-write]"]
    items = [Item("test_all", first=mode) for mode in tiers.MODES]
    assert kept(items) == [item.name for item in items]


def test_what_runs_in_other_modes_alone_is_left_in_one() -> None:
    items = [Item("test_x", mode=mode) for mode in ("lazy", "immediate", "chaos")]
    assert kept(items) == ["test_x[lazy]", "test_x[chaos]"]


def test_tests_without_a_mode_are_left() -> None:
    items = [Item("test_x"), Item("test_y", size=1), Item("test_z", mode="chaos")]
    assert len(kept(items)) == 3


def test_the_safeguards_of_this_project_name_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "SAFEGUARDS", Path(tiers.__file__).parent / "safeguards")
    assert len(tiers.needed()) > 300
    assert "test_a_page_out_waits_for_the_last_use[immediate]" in tiers.needed()
