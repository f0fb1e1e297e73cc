# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmsbuild.base.filenames import file_name, inner_path

steps = st.sampled_from(["a", "..", ".", "", ".git", ".GIT", "-x", "b c", "ä", "\n", "\\", ".x"])


@given(text=st.one_of(st.lists(steps, min_size=1, max_size=4).map("/".join), st.text(max_size=9)))
def test_what_is_taken_stays_below_its_folder(text: str) -> None:
    root = Path("/some/root")
    for check in (file_name, inner_path):
        try:
            assert check(text) == text
        except ValueError as error:
            assert str(error)
            continue
        place = root / text
        assert place != root and ".." not in place.parts and place.is_relative_to(root)
        assert "\x00" not in text and "\n" not in text
        if check is file_name:
            assert place.parent == root and not text.startswith("-")
        else:
            assert ".git" not in text.lower().split("/")


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a/b", "a\\b", "-rf", "a\nb", "a\x7f", "x" * 256, "ä" * 128]
)
def test_no_file_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        file_name(text)


@pytest.mark.parametrize(
    "text", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", ".git/hooks/x", "a/.Git/b"]
)
def test_no_inner_path(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        inner_path(text)


def test_longest() -> None:
    assert file_name("x" * 255) and inner_path("/".join(["y" * 255] * 4))
    assert file_name(".hidden") and inner_path(".gitignore") and inner_path("a/.github/b")
