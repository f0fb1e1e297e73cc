# SPDX-License-Identifier: Apache-2.0
"""Just enough of CMake to read the list of sources that upstream compiles."""

from __future__ import annotations

import re
from pathlib import Path

from lmsbuild.errors import ConfigError
from lmsbuild.frameworks import Library

_SET = r"\b(?:set\s*\(\s*{name}|list\s*\(\s*APPEND\s+{name})\s+([^()]*)\)"


def variable(text: str, name: str) -> list[str]:
    """The words that `set` and `list(APPEND)` give to a variable, in order."""
    bare = re.sub(r"#[^\n]*", "", text)
    words: list[str] = []
    for match in re.finditer(_SET.format(name=re.escape(name)), bare, re.IGNORECASE):
        words += [word.strip('"') for word in match[1].split()]
    return words


def check_sources(library: Library, tree: Path) -> None:
    """Raise ConfigError unless the patched CMake file lists exactly the library's sources."""
    file = tree / library.cmake.file
    if not file.is_file():
        raise ConfigError(
            f"{library.name} cannot be built because the tree has no {library.cmake.file}; apply "
            "the series first, or correct frameworks.toml"
        )
    difference = compare_sources(library, file.read_text(encoding="utf-8"))
    if difference:
        raise ConfigError(difference)


def sources(library: Library, text: str) -> set[str]:
    """The sources that `text`, of the library's CMake file, gives to its variable."""
    folder = Path(library.cmake.file).parent
    local = (
        re.escape("${CMAKE_CURRENT_LIST_DIR}/") + "|" + re.escape("${CMAKE_CURRENT_SOURCE_DIR}/")
    )
    return {
        (folder / re.sub(local, "", word)).as_posix()
        for word in variable(text, library.cmake.variable)
        if word.endswith((".cpp", ".cc", ".c"))
    }


def compare_sources(library: Library, text: str) -> str:
    """What is wrong unless the patched CMake file lists exactly the library's sources."""
    ours, theirs = set(library.sources), sources(library, text)
    if ours == theirs:
        return ""
    only_theirs = ", ".join(sorted(theirs - ours)) or "nothing"
    only_ours = ", ".join(sorted(ours - theirs)) or "nothing"
    return (
        f"{library.name} would not be upstream's because {library.cmake.variable} in "
        f"{library.cmake.file} alone has {only_theirs} and frameworks.toml alone has "
        f"{only_ours}; make the two lists equal"
    )
