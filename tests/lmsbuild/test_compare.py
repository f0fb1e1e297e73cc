# SPDX-License-Identifier: Apache-2.0
"""Two series compared, and a tag added with what can be found of it."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from lmsbuild_wheels import ENGINE, PYTHON, build_libraries, edit, make_wheel
from lmsbuild_world import REPOSITORY, UPSTREAM, World, examples_of, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.errors import DownloadError, UsageError
from lmsbuild.base.hashing import sha256_file
from lmsbuild.base.project import Project
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.newtag import _put_official, nearest
from lmsbuild.checkout.refresh import refresh
from lmsbuild.series.scratch import scratch
from lmsbuild.series.series import Patch, patch_files
from lmsbuild.series.sketch import sketch
from lmsbuild.tags import official
from lmsbuild.tags.frameworks import Tag, resolve
from lmsbuild.tags.official import look_up


class Tool:
    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self.world, self.capsys = world, capsys

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        self.capsys.readouterr()
        found = run([*arguments, "--json"])
        printed = self.capsys.readouterr()
        assert found == code, printed.err
        value = json.loads(printed.out)
        return value["error"] if code else value


@pytest.fixture
def tool(world: World, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(world, capsys)


@pytest.fixture
def history(world: World, console: Console) -> World:
    """The project in git; since its commit one hook changed, one is new and one is gone."""
    plain_git(world.project.root, "init", "-q")
    plain_git(world.project.root, "add", "-A")
    plain_git(world.project.root, "commit", "-qm", "The series")
    clone = world.clone()
    apply(world.target, clone, console)
    plain_git(clone, "reset", "-q", "--hard", "HEAD~")
    alloc = (clone / "core/alloc.cpp").read_text().replace("line20 = 21", "line20 = 29")
    write(clone, {"core/alloc.cpp": alloc})
    plain_git(clone, "commit", "-qa", "--amend", "--no-edit")
    (clone / "core/data.bin").write_bytes(bytes(range(256)))
    plain_git(clone, "add", "-A")
    plain_git(clone, "commit", "-qm", "Bring data\n\nBecause.")
    refresh(world.target, clone)
    return world


def test_what_is_not_committed(history: World, tool: Tool) -> None:
    found = tool("diff", "v1.0@HEAD")
    assert (found["first"], found["second"]) == ("alpha:v1.0@HEAD", "alpha:v1.0")
    rows = [(p["first"], p["state"], p["second"]) for p in found["patches"]]
    call, show, data = (
        "v1.0/0001-Call-the-engine.patch", "v1.0/0002-Show-it-in-Python.patch",
        "v1.0/0002-Bring-data.patch",
    )  # fmt: skip
    assert sorted(rows, key=str) == sorted(
        [
            (call, "changed", call),
            (show, "only in the first", None),
            (None, "only in the second", data),
        ],
        key=str,
    )
    diff = next(p["diff"] for p in found["patches"] if p["first"] == call)
    assert "-+int line20 = 21;" in diff and "++int line20 = 29;" in diff
    same = tool("diff", "v1.0@HEAD", "v1.0@HEAD")["patches"]
    assert {pair["state"] for pair in same} == {"the same"}


def test_a_patch_is_the_same_beside_another_to_its_file(
    world: World, tool: Tool, console: Console
) -> None:
    """What the other shows of the file lies above the first one's hunk."""
    plain_git(world.project.root, "init", "-q")
    plain_git(world.project.root, "add", "-A")
    plain_git(world.project.root, "commit", "-qm", "The series")
    clone = world.clone()
    apply(world.target, clone, console)
    alloc = (clone / "core/alloc.cpp").read_text().replace("int line5 = 5;", "int line5 = 55;")
    world.commit(clone, {"core/alloc.cpp": alloc}, "Count")
    refresh(world.target, clone)
    states = [pair["state"] for pair in tool("diff", "v1.0@HEAD")["patches"]]
    assert states == ["the same", "the same", "only in the second"]


def test_patches_of_tags_years_apart_are_paired(tool: Tool, real_project: Project) -> None:
    found = tool("diff", "v2.14.1", "v2.2.0")["patches"]
    numbers = [[(p[side] or "").rpartition("/")[2][:4] for side in ("first", "second")]
               for p in found]  # fmt: skip
    assert len(found) == 7 and all(first == second for first, second in numbers)


def test_text_of_a_comparison(history: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", "v1.0@HEAD", "--short"]) == 0
    short = capsys.readouterr().out
    assert "0001-Call-the-engine.patch" in short and "line20" not in short
    assert run(["diff", "v1.0@HEAD"]) == 0
    assert "++int line20 = 29;" in capsys.readouterr().out


@pytest.mark.parametrize("words", examples_of("diff"), ids=" ".join)
def test_the_examples_of_diff_are_run(history: World, tool: Tool, words: list[str]) -> None:
    project = history.project.root
    shutil.copytree(history.tag_file.parent, history.tag_file.parents[1] / "v0.9")
    write(project, {"lms/note.txt": "another commit\n"})
    plain_git(project, "add", "lms/note.txt")
    plain_git(project, "commit", "-qm", "Another")
    names = {"v2.6.0": "v1.0", "v2.14.1": "v1.0", "v2.2.0": "v0.9"}
    filled = [word.replace(old, new) for word in words for old, new in names.items() if old in word]
    found = tool("diff", *filled, *(word for word in words[1:] if word.startswith("-")))
    # Neither what was committed in between nor a copy of a series differs from it.
    same = {pair["state"] for pair in found["patches"]} == {"the same"}
    assert same == (words[1:] != ["v2.6.0@HEAD"])


def test_what_cannot_be_compared(world: World, tool: Tool) -> None:
    assert "in no git repository" in tool("diff", "v1.0@HEAD", code=2)["message"]
    plain_git(world.project.root, "init", "-q")
    plain_git(world.project.root, "commit", "-q", "--allow-empty", "-m", "Nothing")
    assert "no revision 'x'" in tool("diff", "v1.0@x", code=2)["message"]
    assert "has no hooks" in tool("diff", "v1.0@HEAD", code=4)["message"]
    patch = patch_files(world.target.tag_patches)[0]
    text = patch.read_text()
    copy = patch.with_name("0003-Again.patch")
    copy.write_text(text)
    plain_git(world.project.root, "add", "-A")
    plain_git(world.project.root, "commit", "-qm", "Twice")
    message = tool("diff", "v1.0@HEAD", "v1.0", code=4)["message"]
    assert "not as the patch before leaves it" in message


@pytest.mark.parametrize("tag", ["v2.6.0", "v2.14.1", "v2.1.0"])
def test_a_sketch_gives_the_patches_back(real_project: Project, tag: str) -> None:
    """Of this project's own series: every line and every place in the files."""
    patches = [Patch(path) for path in patch_files(resolve(real_project, tag).tag_patches)]
    with scratch() as room:
        commits = sketch(room, patches)
        for patch, before, after in zip(patches, commits, commits[1:], strict=False):
            made = Patch(Path("x"), patch.mail.render().encode() + room.diff(before, after))
            assert [(h.path, h.target_start, h.lines) for h in made.hunks] == [
                (h.path, h.target_start, h.lines) for h in patch.hunks
            ]


# add


@pytest.fixture
def index(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Wheels of alpha 1.1 where pip finds them: Python -> SHA-256."""
    folder = world.folder / "index"
    folder.mkdir()
    found = {}
    for python in ("3.10", "3.12"):
        name = f"cp{python.replace('.', '')}"
        file = folder / f"alpha-1.1-{name}-{name}-manylinux_2_28_x86_64.whl"
        with zipfile.ZipFile(file, "w") as wheel:
            info = "alpha-1.1.dist-info"
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: alpha\nVersion: 1.1\n")
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {name}-{name}-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        found[python] = sha256_file(file)
    monkeypatch.setattr(official, "PYTHONS", ("3.10", "3.12"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return found


@pytest.fixture
def upstream(world: World) -> Path:
    """A clone with the tag v1.1, where the code moved."""
    clone = world.clone("upstream11")
    write(clone, {"core/alloc.cpp": "// one\n// two\n" + UPSTREAM["core/alloc.cpp"]})
    plain_git(clone, "commit", "-qam", "Go on")
    plain_git(clone, "tag", "v1.1")
    return clone


@pytest.mark.default
def test_a_tag_is_added(world: World, tool: Tool, upstream: Path, index: dict[str, str]) -> None:
    source = ("--source", str(upstream))
    assert tool("add", "v1.1", *source, "--dry-run")["dry_run"]
    assert not (world.project.patches / "alpha/v1.1").exists()
    done = tool("add", "v1.1", *source)
    assert [patch["state"] for patch in done["patches"]] == ["applied", "moved", "applied"]
    target = resolve(world.project, "v1.1")
    assert target.tag.commit == plain_git(upstream, "rev-parse", "v1.1")
    assert target.wheel.sha256 == index
    assert target.wheel.platforms == ["manylinux_2_28_x86_64"]
    assert set(target.tag.preimage) >= {"core/alloc.cpp", "python/api.py"}
    assert done["unknown"][0] == "`abi` of the official wheels"
    assert tool("verify", "v1.1")
    assert "supported already" in tool("add", "v1.1", *source, code=2)["message"]


@pytest.mark.default
def test_what_was_touched_is_compiled(
    world: World, tool: Tool, upstream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel of the new tag, from an official one that only the index tells of."""
    folder = world.folder / "index"
    folder.mkdir()
    make_wheel(folder, build_libraries(folder), f"cp{PYTHON.replace('.', '')}", "1.1")
    monkeypatch.setattr(official, "PYTHONS", (PYTHON,))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    edit(world, ENGINE)
    done = tool("add", "v1.1", "--source", str(upstream), "--wheel")
    assert Path(done["wheel"]).name.startswith("alpha-1.1+lms.1-cp3")
    with zipfile.ZipFile(done["wheel"]) as made:
        assert b"engine" in made.read("alpha/lib/libcore.so")
        assert made.read("alpha/api.py").endswith(b"return 1\n")


@pytest.mark.default
def test_the_examples_of_add_are_run(
    world: World, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, clone = world.folder / "index", world.folder / "src/pytorch"
    folder.mkdir()
    make_wheel(folder, build_libraries(folder), f"cp{PYTHON.replace('.', '')}", "1.1")
    monkeypatch.setattr(official, "PYTHONS", (PYTHON,))
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(folder))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(world.folder))
    clone.parent.mkdir()
    world.clone("src/pytorch")
    plain_git(clone, "tag", "v1.1")
    edit(world, ENGINE)
    lines = examples_of("add")
    assert len(lines) >= 2
    for words in lines:
        done = tool(*(word.replace("pytorch:v2.7.0", "alpha:v1.1") for word in words))
        assert (world.project.patches / "alpha/v1.1").exists() == ("--dry-run" not in words)
    assert Path(done["wheel"]).is_file()


def test_without_the_index(world: World, tool: Tool, upstream: Path, console: Console) -> None:
    done = tool("add", "v1.1", "--source", str(upstream), "--offline")
    assert "official wheels for 0" in done["unknown"][0]
    assert "downloads are off" in done["unknown"][0]
    assert resolve(world.project, "v1.1").wheel.sha256 == {}
    wheels = look_up(world.target, "1.2", console, lambda *_: None)
    assert "the index has none for x86_64" in wheels.lost["0"]


def test_the_nearest_tag(tool: Tool) -> None:
    real_project = Project(REPOSITORY)
    for spec, wanted in (
        ("tensorflow:v2.9.0", "v2.2.0"), ("tensorflow:v2.20.0", "v2.14.1"),
        ("tensorflow:v1.15.0", "v2.1.0"), ("pytorch:v2.7.0", "v2.6.0"),
    ):  # fmt: skip
        assert nearest(real_project, spec).tag_name == wanted
    with pytest.raises(UsageError, match="of which framework"):
        nearest(real_project, "v9.9.0")
    assert "of no release" in tool("add", "alpha:main", code=2)["message"]


def test_a_tag_that_upstream_has_not(world: World, tool: Tool) -> None:
    error = tool("add", "v1.1", "--source", str(world.upstream), code=6)
    assert "no such tag" in error["message"]
    assert not (world.project.patches / "alpha/v1.1").exists()


def test_cuda_and_headers_come_with_the_wheel(
    real_project: Project, tmp_path: Path, console: Console
) -> None:
    """Of PyTorch's own tag, by an index of ours: another version of CUDA."""
    asked = []

    def ask(project: str, version: str, python: str, platforms: object) -> Any:
        asked.append((project, version, python))
        if python == "3.13":
            return None
        digest = "a" * 64
        url = f"https://x.invalid/{project}-2.7.0-cp310-cp310-manylinux_2_28_x86_64.whl"
        requires = ["nvidia-cuda-runtime-cu12==12.6.77; platform_system == 'Linux'"]
        return {
            "download_info": {"url": url, "archive_info": {"hashes": {"sha256": digest}}},
            "metadata": {"requires_dist": requires, "version": "12.6.77"},
        }

    target = resolve(real_project, "v2.6.0")
    wheels = look_up(target, "2.7.0", console, ask)
    assert not wheels.lost and ("torch", "2.7.0", "3.12") in asked
    document = tomlkit.parse((REPOSITORY / target.file).read_text())
    for name, found in wheels.found.items():
        _put_official(document, name, found)
    made = Tag.model_validate(tomlkit.parse(tomlkit.dumps(document)).unwrap())
    (cuda,) = made.cuda
    variant = made.cuda[cuda]
    assert cuda == "12.6" and variant.wheel.local == "cu126.lms.1"
    assert list(variant.wheel.sha256) == ["3.10", "3.11", "3.12"]
    assert {header.version for header in variant.headers} == {"12.6.77"}

    def none(*_: object) -> None:
        raise DownloadError("x cannot be looked up because the network is gone; run again")

    assert "network is gone" in look_up(target, "2.7.0", console, none).lost["12.4"]
