# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lmsbuild_processes import run
from lmsbuild_world import REPOSITORY, World, write
from pydantic import BaseModel

from lmsbuild.base.errors import ConfigError, FileError, SeriesError, UnknownTagError
from lmsbuild.base.project import Project, find_project
from lmsbuild.series.series import series_of
from lmsbuild.tags import sourcelists
from lmsbuild.tags.frameworks import FrameworkFile, Plugin, Tag, load, read, resolve, targets
from lmsbuild.tags.runtimefiles import licence_text, runtime_files
from lmsbuild.tags.words import Argument

PLUGIN = 'name = "x"\nversion = "1.0"\nsources = "lms/x"\n[releases."1.0"]\n'


@pytest.mark.parametrize("spec", ["v1.0", "1.0", "alpha:v1.0", "alpha:1.0"])
def test_tag_is_found(world: World, spec: str) -> None:
    assert resolve(world.project, spec).label == "alpha:v1.0"


def test_a_framework_without_a_name_is_none(world: World) -> None:
    assert resolve(world.project, "alpha:v1.0").tag_name == "v1.0"
    with pytest.raises(UnknownTagError, match=r"^:v1\.0 "):
        resolve(world.project, ":v1.0")


def test_unknown_tag_lists_the_near_ones(world: World) -> None:
    with pytest.raises(UnknownTagError, match=r"alpha:v1\.0") as failure:
        resolve(world.project, "v1.1")
    assert failure.value.details["near"] == ["alpha:v1.0"]


def of_ibm(world: World) -> None:
    text = world.framework_file.read_text()
    kinds = '"a patch" = ["v0.4.0", "v1.0", "v7.0"]\n"a rewriter" = ["v0.*"]\n'
    world.framework_file.write_text(text.replace("[shows]", f"[ibm]\n{kinds}[shows]"))
    later = world.tag_file.parents[1] / "v2.0"
    shutil.copytree(world.tag_file.parent, later)
    tag = (later / "tag.toml").read_text()
    (later / "tag.toml").write_text(tag.replace('version = "1.0"\nco', 'version = "2.0"\nco'))


@pytest.mark.parametrize(
    ("spec", "had", "nearest", "to"),
    [
        ("v0.4.0", "a patch for alpha:v0.4.0", "v1.0", "v0.4.0"),
        ("0.4", "a patch for alpha:v0.4.0", "v1.0", "v0.4.0"),
        ("alpha:0.4", "a patch for alpha:v0.4.0", "v1.0", "v0.4.0"),
        ("v7.0", "a patch for alpha:v7.0", "v2.0", "v7.0"),
        ("alpha:v0.7.1", "a rewriter for alpha:v0.7.1", "v1.0", "v0.7.1"),
    ],
)
def test_a_tag_that_ibm_had(world: World, spec: str, had: str, nearest: str, to: str) -> None:
    of_ibm(world)
    with pytest.raises(UnknownTagError) as failure:
        resolve(world.project, spec)
    told = str(failure.value)
    assert (
        f"{spec} cannot be used because" in told and f"IBM's Large Model Support had {had};" in told
    )
    assert f"use alpha:{nearest}, the nearest" in told
    assert f"`lmsbuild port alpha:{nearest} {to}`" in told and "docs/coming-from-ibm.md" in told
    assert failure.value.details["near"] == [f"alpha:{nearest}"]


@pytest.mark.parametrize("spec", ["v0.7.1", "alpha:v0.x", "beta:v0.4.0", "v1.1", ""])
def test_what_may_be_none_of_ibms(world: World, spec: str) -> None:
    """A bare name that only a * takes may be another framework's."""
    of_ibm(world)
    with pytest.raises(UnknownTagError, match="no supported framework has this tag"):
        resolve(world.project, spec)
    assert resolve(world.project, "v1.0").label == "alpha:v1.0"  # here, and IBM's


@pytest.mark.parametrize(
    ("spec", "nearest"),
    [
        ("v1.15", "tensorflow:v2.1.0"),
        ("tensorflow:v1.12.0", "tensorflow:v2.1.0"),
    ],
)
def test_ibms_users_are_told_where_to_go(real_project: Project, spec: str, nearest: str) -> None:
    code, _, told = run("apply", spec)
    assert code == UnknownTagError.exit_code
    assert "IBM's Large Model Support had a " in told and f"use {nearest}, the nearest" in told


def test_each_tag_that_ibm_patched_is_here(real_project: Project) -> None:
    for name, framework in load(real_project).items():
        for tag in framework.ibm["a patch"]:
            assert resolve(real_project, f"{name}:{tag}").tag_name == tag


def test_the_page_names_the_same_tags_of_ibms(real_project: Project) -> None:
    page = (REPOSITORY / "docs/coming-from-ibm.md").read_text()
    told = re.search(r"PyTorch patches were for (.*?), those of TensorFlow for (.*?);", page, re.S)
    assert told
    for name, words in zip(("pytorch", "tensorflow"), told.groups(), strict=True):
        assert re.findall(r"v[\d.]+\d", words) == load(real_project)[name].ibm["a patch"]


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
        *(
            (
                "v1.0/tag.toml",
                '["-O1", "-fPIC"]',
                f'["-O1", "{flag}"]',
                r"overlay\.flags: .*no flag",
            )
            for flag in (
                "-fplugin=./evil.so",
                "-fplugin-arg-evil-x=1",
                "-B.",
                "-wrapper",
                "-specs=x",
                "@args",
                "-Wl,-plugin,x.so",
                "-Wa,x",
                "-Wp,-MD,x",
                "-Xlinker",
                "-o/tmp/x",
                "-x",
                "-I/etc",
                "-fuse-ld=evil",
                "-fdump-tree-all",
                "-fprofile-use=/etc/x",
                "x.cpp",
                "-save-temps",
                "-D_X='; evil'",
                "-O2\\n",
                "-MF",
                "-T",
                "-L.",
                "-levil",
                "",
                "-fauto-profile=x",
                "-foffload=x",
                "-iplugindir=x",
                "--sysroot=x",
                "-imacros",
            )
        ),
        ("v1.0/tag.toml", '["-O1", "-fPIC"]', '["-include", "/etc/passwd"]', "no header"),
        ("v1.0/tag.toml", '["-O1", "-fPIC"]', '["-include"]', "no header"),
        ("v1.0/tag.toml", '"c++17"', '"c++17 -B."', r"overlay\.cxx_standard: .*no standard"),
        ("v1.0/tag.toml", '["tree:"]', '["tree:../../etc"]', r"overlay\.include\.0: .*out of its"),
        ("v1.0/tag.toml", '["tree:"]', '["-B."]', r"overlay\.include\.0: .*no tree:"),
        ("v1.0/tag.toml", '["tree:"]', '["wheel:{data.x}/a"]', r"include\.0: .*other braces"),
        ("v1.0/tag.toml", '"/alpha"', '"/alpha -B."', r"overlay\.prefix: .*no absolute path"),
        ("v1.0/tag.toml", '"alpha/lib/libcore.so"', '"a/x,-plugin,y.so"', "plain letters"),
        ("v1.0/tag.toml", "cmake =", 'exports = ["x; local: *"]\ncmake =', r"exports\.0: .*symbol"),
        ("v1.0/tag.toml", "cmake =", 'defines = ["X=$(id)"]\ncmake =', r"defines\.0: .*no macro"),
        ("v1.0/tag.toml", "abi = 1", 'abi = 1\ndefines = ["X\\ny"]', r"defines\.0: .*no macro"),
        ("v1.0/tag.toml", "abi = 1", 'abi = 1\ninclude = ["wheel:/etc"]', r"cuda\.0\.include\.0: "),
        ("v1.0/tag.toml", '[".h"]', '["/../.h"]', r"install\.0\.suffixes\.0: .*no suffix"),
        ("v1.0/tag.toml", '"alpha/include/core"', '"{data}/../x"', r"target: .*out of its folder"),
        ("v1.0/tag.toml", '"alpha/include/core"', '"a/{0}"', r"target: .*other braces"),
        ("v1.0/tag.toml", '"core/alloc.cpp", ', '"--x.cpp", ', r"sources\.0: .*for an option"),
        ("v1.0/tag.toml", '"3.11" =', '"3.11 --x" =', r"sha256\.3\.11 --x.*: .*no version X\.Y"),
        ("v1.0/tag.toml", '[cuda."0"', '[cuda."0 x"', r"cuda\.0 x.*: .*no version of CUDA"),
        (
            "v1.0/tag.toml",
            'version = "1.0"\ncommit',
            'pins = ["x @ file:///evil"]\nversion = "1.0"\ncommit',
            r"pins\.0: .*names an address",
        ),
        *(
            ("v1.0/tag.toml", "[preimage]", f"[images.test]\n{text}\n[preimage]", rf"test\.{named}")
            for text, named in (
                ('base = { x86_64 = "a\\nRUN evil" }', r"base\.x86_64: .*no name of a container"),
                ('base = { x86_64 = "--platform=x" }', r"base\.x86_64: .*no name of a container"),
                ('base = { "x y" = "a" }', r"base\.x y.*: .*no machine"),
                ('base = {}\npythons = ["$(evil)"]', r"pythons\.0: .*no name of a program"),
                ('base = {}\ncompilers = ["-x"]', r"compilers\.0: .*no name of a program"),
                ('base = {}\ncommands = ["git; evil"]', r"commands\.0: .*no name of a program"),
                ('base = {}\npackages = { "evil" = ["g++"] }', r"packages\.evil"),
                ('base = {}\npackages = { apt-get = ["-o=x"] }', r"packages\.apt-get\.0: "),
                ('base = {}\npackages = { apt-get = ["bash-"] }', r"packages\.apt-get\.0: "),
                ('base = {}\npackages = { apt-get = ["a; evil"] }', r"packages\.apt-get\.0: "),
                ('base = {}\nenvironment = { "A B" = "1" }', r"environment\.A B.*no name of a var"),
                ('base = {}\nenvironment = { LD_PRELOAD = "x" }', r"environment\.LD_PRELOAD"),
                ('base = {}\nenvironment = { PATH = "x" }', r"environment\.PATH"),
                ('base = {}\nenvironment = { A = "x\\"\\nRUN evil" }', r"environment\.A: .*quotes"),
                ('base = {}\nenvironment = { A = "$B" }', r"environment\.A: .*quotes"),
                ('base = {}\nrequirements = { x86_64 = ["-r x"] }', r"requirements\.x86_64\.0: "),
            )
        ),
        *(
            ("v1.0/tag.toml", "[preimage]", f"[full]\nmemory = 1\n{text}\n[preimage]", named)
            for text, named in (
                ('commands = [["a\\nb"]]', r"full\.commands\.0\.0: .*argument"),
                ('commands = []\nneeds = ["../x"]', r"full\.needs\.0: .*out of its folder"),
                ('commands = []\nenvironment = { LD_PRELOAD = "x" }', r"full\.environment"),
            )
        ),
        ("framework.toml", '"ALPHA_LMS"', '"A=1 evil"', r"shows\.switch: .*no name of a variable"),
        ("plugin.toml", "", PLUGIN + 'requires = "; evil"\n', r"releases\.1\.0\.requires: "),
        ("plugin.toml", "", PLUGIN.replace("[r", 'flags = ["-fplugin=x"]\n[r'), "flags: .*no flag"),
        ("plugin.toml", "", PLUGIN + 'requires = ""\ntag = "../x"\n', r"releases\.1\.0\.tag: "),
        ("plugin.toml", "", PLUGIN + 'requires = ""\ntag = "v9"\n', r"releases\.1\.0 is of v9, "),
        ("plugin.toml", "", PLUGIN + 'requires = ""\n', r"releases\.1\.0: .*either the tag"),
        ("plugin.toml", "", PLUGIN.replace("1.0", "1.0 x", 1), "version: .*no version"),
        ("plugin.toml", "", PLUGIN.replace("[r", 'packages = ["-r x"]\n[r'), r"packages\.0: "),
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


def test_every_text_has_a_type() -> None:
    """Text of any kind is what no command line gets, or what a reviewer reads as code."""
    seen: list[type[BaseModel]] = [Tag, FrameworkFile, Plugin]
    free: set[str] = set()

    def look(annotation: object, name: str) -> None:
        if annotation is str or annotation == Argument:
            free.add(name)
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if annotation not in seen:
                seen.append(annotation)
        elif get_origin(annotation) is not Annotated:
            for inner in get_args(annotation):
                look(inner, name)

    for model in seen:
        for field, annotation in get_type_hints(model, include_extras=True).items():
            look(annotation, f"{model.__name__}.{field}")
    code = {"Full.fetch", "Full.commands", "Full.environment", "Conda.test"}
    compared = {"FrameworkFile.line_length", "Overlay.build_files", "SourceList.variable"}
    assert free == {"Companion.summary", "Conda.summary", "Full.ran", *compared, *code}
    review = (REPOSITORY / "CONTRIBUTING.md").read_text().partition("## Reviewing")[2]
    for name in code:
        assert f"`{name.lower()}`" in review, name


@pytest.mark.parametrize("name", ["--v1.0", "v1.0;x", "v 1", "v1.0\\n"])
def test_a_folder_that_is_the_name_of_no_tag(world: World, name: str) -> None:
    world.tag_file.parent.rename(world.tag_file.parents[1] / name)
    with pytest.raises(ConfigError, match="is the name of no framework or tag; rename"):
        load(world.project)


@pytest.mark.parametrize("name", ["framework.toml", "v1.0/tag.toml", "v1.0/0003-Extra.patch"])
@pytest.mark.parametrize("device", [False, True])
def test_what_never_ends_is_not_read(world: World, name: str, device: bool) -> None:
    path = world.project.patches / "alpha" / name
    path.unlink(missing_ok=True)
    if device:
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    for command in ("apply", "export", "verify", "lint", "map"):
        code, _, err = run(command, "v1.0", timeout=60)
        assert code in (ConfigError.exit_code, SeriesError.exit_code)
        # Without its tag.toml a folder of patches is none of a tag's.
        assert "it is no regular file" in err or "has patches and no tag.toml" in err


HOSTILE: dict[str, Callable[[Path], object]] = {
    "it is a link out of the project": lambda path: path.symlink_to("/etc/passwd"),
    "it is no regular file": os.mkfifo,
    "Too many levels of symbolic links": lambda path: path.symlink_to(path.name),
    "it is a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("why", HOSTILE)
@pytest.mark.parametrize("place", ["lms/core/x.cpp", "lms/plug/alpha_lms/x.py"])
def test_no_other_file_of_the_machine_becomes_a_source(world: World, place: str, why: str) -> None:
    """Of a patch, or of a package: who gives a change of lms/ may put a link there."""
    root, alpha = world.project.root, world.project.patches / "alpha"
    plugin = PLUGIN.replace("lms/x", "lms/plug").replace('"x"', '"alpha_lms"')
    write(root, {"lms/plug/alpha_lms/__init__.py": ""})
    (alpha / "plugin.toml").write_text(f'{plugin}tag = "v1.0"\nrequires = ""\n')
    HOSTILE[why](root / place)
    before = {file: file.read_bytes() for file in alpha.rglob("*.patch")}
    commands = [["refresh", "v1.0", "--runtime"], ["verify", "v1.0"]]
    for command in commands if "core" in place else [["plugin", "1.0"]]:
        code, out, err = run(*command, timeout=60)
        assert code in (ConfigError.exit_code, SeriesError.exit_code), (command, out, err)
        assert why in out + err
    assert {file: file.read_bytes() for file in alpha.rglob("*.patch")} == before
    assert not list(world.folder.rglob("*.whl"))


def test_the_licence_is_the_projects(world: World) -> None:
    root = world.project.root
    assert licence_text(root) == b""
    (root / "LICENSE").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="LICENSE cannot be taken as a source because it is a li"):
        licence_text(root)


def test_a_name_of_a_source_that_is_no_text(world: World) -> None:
    name = os.fsdecode(b"x\xff.cpp")
    (world.project.root / "lms/core" / name).write_text("")
    code, _, err = run("refresh", "v1.0", "--runtime")
    assert code == ConfigError.exit_code and "cannot be taken as a source because" in err


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 9999, "a = nan\na = 1", "\ufeffa = 1", "a = 1\x00"]
)
def test_toml_that_is_none(world: World, text: str) -> None:
    world.tag_file.write_text(text)
    with pytest.raises(ConfigError, match=r"tag\.toml (cannot be read|is invalid) because"):
        load(world.project)


@pytest.mark.parametrize("file", ["framework.toml", "v1.0/tag.toml"])
def test_bytes_that_are_no_text_are_told(world: World, file: str) -> None:
    (world.project.patches / "alpha" / file).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=rf"{file} cannot be read because .* 0xff"):
        load(world.project)


def test_a_file_that_cannot_be_read_has_nothing_to_correct(world: World) -> None:
    """One that is not there is missed, and of one that leads to itself the cause is told."""
    world.tag_file.unlink()
    with pytest.raises(
        ConfigError, match=r"tag\.toml cannot be read because it is not there; take"
    ):
        read(Tag, world.tag_file)
    world.tag_file.symlink_to(world.tag_file)
    with pytest.raises(FileError, match=r"tag\.toml .* because Too many .*; remove the link that"):
        read(Tag, world.tag_file)


def test_patches_of_a_folder_without_its_file(world: World) -> None:
    """A misspelt tag.toml is told, and not only that there is no such tag."""
    world.tag_file.rename(world.tag_file.with_name("tags.toml"))
    with pytest.raises(ConfigError, match=r"alpha/v1\.0 .* has patches and no tag\.toml"):
        load(world.project)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("name", ["", "v1.0", "runtime"])
def test_a_folder_that_may_not_be_read_is_none_without_tags(world: World, name: str) -> None:
    with tempfile.TemporaryDirectory() as place:  # which others can reach, unlike ours
        project = Project(Path(place))
        shutil.copytree(world.project.patches, project.patches)
        for path in (project.root, *project.root.rglob("*")):
            os.chown(path, 12345, 12345)
        (project.patches / "alpha" / name).chmod(0)
        os.seteuid(12345)
        try:
            if name:
                with pytest.raises(PermissionError, match=name):
                    resolve(project, "v1.0")
            else:
                with pytest.raises(UnknownTagError, match="has no tags at all; check out"):
                    resolve(project, "v1.0")
        finally:
            os.seteuid(0)


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
