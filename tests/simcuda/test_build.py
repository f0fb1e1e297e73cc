# SPDX-License-Identifier: Apache-2.0
"""What a build is kept in, and what becomes of one that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcuda import SimcudaError, builder


def make(work: Path, say: builder.Progress) -> None:
    (work / builder.MANIFEST).write_text(json.dumps({"key": "k", "preload": []}))


def key() -> str:
    return "k"


def test_a_build_is_of_one_state_of_the_sources(tmp_path: Path) -> None:
    keys = ["before", "after"]
    with pytest.raises(SimcudaError, match=r"its sources were changed meanwhile; run the command"):
        builder._kept(tmp_path / "mine", lambda: keys.pop(0), make, None)
    assert [path.name for path in tmp_path.iterdir()] == [".mine.lock"]


def test_what_a_killed_build_has_left_goes_with_the_next(tmp_path: Path) -> None:
    left, other = tmp_path / ".mine-x1y2", tmp_path / ".another-x1y2"
    for folder in (left, other):
        (folder / "objects").mkdir(parents=True)
    assert builder._kept(tmp_path / "mine", key, make, None).path == tmp_path / "mine"
    assert not left.exists() and other.exists()
    assert not list(tmp_path.glob(".mine-*"))


@pytest.mark.parametrize("folder", ["/dev/null/cache", "/proc/cache"])
def test_a_folder_that_cannot_be_written_is_told(folder: str) -> None:
    with pytest.raises(SimcudaError, match=rf"built in {folder} because of .*; name another"):
        builder._kept(Path(folder, "mine"), key, make, None)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    def full(work: Path, say: builder.Progress) -> None:
        Path("/dev/full").write_text("x" * 100)

    with pytest.raises(SimcudaError, match="because of No space left on device"):
        builder._kept(tmp_path / "mine", key, full, None)
    assert [path.name for path in tmp_path.iterdir()] == [".mine.lock"]
