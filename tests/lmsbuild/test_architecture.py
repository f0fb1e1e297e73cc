# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md names what is there, and its map leaves no folder out."""

from __future__ import annotations

import re
from pathlib import Path

from lmsbuild_world import REPOSITORY, plain_git

TEXT = (REPOSITORY / "docs/architecture.md").read_text()
MAP = TEXT.partition("```\n")[2].partition("```")[0]
NAMES = re.compile(r"( *)([\w./-]+(?:, [\w./]+/)*)(?: |$)")
DEEPEST = 4  # spaces before a name; before what goes on with the line above are more


def mapped(text: str) -> dict[str, bool]:
    """The paths of a map, each below that of the line that it is indented under; and whether some
    are below it."""
    found: dict[str, bool] = {}
    within: list[tuple[int, str]] = []
    for line in text.splitlines():
        names = NAMES.match(line)
        if names is None or len(names[1]) > DEEPEST:
            continue
        within = [(depth, path) for depth, path in within if depth < len(names[1])]
        above = within[-1][1] if within else ""
        found.update({above: True} if above else {})
        for name in names[2].split(", "):
            path = above + name.rstrip("/")
            found[path] = False
            within.append((len(names[1]), f"{path}/"))
    return {path.rstrip("/"): inner for path, inner in found.items()}


def tracked() -> list[Path]:
    return [Path(name) for name in plain_git(REPOSITORY, "ls-files", "-z").split("\0") if name]


def left_out(folder: Path, paths: dict[str, bool]) -> bool:
    """Whether no line is of the folder: of itself, what is within it, or as a whole around it."""
    around = [str(parent) for parent in folder.parents]
    return not (
        str(folder) in paths
        or any(path.startswith(f"{folder}/") for path in paths)
        or any(not paths[parent] for parent in around if parent in paths)
    )


def test_the_map_names_what_is_there() -> None:
    paths = mapped(MAP)
    assert len(paths) > 40
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_the_map_has_every_folder() -> None:
    paths = mapped(MAP)
    folders = {parent for file in tracked() for parent in file.parents} - {Path()}
    assert [str(folder) for folder in sorted(folders) if left_out(folder, paths)] == []


def test_the_text_names_files_that_are_there() -> None:
    names = {file.name for file in tracked()} | {file.stem for file in tracked()}
    quoted = re.findall(r"`((?:[\w-]+/)*[\w-]+(?:\.(?:py|md|h|cpp|toml))?)`", TEXT)
    files = [name for name in quoted if "." in name or name.startswith(("core/", "csrc/"))]
    assert len(files) > 40
    assert [name for name in files if name.rpartition("/")[2] not in names] == []


def test_the_page_of_tensorflow_has_every_file() -> None:
    table = (REPOSITORY / "docs/tensorflow.md").read_text().partition("|---|---|\n")[2]
    cells = re.findall(r"^\| (`[^|]+) \|", table.partition("\n\n")[0], re.MULTILINE)
    files = {file.stem for file in tracked() if file.parts[:3] == ("lms", "tensorflow", "csrc")}
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == files - {"BUILD"}


def test_how_a_map_is_read() -> None:
    text = "a/\n  b/   one\n  c/, d/ two\n           goes on\n    e.py three\nf/g/  four\n"
    paths = mapped(text)
    assert paths == {
        "a": True, "a/b": False, "a/c": False, "a/d": True, "a/d/e.py": False, "f/g": False,
    }  # fmt: skip
    assert [left_out(Path(one), paths) for one in ("a", "a/b/x/y", "f", "a/x", "h")] == [
        False, False, False, True, True,
    ]  # fmt: skip
