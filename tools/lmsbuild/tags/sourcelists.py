# SPDX-License-Identifier: Apache-2.0
"""Just enough of CMake, and of Bazel, to read the list of sources that upstream compiles."""

from __future__ import annotations

import re
from pathlib import Path

from lmsbuild.base.errors import ConfigError
from lmsbuild.tags.frameworks import Library

_SET = r"\b(?:set\s*\(\s*{name}|list\s*\(\s*APPEND\s+{name})\s+([^()]*)\)"


def variable(text: str, name: str) -> list[str]:
    """The words that `set` and `list(APPEND)` give to a variable, in order."""
    bare = re.sub(r"#[^\n]*", "", text)
    words: list[str] = []
    for match in re.finditer(_SET.format(name=re.escape(name)), bare, re.IGNORECASE):
        words += [word.strip('"') for word in match[1].split()]
    return words


def rule(text: str, name: str) -> list[str]:
    """The words in `srcs` of the rule `name` of a BUILD file, in order."""
    bare = re.sub(r"#[^\n]*", "", text)
    found = re.search(rf'name\s*=\s*"{re.escape(name)}"\s*,\s*srcs\s*=\s*\[([^\]]*)\]', bare)
    return re.findall(r'"([^"]*)"', found[1]) if found else []


def check_sources(library: Library, tree: Path) -> None:
    """Raise ConfigError unless the patched build file lists exactly the library's sources."""
    if library.listed is None:
        return
    file = tree / library.listed.file
    if not file.is_file():
        raise ConfigError(
            f"{library.name} cannot be built because the tree has no {library.listed.file}; apply "
            "the series first, or correct tag.toml"
        )
    difference = compare_sources(library, file.read_text(encoding="utf-8"))
    if difference:
        raise ConfigError(difference)


def sources(library: Library, text: str) -> set[str]:
    """The sources that `text`, of the library's build file, gives to its variable."""
    assert library.listed is not None
    folder = Path(library.listed.file).parent
    local = (
        re.escape("${CMAKE_CURRENT_LIST_DIR}/") + "|" + re.escape("${CMAKE_CURRENT_SOURCE_DIR}/")
    )
    read = variable if library.cmake else rule
    words = read(text, library.listed.variable)
    return {
        (folder / re.sub(local, "", word)).as_posix()
        for word in words
        if word.endswith((".cpp", ".cc", ".c"))
    }


def is_below(source: str, build_file: str) -> bool:
    return source.startswith(f"{Path(build_file).parent.as_posix()}/")


def compare_sources(library: Library, text: str) -> str:
    """What is wrong unless the patched build file lists exactly the library's sources."""
    assert library.listed is not None
    ours, theirs = set(library.sources), sources(library, text)
    if library.bazel:  # what lies elsewhere are files of upstream's own rules
        ours = {source for source in ours if is_below(source, library.bazel.file)}
    if ours == theirs:
        return ""
    only_theirs = ", ".join(sorted(theirs - ours)) or "nothing"
    only_ours = ", ".join(sorted(ours - theirs)) or "nothing"
    return (
        f"{library.name} would not be upstream's because {library.listed.variable} in "
        f"{library.listed.file} alone has {only_theirs} and tag.toml alone has "
        f"{only_ours}; make the two lists equal"
    )
