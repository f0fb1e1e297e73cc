# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import lmsbuild_processes
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lmsbuild_world import UPSTREAM, World, hook_files, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base import log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    BusyError,
    ConfigError,
    ConflictError,
    MismatchError,
    TreeStateError,
    UnfinishedError,
    UsageError,
)
from lmsbuild.base.git import Git, Repository, open_at
from lmsbuild.base.hashing import git_blob
from lmsbuild.base.transaction import PROJECT_STATE, FileTransaction, Step, undo_files
from lmsbuild.checkout import made, switch
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.checkout import fetch
from lmsbuild.checkout.refresh import RUNTIME_SUBJECT, refresh, runtime_patch
from lmsbuild.checkout.verify import verify
from lmsbuild.series.format import format_patches, mail_of
from lmsbuild.series.series import patch_files, series_of


def snapshot(world: World) -> dict[str, bytes]:
    root = world.project.patches
    return {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file()}


def test_round_trip_gives_the_same_bytes(world: World, console: Console) -> None:
    before = snapshot(world)
    clone = world.clone()
    apply(world.target, clone, console)
    done = refresh(world.target, clone)
    assert not done.written and not done.removed
    assert snapshot(world) == before


def test_records_the_pre_image_of_upstream_files_only(world: World) -> None:
    touched = {name for files in hook_files().values() for name in files} & set(UPSTREAM)
    expected = {name: git_blob(UPSTREAM[name].encode()) for name in touched}
    assert world.target.tag.preimage == expected


def test_edit_in_lms_changes_the_runtime_patch_alone(world: World) -> None:
    hooks = {n: c for n, c in snapshot(world).items() if "/v1.0/" in n}
    write(world.project.root, {"lms/core/engine.cpp": "int engine() { return 7; }\n"})
    done = refresh(world.target, None)
    assert len(done.written) == 1 and done.written[0].startswith("runtime/")
    assert {n: c for n, c in snapshot(world).items() if "/v1.0/" in n} == hooks


def test_dry_run_writes_nothing(world: World) -> None:
    write(world.project.root, {"lms/core/engine.cpp": "changed\n"})
    before = snapshot(world)
    assert refresh(world.target, None, dry_run=True).written
    assert snapshot(world) == before


@pytest.mark.parametrize("name", ["v1.0", "runtime"])
def test_writes_through_no_link(world: World, applied: Path, name: str) -> None:
    """As `port` and `add`: a link leads anywhere."""
    place, outside = world.project.patches / "alpha" / name, world.folder / "outside"
    place.rename(outside)
    place.symlink_to(outside)
    before = {file: file.read_bytes() for file in outside.iterdir()}
    edited = UPSTREAM["core/alloc.cpp"].replace("line20 = 20", "line20 = 22")
    world.commit(applied, {"core/alloc.cpp": edited}, "Edit")
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="is no folder; remove it"):
            refresh(world.target, applied, dry_run=dry_run)
    assert {file: file.read_bytes() for file in outside.iterdir()} == before


def test_renamed_hook_removes_the_old_patch(world: World, console: Console) -> None:
    clone = world.clone()
    apply(world.target, clone, console)
    plain_git(clone, "commit", "-q", "--amend", "-m", "Another name")
    done = refresh(world.target, clone)
    assert [name for name in done.removed if "Show-it" in name]
    assert [name for name in done.written if "Another-name" in name]


ENGINE = "lms/core/engine.cpp"


def lms(world: World, name: str = ENGINE) -> str:
    return (world.project.root / name).read_text()


@pytest.fixture
def applied(world: World, console: Console) -> Path:
    """A checkout with the series."""
    clone = world.clone()
    apply(world.target, clone, console)
    return clone


def ours(clone: Path, name: str = "core/lms/engine.cpp") -> str:
    return (clone / name).read_text()


def test_runtime_edits_go_into_lms(world: World, applied: Path) -> None:
    hooks = {n: c for n, c in snapshot(world).items() if "/v1.0/" in n}
    edited = {"core/lms/engine.cpp": "int engine() { return 8; }\n", "core/lms/more.h": "more\n"}
    world.commit(applied, edited, "Edit the engine")
    plain_git(applied, "rm", "-q", "core/lms/engine.h")
    plain_git(applied, "commit", "-q", "-m", "Remove the header")
    done = refresh(world.target, applied)
    assert done.runtime == ["lms/core/engine.cpp", "lms/core/engine.h", "lms/core/more.h"]
    assert lms(world) == edited["core/lms/engine.cpp"] and lms(world, "lms/core/more.h") == "more\n"
    assert not (world.project.root / "lms/core/engine.h").exists()
    assert [note.split("(")[1].split(")")[0] for note in done.notes] == [
        "Edit the engine", "Remove the header",
    ]  # fmt: skip
    assert {n: c for n, c in snapshot(world).items() if "/v1.0/" in n} == hooks
    assert (
        runtime_patch(world.target)[done.written[0].split("/")[1]]
        == (world.target.runtime_patches.parent / done.written[0]).read_bytes()
    )


def test_the_last_file_that_the_layout_names_stays(world: World, applied: Path) -> None:
    """Without it the project could not be read any more."""
    before = snapshot(world)
    plain_git(applied, "rm", "-q", "core/lms/engine.h")
    plain_git(applied, "commit", "-q", "-m", "Remove the header")
    with pytest.raises(TreeStateError, match=r"remove the last file \*\.h of core/lms"):
        refresh(world.target, applied)
    assert snapshot(world) == before and (world.project.root / "lms/core/engine.h").exists()


def test_a_framework_that_shares_the_edited_files_is_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    root = world.project.root
    shutil.copytree(root / "patches/alpha", root / "patches/beta")
    name = "alpha:v1.0"
    assert run(["refresh", name, "--runtime"]) == 0
    assert "beta" not in capsys.readouterr().out
    write(root, {"lms/core/engine.cpp": "int engine() { return 7; }\n"})
    for _ in range(2):
        assert run(["refresh", name, "--runtime"]) == 0
        name, told = "beta:v1.0", capsys.readouterr().out
        assert ("lmsbuild refresh beta:v1.0 --runtime" in told) == (_ == 0)
        assert "as it should be" not in told


def test_a_mixed_commit_is_split(world: World, applied: Path, console: Console) -> None:
    world.commit(
        applied,
        {"core/lms/engine.cpp": "int engine() { return 9; }\n", "core/alloc.h": "#pragma once\n"},
        "Change both",
    )
    done = refresh(world.target, applied)
    assert "is split: core/lms/engine.cpp into lms/" in done.notes[0]
    patch = next(p for p in series_of(world.target).patches if p.subject == "Change both")
    assert [change.path for change in patch.changes] == ["core/alloc.h"]
    assert "core/alloc.h" in world.target.tag.preimage
    again = world.clone("again")
    apply(world.target, again, console)
    assert plain_git(again, "rev-parse", "HEAD^{tree}") == plain_git(
        applied, "rev-parse", "HEAD^{tree}"
    )


@pytest.mark.default
def test_an_amended_runtime_commit_is_taken_too(world: World, applied: Path) -> None:
    """`git commit --fixup` and an autosquash, as many do."""
    write(applied, {"core/lms/engine.cpp": "int engine() { return 6; }\n"})
    runtime = plain_git(applied, "rev-parse", f":/^{RUNTIME_SUBJECT}")
    plain_git(applied, "commit", "-q", "-a", f"--fixup={runtime}")
    plain_git(
        applied, "-c", "sequence.editor=true", "rebase", "-q", "-i", "--autosquash", f"{runtime}~1"
    )
    assert len(plain_git(applied, "rev-list", "v1.0..HEAD").split()) == 3
    done = refresh(world.target, applied)
    assert (done.runtime, done.notes) == ([ENGINE], [])
    assert lms(world) == ours(applied)


@pytest.mark.parametrize("same", [False, True])
def test_edits_on_both_sides(world: World, applied: Path, same: bool) -> None:
    world.commit(applied, {"core/lms/engine.cpp": "theirs\n"}, "Edit the engine")
    write(world.project.root, {ENGINE: "theirs\n" if same else "ours\n"})
    before = snapshot(world)
    if same:
        assert refresh(world.target, applied).runtime == []
        return
    with pytest.raises(ConflictError, match=r"core/lms/engine\.cpp changed both") as failure:
        refresh(world.target, applied)
    assert failure.value.details["files"] == ["core/lms/engine.cpp"]
    assert (snapshot(world), lms(world)) == (before, "ours\n")


def test_edits_of_different_files_are_joined(world: World, applied: Path) -> None:
    world.commit(applied, {"core/lms/engine.cpp": "theirs\n"}, "Edit the engine")
    write(world.project.root, {"lms/core/engine.h": "ours\n"})
    assert refresh(world.target, applied).runtime == [ENGINE]
    assert (lms(world), lms(world, "lms/core/engine.h")) == ("theirs\n", "ours\n")


@pytest.mark.default
def test_an_older_checkout_gives_way(world: World, applied: Path, console: Console) -> None:
    """The project moved on (a pull): a checkout without commits of its own takes nothing back."""
    other = world.clone("other")
    apply(world.target, other, console)
    world.commit(other, {"core/alloc.h": "#pragma once\n"}, "Another hook")
    write(world.project.root, {ENGINE: "newer\n"})
    refresh(world.target, other)
    before = snapshot(world)
    done = refresh(world.target, applied)
    assert not (done.written or done.removed or done.runtime)
    assert (snapshot(world), lms(world)) == (before, "newer\n")
    (note,) = done.notes
    assert "left as they are" in note and "lmsbuild apply v1.0" in note


def test_what_was_left_as_it_is_may_not_be_as_it_should(
    world: World, applied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next(world.target.tag_patches.glob("0001-*")).unlink()
    assert run(["refresh", "v1.0", "--from", str(applied)]) == 0
    told = capsys.readouterr().out
    assert "left as they are" in told and "as it should be" not in told


@pytest.mark.default
def test_hooks_that_changed_on_both_sides(world: World, applied: Path, console: Console) -> None:
    other = world.clone("other")
    apply(world.target, other, console)
    world.commit(other, {"core/alloc.h": "#pragma once\n"}, "Another hook")
    refresh(world.target, other)
    before = snapshot(world)
    world.commit(applied, {"python/api.py": "def memory():\n    return 7\n"}, "Mine")
    with pytest.raises(ConflictError, match="cherry-pick"):
        refresh(world.target, applied)
    assert snapshot(world) == before


@pytest.mark.default
class Killed(BaseException):
    pass


def test_no_command_takes_patches_that_are_written_in_part(
    world: World, applied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(world.project.root, {"lms/core/engine.cpp": "int engine() { return 2; }\n"})
    world.commit(applied, {"core/alloc.h": "#pragma once\nint more();\n"}, "Declare more")
    real = FileTransaction._forward

    def forward(self: FileTransaction, number: int, step: Step) -> None:
        if number == 1:
            raise Killed
        real(self, number, step)

    with monkeypatch.context() as patch:
        patch.setattr(FileTransaction, "_forward", forward)
        patch.setattr(FileTransaction, "roll_back", lambda self: None)
        with pytest.raises(Killed):
            refresh(world.target, applied)
    takers = (
        ["export", "v1.0", "-o", str(world.folder / "series.patch")],
        ["apply", "v1.0", "--into", str(world.clone("other"))],
        ["verify", "v1.0"],
        ["refresh", "v1.0", "--dry-run"],
    )
    for words in takers:
        assert run(words) == UnfinishedError.exit_code, words
    assert run(["status"]) == run(["abort"]) == run(takers[0]) == 0


def test_refresh_reads_what_is_there_when_it_writes(
    world: World, applied: Path, console: Console
) -> None:
    """Not the tag.toml from before another command had the lock."""
    more = UPSTREAM["core/alloc.h"] + "int more();\n"
    world.commit(applied, {"core/alloc.h": more}, "Declare more")
    refresh(world.target, applied)
    before = world.target
    undo_files(world.project.root, world.project.root / PROJECT_STATE)
    refresh(before, applied)
    assert "core/alloc.h" in world.target.tag.preimage
    assert not verify(world.target, console).problems


@pytest.mark.parametrize("what", ["lms/core/engine.cpp", "a patch", "tag.toml"])
def test_what_is_saved_meanwhile_is_kept(
    world: World, applied: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """After it was read, and before it is written anew."""
    plain_git(applied, "reset", "-q", "--hard", "HEAD~1")  # the last hook goes
    world.commit(applied, {"core/lms/engine.cpp": "int engine() { return 2; }\n"}, "Return 2")
    world.commit(applied, {"core/alloc.h": "#pragma once\nint more();\n"}, "Declare more")
    last = patch_files(world.target.tag_patches)[-1]
    found = {"a patch": last, "tag.toml": world.tag_file}.get(what, world.project.root / what)
    before = snapshot(world)
    stage = FileTransaction._stage

    def late(self: FileTransaction) -> None:
        with found.open("a") as file:
            file.write("# mine\n")
        stage(self)

    monkeypatch.setattr(FileTransaction, "_stage", late)
    with pytest.raises(TreeStateError, match=f"{found.name} changed meanwhile; run the command"):
        refresh(world.target, applied)
    assert found.read_text().endswith("# mine\n")
    changed = {name for name, content in snapshot(world).items() if content != before[name]}
    assert changed <= {f"alpha/v1.0/{found.name}"}


def test_what_was_refreshed_is_noted_before_another_refreshes(
    world: World, applied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the note would be of commits that the patch files have no more."""
    world.commit(applied, {"core/alloc.h": "#pragma once\nint more();\n"}, "Declare more")
    codes: list[int] = []
    recorded = switch.recorded

    def late(user: Repository, name: str) -> str:
        words = ("refresh", "v1.0", "--from", str(applied))
        codes.append(lmsbuild_processes.run(*words)[0])
        return recorded(user, name)

    monkeypatch.setattr("lmsbuild.checkout.refresh.recorded", late)
    refresh(world.target, applied)
    assert codes == [BusyError.exit_code]


def test_refresh_after_refresh(world: World, applied: Path) -> None:
    for number in range(2):
        world.commit(applied, {"core/alloc.h": f"// {number}\n"}, f"Change {number}")
        world.commit(applied, {"core/lms/engine.cpp": f"// {number}\n"}, "Edit")
        done = refresh(world.target, applied)
        assert [name for name in done.written if f"Change-{number}" in name]
        assert done.runtime == [ENGINE]
    assert not refresh(world.target, applied).written


@pytest.mark.default
def test_apply_goes_on_from_refreshed_commits(
    world: World, applied: Path, console: Console
) -> None:
    """Hook edited and refreshed, then lms/: the commits are in the patches, so apply may take
    them off; after `undo --refresh` they are not."""
    world.commit(applied, {"core/alloc.h": "// hook\n"}, "Another hook")
    before = snapshot(world)
    refresh(world.target, applied)
    write(world.project.root, {ENGINE: "newer\n"})
    refresh(world.target, None)
    done = apply(world.target, applied, console)
    assert done.replaced and ours(applied) == "newer\n"
    assert ours(applied, "core/alloc.h") == "// hook\n"
    world.commit(applied, {"core/alloc.h": "// changed\n"}, "One more")
    head = plain_git(applied, "rev-parse", "HEAD")
    refresh(world.target, applied)
    for name, content in before.items():
        (world.project.patches / name).write_bytes(content)
    for patch in patch_files(world.target.tag_patches)[2:]:
        patch.unlink()
    with pytest.raises(TreeStateError):
        apply(world.target, applied, console)
    assert plain_git(applied, "rev-parse", "HEAD") == head


@pytest.mark.default
@pytest.mark.parametrize("seed", range(2))
def test_any_line_of_commits_comes_back(
    world: World, applied: Path, console: Console, seed: int
) -> None:
    """Random commits, amends and refreshes: the series gives the checkout's own tree."""
    chance = random.Random(seed)
    editable = ["core/alloc.cpp", "core/alloc.h", "python/api.py", "core/lms/engine.cpp"]
    for number in range(8):
        files = chance.sample(editable, chance.randint(1, 3))
        for name in files:
            text = (applied / name).read_text() if (applied / name).exists() else ""
            lines = text.splitlines(keepends=True)
            lines.insert(chance.randint(0, len(lines)), f"// {number}\n")
            write(applied, {name: "".join(lines)})
        if chance.random() < 0.4:
            new = chance.choice(["core/lms/new{}.h", "core/new{}.h"]).format(number)
            write(applied, {new: f"// {number}\n"})
            editable.append(new)
        if chance.random() < 0.2 and len(editable) > 5:
            (applied / editable.pop()).unlink(missing_ok=True)
        plain_git(applied, "add", "-A")
        amend = ["--amend"] if number and chance.random() < 0.3 else []
        plain_git(applied, "commit", "-q", "--allow-empty", *amend, "-m", f"Change {number}")
        if chance.random() < 0.4:
            refresh(world.target, applied)
    refresh(world.target, applied)
    again = world.clone("again")
    assert verify(world.target, console, again).problems == []
    apply(world.target, again, console)
    tree = plain_git(applied, "rev-parse", "HEAD^{tree}")
    assert plain_git(again, "rev-parse", "HEAD^{tree}") == tree
    assert lms(world) == ours(applied)
    assert not refresh(world.target, again).written


def test_a_damaged_patch_is_written_anew(world: World, applied: Path) -> None:
    before = snapshot(world)
    for patch in series_of(world.target).patches:
        content = patch.path.read_bytes()
        patch.path.write_bytes(content.replace(b"index ", b"index x", 1) + b"-- \n2.39\n")
    assert len(refresh(world.target, applied).written) == 3
    assert snapshot(world) == before


@pytest.mark.default
def processes(world: World, applied: Path) -> int:
    """How many a refresh starts, git's version apart."""
    log.start(["refresh"])
    try:
        refresh(world.target, applied)
        file = log.path()
        assert file is not None
        return file.read_text().count("$ git ")
    finally:
        log.stop()


@pytest.mark.parametrize("change", ["nothing", "git", "tool", "note"])
def test_what_was_made_of_commits_is_not_made_again(
    world: World, applied: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first = processes(world, applied)
    before = snapshot(world)
    if change == "git":
        monkeypatch.setattr(made, "version", lambda: "git version 3")
    if change == "tool":
        monkeypatch.setattr(made, "_tool", lambda: "another")
    if change == "note":
        (world.project.work / ".made.json").write_text("[")
    again = processes(world, applied)
    assert snapshot(world) == before
    assert again <= 8 < first if change == "nothing" else again > 8
    assert processes(world, applied) <= 8


@pytest.mark.parametrize("part", ["a hook", "the runtime"])
def test_a_patch_that_was_edited_is_not_what_was_made(
    world: World, applied: Path, part: str
) -> None:
    refresh(world.target, applied)
    before = snapshot(world)
    folder = world.target.tag_patches if part == "a hook" else world.target.runtime_patches
    patch = patch_files(folder)[-1]
    text = patch.read_text()
    patch.write_text(re.sub(r"^\+([a-z].*)$", r"+ \1", text, count=1, flags=re.M))
    assert patch.read_text() != text
    assert refresh(world.target, applied).written == [f"{folder.name}/{patch.name}"]
    assert snapshot(world) == before


def test_clone_that_was_patched_by_git_alone(world: World) -> None:
    """No note of `apply`: the runtime commit itself says what the checkout began with."""
    clone = world.clone()
    plain_git(
        clone, "am", "-q", "--keep-cr", *(str(p.path) for p in series_of(world.target).patches)
    )
    assert not refresh(world.target, clone).written
    world.commit(clone, {"core/lms/engine.cpp": "theirs\n"}, "Edit the engine")
    assert refresh(world.target, clone).runtime == [ENGINE]
    old = world.clone("old")
    patches = [str(p.path) for p in series_of(world.target).patches]
    plain_git(old, "am", "-q", "--keep-cr", *patches)
    write(world.project.root, {ENGINE: "newer\n"})
    refresh(world.target, None)
    with pytest.raises(ConflictError, match="engine"):
        refresh(world.target, old)


def _merge(clone: Path) -> None:
    plain_git(clone, "checkout", "-q", "-b", "side", "HEAD~1")
    (clone / "side.txt").write_text("side\n")
    plain_git(clone, "add", "side.txt")
    plain_git(clone, "commit", "-q", "-m", "Side")
    plain_git(clone, "merge", "-q", "-m", "Merge", "-")


def _unapplied(clone: Path) -> None:
    plain_git(clone, "reset", "-q", "--hard", "v1.0")


def _runtime_with_hook(clone: Path) -> None:
    plain_git(clone, "reset", "-q", "--hard", "HEAD~2")
    (clone / "core/alloc.h").write_text("// hook\n")
    plain_git(clone, "commit", "-q", "-a", "--amend", "--no-edit")


@pytest.mark.default
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda c: (c / "core/alloc.h").write_text("dirty\n"), r"not clean \(core/alloc\.h\)"),
        (lambda c: (c / "new.txt").write_text("new\n"), r"not clean \(new\.txt\)"),
        (lambda c: (c / ".git/rebase-merge").mkdir(), "rebase is under way"),
        (_merge, "is a merge"),
        (_unapplied, "not applied there"),
        (_runtime_with_hook, r"also changes core/alloc\.h"),
    ],
)
def test_checkouts_that_are_not_fit(
    world: World, applied: Path, spoil: Callable[[Path], object], words: str
) -> None:
    before = snapshot(world)
    spoil(applied)
    with pytest.raises(TreeStateError, match=words):
        refresh(world.target, applied)
    assert snapshot(world) == before


@pytest.mark.default
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda c: (c / "core/link").symlink_to("../../alloc.h"), "leads out of the tree"),
        (lambda c: (c / "core/link").symlink_to("/etc/passwd"), "leads out of the tree"),
        (lambda c: (c / "core/link").symlink_to("lms/../../.."), "leads out of the tree"),
        (lambda c: (c / "core/link").symlink_to("../.git/config"), "what is git's"),
        (
            lambda c: ((c / "core/alloc.h").unlink(), (c / "core/alloc.h").symlink_to("alloc.cpp")),
            "becomes a link",
        ),
        (lambda c: (c / 'core/a"b').write_text("a\n"), "needs quotes"),
        (lambda c: (c / "core/lms/engine.cpp").chmod(0o755), "ordinary file"),
    ],
)
def test_commits_that_no_patch_can_hold(
    world: World, applied: Path, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(applied)
    plain_git(applied, "add", "-A", "-f")
    plain_git(applied, "commit", "-q", "-m", "Odd")
    before = snapshot(world)
    with pytest.raises(TreeStateError, match=words):
        refresh(world.target, applied)
    assert snapshot(world) == before


@pytest.mark.parametrize("word", ["fixup!", "squash!", "amend!"])
def test_a_commit_that_is_meant_for_another_is_named(
    world: World, applied: Path, word: str
) -> None:
    world.commit(applied, {"core/alloc.h": "// hook\n"}, f"{word} Hook the allocator")
    before = snapshot(world)
    with pytest.raises(TreeStateError, match=rf"\({word} Hook the allocator\) .*autosquash"):
        refresh(world.target, applied)
    assert snapshot(world) == before


@pytest.mark.parametrize(
    "name", ["core/new\nline.txt", os.fsdecode(b"core/caf\xe9.txt"), "-option.txt"]
)
def test_a_name_that_no_patch_can_hold(
    world: World, applied: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else of the checkout suffers: it can be dropped, and looked at, and put back."""
    (applied / name).write_text("x\n")
    plain_git(applied, "add", "-A")
    plain_git(applied, "commit", "-qm", "Add an odd name")
    on = ["v1.0", "--into", str(applied)]
    with pytest.raises(TreeStateError, match="rename the file"):
        refresh(world.target, applied)
    assert run(["squash", "v1.0", "1", "3", "--into", str(applied)]) == TreeStateError.exit_code
    assert "rename the file" in capsys.readouterr().err
    for command in ("status", "drop", "status", "undo", "status"):
        assert run([command, *on, *(["3"] if command == "drop" else [])]) == 0
    assert (applied / name).read_text() == "x\n"


def test_a_name_that_looks_like_two(
    world: World, applied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`diff --git a/A b/B b/A b/B` is of the one file A b/B."""
    world.commit(applied, {"core/a b/c b/d.txt": "one\n"}, "Add a folder\n\nBecause.")
    assert run(["refresh", "v1.0", "--from", str(applied)]) == 0
    for command in ("verify", "export"):
        assert run([command, "v1.0"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run(["map", "v1.0", "--file", "core/a b/c b/d.txt"]) == 0
    assert "@@ -0,0 +1 @@" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b'{"a": 1, "a": 2}', None])
def test_a_note_of_what_was_made_that_is_none(
    world: World, applied: Path, content: bytes | None
) -> None:
    note = world.project.work / ".made.json"
    note.unlink(missing_ok=True)
    note.parent.mkdir(exist_ok=True)
    if content is None:
        os.mkfifo(note)
    else:
        note.write_bytes(content)
    assert refresh(world.target, applied).written == []
    assert note.is_file() and json.loads(note.read_bytes())


def test_a_patch_that_never_ends(world: World, applied: Path) -> None:
    assert refresh(world.target, applied).written == []
    os.mkfifo(world.target.tag_patches / "0003-pipe.patch")
    with pytest.raises(ConfigError, match=r"0003-pipe\.patch cannot be used because"):
        refresh(world.target, applied)


def test_what_is_off_the_checkout_is_no_reason_to_refuse(world: World, applied: Path) -> None:
    """A commit that an older lmsbuild took, and that this one would not."""
    (applied / os.fsdecode(b"core/caf\xe9.txt")).write_text("x\n")
    plain_git(applied, "add", "-A")
    plain_git(applied, "commit", "-qm", "Add an odd name")
    plain_git(applied, "update-ref", "refs/worktree/lmsbuild/refreshed", "HEAD")
    plain_git(applied, "reset", "-q", "--hard", "HEAD~1")
    assert refresh(world.target, applied).written == []


def test_an_empty_commit_is_named(world: World, applied: Path) -> None:
    plain_git(applied, "commit", "-q", "--allow-empty", "-m", "Nothing at all")
    done = refresh(world.target, applied)
    assert [note for note in done.notes if "(Nothing at all) changes nothing" in note]
    assert not done.written


def test_every_refusal_is_told_at_once(world: World, applied: Path) -> None:
    (applied / "core/out").symlink_to("/etc/passwd")
    (applied / 'core/a"b').write_text("a\n")
    plain_git(applied, "add", "-A", "-f")
    plain_git(applied, "commit", "-q", "-m", "Odd\n\n---\nrest")
    world.commit(applied, {"core/alloc.h": "// hook\n"}, "fixup! Odd")
    (applied / "new.txt").write_text("new\n")
    before = snapshot(world)
    with pytest.raises(TreeStateError) as caught:
        refresh(world.target, applied)
    words = ("not clean (new.txt)", "the link core/out", "needs quotes", "at the line '---'",
             "(fixup! Odd)")  # fmt: skip
    assert [word for word in words if word not in caught.value.message] == []
    assert len(caught.value.message.splitlines()) == len(words)
    assert snapshot(world) == before


def test_conflicts_of_runtime_and_hooks_are_told_at_once(
    world: World, applied: Path, console: Console
) -> None:
    world.commit(applied, {"core/lms/engine.cpp": "theirs\n"}, "Theirs")
    world.commit(applied, {"core/alloc.h": "// hook\n"}, "Another hook")
    write(world.project.root, {"lms/core/engine.cpp": "ours\n"})
    patch_files(world.target.tag_patches)[-1].unlink()
    with pytest.raises(ConflictError) as caught:
        refresh(world.target, applied)
    said = caught.value.message.splitlines()
    assert len(said) == 2 and "core/lms/engine.cpp" in said[0] and "the hooks changed" in said[1]


@pytest.mark.default
@pytest.mark.parametrize(
    "body",
    ["---\nrest", "diff --git a b", "From x Mon Jan 1 00:00:00 2026", "From: a@example.invalid",
     "Index: core/alloc.h"],
)  # fmt: skip
def test_messages_that_git_am_would_cut(world: World, applied: Path, body: str) -> None:
    world.commit(applied, {"core/alloc.h": "// new\n"}, f"Odd\n\n{body}\n\nMore of it")
    with pytest.raises(TreeStateError, match=r"\(Odd\) cannot become a patch"):
        refresh(world.target, applied)


def test_refuses_a_checkout_without_the_runtime(world: World) -> None:
    with pytest.raises(TreeStateError, match="runtime"):
        refresh(world.target, world.clone())


def test_refuses_the_checkout_of_another_tag(world: World) -> None:
    clone = world.clone()
    world.commit(clone, {"python/api.py": "other = 1\n"}, "Release 2.0")
    patches = series_of(world.target).patches
    plain_git(clone, "am", "-q", "--keep-cr", *(str(p.path) for p in patches[:2]))
    with pytest.raises(MismatchError, match=r"python/api\.py"):
        refresh(world.target, clone)


def test_first_hooks_of_a_new_tag(world: World, console: Console) -> None:
    """A tag that has a tag.toml, and no patches and no blob ids yet."""
    for patch in patch_files(world.target.tag_patches):
        patch.unlink()
    toml = world.tag_file
    text = toml.read_text()
    toml.write_text(text[: text.index("[preimage]")])
    clone = world.clone()
    apply(world.target, clone, console)
    world.commit(clone, {"core/alloc.h": "// hook\n"}, "The first hook")
    done = refresh(world.target, clone)
    assert done.written == ["v1.0/0001-The-first-hook.patch"]
    assert list(world.target.tag.preimage) == ["core/alloc.h"]
    assert toml.read_text().startswith(text[: text.index("[preimage")])
    assert verify(world.target, console, clone).checks[0].state == "ok"


@pytest.mark.parametrize("more", ["\n# the end\n", "\n[images.test]\nbase = {}  # none\n"])
def test_what_refresh_writes_into_a_tags_file(world: World, applied: Path, more: str) -> None:
    """Blob ids by path, whatever was there in whatever order; all else and comments stay."""
    toml = world.tag_file
    text = toml.read_text().replace('"python/api.py"', '# of the API\n"python/api.py"')
    text = text.replace("[overlay]", "# The one.\n[overlay]") + more
    before, head, rest = text.partition("[preimage]\n")
    lines = rest.partition("\n\n")[0].splitlines()
    last = lines.pop()
    toml.write_text(f"{before}{head}{last}\n\n" + "\n".join(lines) + f"\n{more}")
    world.commit(
        applied,
        {"core/alloc.h": "// hook\n", "core/CMakeLists.txt": UPSTREAM["core/CMakeLists.txt"]},
        "Change the touched files",
    )
    refresh(world.target, applied)
    blobs = world.target.tag.preimage
    assert list(blobs) == sorted(blobs) and "core/alloc.h" in blobs
    wanted = "".join(f'"{path}" = "{blob}"\n' for path, blob in blobs.items())
    wanted = wanted.replace('"python/api', '# of the API\n"python/api')
    assert toml.read_text() == before + head + wanted + more
    again = toml.read_bytes()
    refresh(world.target, applied)
    assert toml.read_bytes() == again


def test_command_finds_the_checkout(
    world: World, console: Console, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = fetch(world.target, "git", None, console).path
    apply(world.target, path, console)
    world.commit(path, {"core/alloc.h": "// hook\n"}, "Another hook")
    refs = plain_git(path, "for-each-ref")
    assert run(["refresh", "v1.0", "--runtime"]) == 0
    assert run(["refresh", "v1.0", "--dry-run"]) == 0
    assert "would be written: v1.0/0003-Another-hook.patch" in capsys.readouterr().out
    assert refs == plain_git(path, "for-each-ref")
    clone = world.clone()
    apply(world.target, clone, console)
    monkeypatch.chdir(clone / "core")
    assert run(["refresh", "v1.0"]) == 0
    assert "every patch is as it should be" in capsys.readouterr().out
    monkeypatch.chdir(world.folder)
    assert run(["refresh", "v1.0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == str(path)
    assert run(["refresh", "v1.0", "--runtime", "--from", str(path)]) == 2


def test_refuses_two_files_for_one_path(world: World) -> None:
    toml = world.framework_file
    toml.write_text(
        toml.read_text().replace(
            "[[layout]]",
            '[[layout]]\nsource = "lms/other"\ntarget = "core/lms"\n'
            'patterns = ["*.cpp"]\n\n[[layout]]',
            1,
        )
    )
    write(world.project.root, {"lms/other/engine.cpp": ""})
    with pytest.raises(ConfigError, match="both go to"):
        refresh(world.target, None)


def test_patch_without_full_ids_is_refused(world: World) -> None:
    patch = series_of(world.target).patches[1].path
    text = patch.read_bytes().decode()
    line = next(line for line in text.splitlines() if line.startswith("index "))
    patch.write_bytes(text.replace(line, "index 1234567..89abcde 100644").encode())
    with pytest.raises(ConfigError, match="full"):
        _ = series_of(world.target).before


def test_stable_over_places(world: World) -> None:
    assert runtime_patch(world.target) == runtime_patch(world.target)


lines = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), max_size=12
)


@pytest.mark.default
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(old=lines, new=lines, message=st.text("abc Z-[]:\n", min_size=1))
def test_any_text_survives_patch_and_am(
    tmp_path: Path, old: list[str], new: list[str], message: str
) -> None:
    """format-patch then am gives the same tree, whatever the bytes of a file."""
    before, after = "\n".join(old).encode(), "\n".join(new).encode()
    if before == after:
        after += b"\nmore"
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    root.mkdir()
    git = Git(root)
    git.run("init", "-q")
    commits: list[str] = []
    for content in (before, after):
        blob = git.run("hash-object", "-w", "--stdin", stdin=content).stdout.decode().strip()
        git.run("update-index", "--add", "--cacheinfo", f"100644,{blob},file")
        tree = git.text("write-tree")
        parents = ["-p", commits[-1]] if commits else []
        subject = f"Subject {message}".encode()
        made = git.run("commit-tree", tree, *parents, "-F", "-", stdin=subject)
        commits.append(made.stdout.decode().strip())
    git.run("reset", "-q", "--hard", commits[0])
    with open_at(root) as repository:
        assume(not mail_of(repository, commits[1]).hazard())
        made_patches = format_patches(repository, commits[0], commits[1])
    for content in made_patches.values():
        (root / ".git/the.patch").write_bytes(content)
        git.run("am", "-q", "--keep-cr", "--keep-non-patch", ".git/the.patch")
    assert git.text("rev-parse", "HEAD^{tree}") == git.text("rev-parse", f"{commits[1]}^{{tree}}")
