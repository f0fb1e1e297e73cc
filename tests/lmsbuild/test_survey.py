# SPDX-License-Identifier: Apache-2.0
"""A series against many tags: each kind of drift, in real git repositories."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_drift import commit_called, make_drift
from lmsbuild_kill import snapshot
from lmsbuild_world import World, enter_world, plain_git

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.errors import SourceError, UsageError
from lmsbuild.checkout.checkout import fetch
from lmsbuild.checkout.survey import survey
from lmsbuild.series.series import series_of

APPLIED = ["applied", "applied", "applied"]


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drift")
    make_drift(folder)
    return folder


@pytest.fixture
def drift(drifted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    shutil.copytree(drifted, tmp_path, dirs_exist_ok=True, symlinks=True)
    return enter_world(tmp_path, monkeypatch)


def surveyed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[Any]]:
    """The rows of each tag."""
    capsys.readouterr()
    assert run(["survey", *arguments, "--json"]) == 0
    found: dict[str, list[Any]] = {}
    for row in json.loads(capsys.readouterr().out)["surveyed"]:
        found.setdefault(row["tag"], []).append(row)
    return found


def states(rows: list[Any]) -> list[str]:
    return [row["state"] for row in rows]


def test_every_kind_of_drift_has_its_state(
    drift: World, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(drift.upstream)
    found = surveyed(capsys, "v1.0", "--source", str(drift.upstream), "--tags", "v*")
    assert snapshot(drift.upstream) == before
    assert {tag: states(rows) for tag, rows in found.items()} == {
        "v0.9": ["applied", "conflict", "applied"],
        "v1.0": APPLIED,
        "v1.1-moved": ["applied", "moved", "applied"],
        "v1.2-merged": ["applied", "merged", "applied"],
        "v1.3-conflict": ["applied", "conflict", "applied"],
        "v1.4-inserted": ["applied", "conflict", "applied"],
        "v1.5-renamed": ["applied", "applied", "renamed"],
        "v1.6-deleted": ["applied", "applied", "deleted"],
        "v1.7-taken": ["applied", "already upstream", "applied"],
        "v1.8-in-the-way": ["conflict", "applied", "applied"],
    }
    (moved,) = found["v1.1-moved"][1]["files"]
    assert (moved["path"], moved["offsets"]) == ("core/alloc.cpp", {"1": 3})


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:400]), "be used because|lmsbuild verify"),
        (lambda file: file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n")), "CRLF"),
        (lambda file: (file.unlink(), file.symlink_to("nowhere")), "leads nowhere"),
    ],
    ids=["cut off", "CRLF", "link"],
)
def test_a_damaged_patch_is_named(
    drift: World, capsys: pytest.CaptureFixture[str], damage: Any, why: str
) -> None:
    """By whatever reads it."""
    file = next(drift.target.tag_patches.glob("0001-*"))
    damage(file)
    for command in ("survey", "apply", "export", "map", "verify", "lint"):
        code = run([command, "v1.0"])
        told = capsys.readouterr()
        assert code not in (0, 1), command
        assert file.name in told.out + told.err, command
        assert re.search(why, told.err) or command in ("verify", "lint"), (command, told.err)


@pytest.mark.parametrize(
    ("tag", "patch", "file", "at", "subject"),
    [
        ("v1.3-conflict", 1, "core/alloc.cpp", "core/alloc.cpp", "Change the line"),
        ("v1.4-inserted", 1, "core/alloc.cpp", "core/alloc.cpp", "Insert a line"),
        ("v1.2-merged", 1, "core/alloc.cpp", "core/alloc.cpp", "Change a neighbour"),
        ("v1.5-renamed", 2, "python/api.py", "python/memory.py", "Rename the file"),
        ("v1.6-deleted", 2, "python/windows.py", "", "Remove the file"),
    ],
)
def test_the_commit_that_is_why_is_named(
    drift: World,
    capsys: pytest.CaptureFixture[str],
    tag: str,
    patch: int,
    file: str,
    at: str,
    subject: str,
) -> None:
    rows = surveyed(capsys, "v1.0", "--source", str(drift.upstream), "--tags", tag)[tag]
    (found,) = rows[patch]["files"]
    assert (found["path"], found["at"]) == (file, at)
    commit = found["commit"] or found["broken"][0]["commit"]
    assert commit["id"] == commit_called(drift, tag, subject)
    assert run(["survey", "v1.0", "--source", str(drift.upstream), "--tags", tag]) == 0
    shown = capsys.readouterr().out
    assert subject in shown and commit["id"][:12] in shown and file in shown


def test_back_to_an_older_tag_the_commit_is_on_the_way(
    drift: World, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = surveyed(capsys, "v1.0", "--source", str(drift.upstream), "--tags", "v0.9")["v0.9"]
    (broken,) = rows[1]["files"][0]["broken"]
    assert broken["commit"]["subject"] == "Release 1.0"
    assert broken["conflict"]["hunk"] == 1
    assert "`int line20 = 20;`" in broken["conflict"]["why"]


@pytest.mark.parametrize("tag", ["v1.3-conflict", "v1.5-renamed", "v1.6-deleted"])
def test_without_history_no_commit_is_named(
    drift: World, capsys: pytest.CaptureFixture[str], tag: str
) -> None:
    """Each tag alone, as `git clone --depth 1` has it: a rename is known by the file's content."""
    shallow = drift.folder / "shallow"
    shallow.mkdir()
    plain_git(shallow, "init", "-q")
    for name in ("v1.0", tag):
        where = f"refs/tags/{name}:refs/tags/{name}"
        plain_git(shallow, "fetch", "-q", "--depth=1", drift.upstream.as_uri(), where)
    known = surveyed(capsys, "v1.0", "--source", str(drift.upstream), "--tags", tag)
    found = surveyed(capsys, "v1.0", "--source", str(shallow), "--tags", tag)
    assert states(found[tag]) == states(known[tag])
    (file,) = next(row["files"] for row in found[tag] if row["files"])
    (whole,) = next(row["files"] for row in known[tag] if row["files"])
    assert file["commit"] is None and file["at"] == whole["at"]
    assert all(broken["commit"] is None for broken in file["broken"])


def test_nothing_is_merged_without_the_pre_image(
    drift: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the tag's own code is not at hand, a merge would only be a guess."""
    alone = drift.folder / "alone"
    alone.mkdir()
    plain_git(alone, "init", "-q")
    tag = "refs/tags/v1.2-merged:refs/tags/v1.2-merged"
    plain_git(alone, "fetch", "-q", "--depth=1", drift.upstream.as_uri(), tag)
    found = surveyed(capsys, "v1.0", "--source", str(alone), "--tags", "v1.2-merged")
    assert states(found["v1.2-merged"]) == ["applied", "conflict", "applied"]


def test_a_patch_on_a_file_that_needs_a_person_is_not_reached(
    drift: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third patch touches the file that the second one does not fit."""
    clone = drift.clone("develop")
    plain_git(clone, "am", "-q", "--keep-cr", *map(str, (p.path for p in patches(drift))))
    text = (clone / "core/alloc.cpp").read_text().replace("line21 = 21", "line21 = 22")
    drift.commit(clone, {"core/alloc.cpp": text}, "Touch it again")
    made = plain_git(clone, "format-patch", "-1", "--full-index", "--stdout") + "\n"
    (drift.tag_file.parent / "0003-Touch-it-again.patch").write_text(made)
    found = surveyed(capsys, "v1.0", "--source", str(drift.upstream), "--tags", "v1.[23]*")
    assert states(found["v1.3-conflict"]) == ["applied", "conflict", "applied", "not reached"]
    # A merge has what the patch before leaves, which no repository holds.
    assert states(found["v1.2-merged"]) == ["applied", "merged", "applied", "moved"] or (
        states(found["v1.2-merged"]) == ["applied", "merged", "applied", "merged"]
    )


def test_an_empty_patch(drift: World, capsys: pytest.CaptureFixture[str]) -> None:
    patch = patches(drift)[1].path
    patch.write_text(patch.read_text().split("\ndiff --git ")[0] + "\n")
    found = surveyed(capsys, "v1.0", "--source", str(drift.upstream), "--tags", "v1.1*")
    assert states(found["v1.1-moved"]) == ["applied", "empty", "applied"]


def test_git_is_not_asked_of_a_damaged_patch_as_a_whole(
    drift: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Git 2.39 aborts of it; `verify` names it."""
    patch = patches(drift)[0].path
    data = patch.read_bytes()
    assert b"\nnew file mode" in data
    patch.write_bytes(data.replace(b"\nnew file mode", b"\nFrom x\nnew file mode"))
    found = surveyed(capsys, "v1.0", "--source", str(drift.upstream), "--tags", "v1.0")
    assert states(found["v1.0"])[0] == "deleted"


def test_without_a_tag_every_series_on_what_is_at_hand(
    drift: World, console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["survey"]) == 6
    assert "at hand" in capsys.readouterr().err
    fetch(drift.target, "git", None, console)
    assert {tag: states(rows) for tag, rows in surveyed(capsys).items()} == {"v1.0": APPLIED}


def test_a_partial_clone_is_only_read(drift: World, console: Console) -> None:
    """A tag whose files it lacks is named, and nothing is fetched for it."""
    plain_git(drift.upstream, "config", "uploadpack.allowFilter", "true")
    partial = drift.folder / "partial"
    words = ("clone", "-q", "--filter=blob:none", drift.upstream.as_uri(), str(partial))
    plain_git(drift.folder, *words)
    before = snapshot(partial)
    done = survey(drift.target, ["v1.0", "v1.3-conflict"], partial, console)
    assert {row.tag for row in done.rows} == {"v1.0"}
    assert "lacks the content of core/alloc.cpp" in done.missing["v1.3-conflict"]
    assert snapshot(partial) == before
    advice = re.search(r"run `git ([^`]+)` there", done.missing["v1.3-conflict"])
    assert advice
    plain_git(partial, *advice[1].split())
    done = survey(drift.target, ["v1.0", "v1.3-conflict"], partial, console)
    assert {row.tag for row in done.rows} == {"v1.0", "v1.3-conflict"}


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["v9.9"], "none of v9.9 is at hand"),
        (["v9.*"], r"no tag of alpha .* matches it"),
    ],
)
def test_what_the_clone_has_not(
    drift: World, console: Console, tags: list[str], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        survey(drift.target, tags, drift.upstream, console)


def test_one_of_two_that_is_not_there_is_told(
    drift: World, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = ("--tags", "v1.1-moved", "--tags", "v9.9")
    assert run(["survey", "v1.0", "--source", str(drift.upstream), *tags]) == 0
    assert "v9.9 was not looked at" in capsys.readouterr().out


def test_what_is_no_name_and_no_clone(drift: World, console: Console) -> None:
    with pytest.raises(UsageError, match="no tag is called so"):
        survey(drift.target, ["v1.0\nHEAD"], drift.upstream, console)
    other = drift.folder / "other"
    other.mkdir()
    with pytest.raises(SourceError, match="no git repository"):
        survey(drift.target, ["v1.0"], other, console)


def patches(world: World) -> Any:
    return series_of(world.target).patches
