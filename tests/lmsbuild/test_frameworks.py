# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lmsbuild_world import World

from lmsbuild.base.errors import ConfigError, UnknownTagError
from lmsbuild.base.project import Project, find_project
from lmsbuild.series.series import series_of
from lmsbuild.tags import sourcelists
from lmsbuild.tags.frameworks import load, resolve, targets


@pytest.mark.parametrize("spec", ["v1.0", "1.0", "alpha:v1.0", "alpha:1.0"])
def test_tag_is_found(world: World, spec: str) -> None:
    assert resolve(world.project, spec).label == "alpha:v1.0"


def test_unknown_tag_lists_the_near_ones(world: World) -> None:
    with pytest.raises(UnknownTagError, match=r"alpha:v1\.0") as failure:
        resolve(world.project, "v1.1")
    assert failure.value.details["near"] == ["alpha:v1.0"]


def test_ambiguous_tag_needs_its_framework(world: World) -> None:
    toml = world.project.frameworks_file
    text = toml.read_text()
    toml.write_text(text + text.replace("frameworks.alpha", "frameworks.beta"))
    with pytest.raises(UnknownTagError, match=r"ambiguous.*alpha:v1\.0, beta:v1\.0"):
        resolve(world.project, "v1.0")
    assert resolve(world.project, "beta:v1.0").framework_name == "beta"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('version = "1.0"\ncommit', 'versoin = "1.0"\ncommit', "versoin"),
        ("abi = 1", 'abi = "old"', "abi"),
        ("[frameworks.alpha]", "[frameworks.alpha", "frameworks.toml"),
    ],
)
def test_wrong_entries_are_named(world: World, old: str, new: str, named: str) -> None:
    toml = world.project.frameworks_file
    toml.write_text(toml.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=named):
        load(world.project)


def test_bytes_that_are_no_text_are_told(world: World) -> None:
    world.project.frameworks_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"frameworks\.toml cannot be read because .* 0xff"):
        load(world.project)


def test_project_must_be_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMSBUILD_ROOT", str(world.folder))
    with pytest.raises(ConfigError, match="LMSBUILD_ROOT"):
        find_project()


def test_real_project_is_consistent(real_project: Project) -> None:
    """What frameworks.toml records of upstream's files is what the patches start from."""
    for target in targets(real_project):
        runtime = {patch.name for patch in series_of(target).patches if "runtime/" in patch.name}
        assert len(runtime) == 1
        upstream = {p: b for p, b in series_of(target).before.items() if b != "0" * 40}
        assert upstream == target.tag.preimage


words = st.lists(st.from_regex(r"[a-z/]{1,8}\.cpp", fullmatch=True), max_size=6)


@given(first=words, second=words)
def test_cmake_variable_is_read(first: list[str], second: list[str]) -> None:
    listed = "".join(f"  {word}  # why.cpp\n" for word in first)
    text = (
        f"# set(SRCS no.cpp)\nset(OTHER other.cpp)\nset(SRCS\n{listed})\n"
        f"list(APPEND SRCS {' '.join(second)})\nadd_library(x ${{SRCS}})\n"
    )
    assert sourcelists.variable(text, "SRCS") == first + second
