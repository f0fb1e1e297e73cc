# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lmsbuild_world import World

from lmsbuild.base.errors import ConfigError, UnknownTagError
from lmsbuild.base.project import Project, find_project
from lmsbuild.series.series import series_of
from lmsbuild.tags import sourcelists
from lmsbuild.tags.frameworks import load, resolve, targets
from lmsbuild.tags.runtimefiles import runtime_files


@pytest.mark.parametrize("spec", ["v1.0", "1.0", "alpha:v1.0", "alpha:1.0"])
def test_tag_is_found(world: World, spec: str) -> None:
    assert resolve(world.project, spec).label == "alpha:v1.0"


def test_unknown_tag_lists_the_near_ones(world: World) -> None:
    with pytest.raises(UnknownTagError, match=r"alpha:v1\.0") as failure:
        resolve(world.project, "v1.1")
    assert failure.value.details["near"] == ["alpha:v1.0"]


def test_ambiguous_tag_needs_its_framework(world: World) -> None:
    shutil.copytree(world.project.patches / "alpha", world.project.patches / "beta")
    with pytest.raises(UnknownTagError, match=r"ambiguous.*alpha:v1\.0, beta:v1\.0"):
        resolve(world.project, "v1.0")
    assert resolve(world.project, "beta:v1.0").framework_name == "beta"


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("v1.0/tag.toml", 'version = "1.0"\ncommit', 'versoin = "1.0"\ncommit', "versoin"),
        ("v1.0/tag.toml", 'version = "1.0"\ncommit', 'version = "new"\ncommit', "is no version"),
        ("v1.0/tag.toml", "abi = 1", 'abi = "old"', r"cuda\.0\.abi"),
        ("v1.0/tag.toml", "[overlay]", "[overlay", "cannot be read"),
        ("framework.toml", "url =", "uri =", "uri: Extra inputs"),
        ("framework.toml", "[shows]", '[tags."v1.0"]\n[shows]', "tags: Extra inputs"),
        ("framework.toml", "[shows]", "[plugin]\n[shows]", "plugin: Extra inputs"),
        ("plugin.toml", "", 'version = "1"\n', "releases: Field required"),
        ("framework.toml", 'url = "', 'url = "--upload-pack=touch evil;', "url: .*no address"),
        ("framework.toml", 'url = "', 'url = "ext::sh -c ', "url: .*no address"),
        ("framework.toml", '"core/lms"', '".git/lms"', r"layout\.0\.target: .*what is git's"),
        ("framework.toml", '"core/lms"', '"../../etc"', r"layout\.0\.target: .*out of its folder"),
        ("framework.toml", '"lms/core"', '"/etc"', r"layout\.0\.source: .*out of its folder"),
        ("framework.toml", '"*.cpp"', '"../*"', r"layout\.0\.patterns\.1: .*names a folder"),
        ("framework.toml", "examples/train.py", "../train.py", r"shows\.example: .*out of its"),
        ("v1.0/tag.toml", '"alpha/lib/libcore.so"', '"/lib/libc.so"', r"path: .*out of its folder"),
        (
            "v1.0/tag.toml",
            'version = "1.0"\ncommit',
            'pins = ["-r x"]\nversion = "1.0"\ncommit',
            r"pins\.0: .*no requirement",
        ),
        ("v1.0/tag.toml", 'project = "alpha"', 'project = "--index-url=x"', r"wheel\.project: "),
    ],
)
def test_wrong_entries_are_named(world: World, file: str, old: str, new: str, named: str) -> None:
    toml = world.project.patches / "alpha" / file
    toml.write_text(toml.read_text().replace(old, new, 1) if old else new)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(toml))} .*{named}"):
        load(world.project)


def test_a_pattern_that_no_file_matches(world: World) -> None:
    """A misspelt one would take its files out of the runtime patch."""
    text = world.framework_file.read_text()
    world.framework_file.write_text(text.replace('"*.cpp"', '"*.cxx"'))
    with pytest.raises(ConfigError, match=r"lms/core has no file \*\.cxx; correct `layout`"):
        runtime_files(resolve(world.project, "v1.0"))


@pytest.mark.parametrize("file", ["framework.toml", "v1.0/tag.toml"])
def test_bytes_that_are_no_text_are_told(world: World, file: str) -> None:
    (world.project.patches / "alpha" / file).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=rf"{file} cannot be read because .* 0xff"):
        load(world.project)


def test_patches_of_a_folder_without_its_file(world: World) -> None:
    """A misspelt tag.toml is told, and not only that there is no such tag."""
    world.tag_file.rename(world.tag_file.with_name("tags.toml"))
    with pytest.raises(ConfigError, match=r"alpha/v1\.0 .* has patches and no tag\.toml"):
        load(world.project)


def test_newest_tags_first(world: World) -> None:
    for version in ("1.10", "1.9"):
        folder = world.tag_file.parents[1] / f"v{version}"
        shutil.copytree(world.tag_file.parent, folder)
        text = (folder / "tag.toml").read_text()
        (folder / "tag.toml").write_text(
            text.replace('version = "1.0"\nco', f'version = "{version}"\nco')
        )
    assert [target.tag_name for target in targets(world.project)] == ["v1.10", "v1.9", "v1.0"]


def test_project_must_be_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMSBUILD_ROOT", str(world.folder))
    with pytest.raises(ConfigError, match="LMSBUILD_ROOT"):
        find_project()


def test_real_project_is_consistent(real_project: Project) -> None:
    """What tag.toml records of upstream's files is what the patches start from."""
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
