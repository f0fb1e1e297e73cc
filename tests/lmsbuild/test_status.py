# SPDX-License-Identifier: Apache-2.0
"""status, abort and undo as a user meets them; test_kill.py kills what they look at."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from lmsbuild_kill import Killer, snapshot
from lmsbuild_world import World, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base.errors import TreeStateError, UsageError
from lmsbuild.base.transaction import SWITCHING, FileTransaction
from lmsbuild.checkout.switch import CheckoutTransaction
from lmsbuild.series.series import patch_files


class Tool:
    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self.world = world
        self.capsys = capsys
        self.clone = world.clone()
        plain_git(self.clone, "checkout", "-q", "-b", "mine")

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        self.capsys.readouterr()
        assert run([*arguments, "--json"]) == code, self.capsys.readouterr().err
        return json.loads(self.capsys.readouterr().out)

    def on(self, name: str, *options: str, code: int = 0) -> Any:
        return self(name, "v1.0", "--into", str(self.clone), *options, code=code)

    def checkout(self) -> Any:
        return self.on("status")["checkouts"][0]


@pytest.fixture
def tool(world: World, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(world, capsys)


class Killed(BaseException):
    pass


def stop_in_the_switch(tool: Tool, monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    """As a kill would: after the first file was switched nothing more happens."""
    forward = FileTransaction._forward

    def once(self: FileTransaction, number: int, step: Any) -> None:
        if number:
            raise Killed
        forward(self, number, step)

    with monkeypatch.context() as patch:
        patch.setattr(FileTransaction, "_forward", once)
        patch.setattr(CheckoutTransaction, "_forward", once)
        patch.setattr(FileTransaction, "roll_back", lambda self: None)
        with pytest.raises(Killed):
            run([*command])


def test_a_whole_life(tool: Tool) -> None:
    before = snapshot(tool.clone)
    found = tool.checkout()
    assert found["branch"] == "refs/heads/mine"
    assert [patch["state"] for patch in found["patches"]] == ["not applied"] * 3
    assert found["next"] == "lmsbuild apply v1.0" and found["undo"] is None
    tool.on("apply")
    found = tool.checkout()
    assert [patch["state"] for patch in found["patches"]] == ["applied"] * 3
    assert found["next"] == "lmsbuild wheel v1.0"
    assert found["undo"] == "apply alpha:v1.0"
    assert tool.on("abort")["aborted"] == []
    assert tool.on("undo", "--dry-run")["command"] == "apply alpha:v1.0"
    assert tool.checkout() == found
    tool.on("undo")
    after = snapshot(tool.clone)
    assert {**after, "index file": ""} == {**before, "index file": ""}
    tool.on("undo", code=TreeStateError.exit_code)


def test_after_the_wheel_come_the_tests(tool: Tool, official: Path) -> None:
    """For as long as it is whole, and of the series as it is."""
    tool.on("apply")
    wheel = Path(tool.on("wheel", "--python", "3.11")["wheel"])
    whole = wheel.read_bytes()
    assert tool.checkout()["next"] == "lmsbuild test v1.0 (there is a wheel of it)"
    wheel.write_bytes(whole[:-1] + b"x")
    assert tool.checkout()["next"] == "lmsbuild wheel v1.0"
    wheel.write_bytes(whole)
    assert tool.checkout()["next"].startswith("lmsbuild test v1.0")
    toml = tool.world.tag_file
    toml.write_text(toml.read_text().replace('"-O1"', '"-O2"'))
    assert tool.checkout()["next"] == "lmsbuild wheel v1.0"


def test_what_lies_beside_a_wheel_is_nothing_to_it(tool: Tool, official: Path) -> None:
    """It is neither read for ever, nor believed, nor removed."""
    tool.on("apply")
    wheel = Path(tool.on("wheel", "--python", "3.11")["wheel"])
    os.mkfifo(wheel.with_name("0.whl.manifest.json"))
    wheel.with_name("1.whl.manifest.json").write_bytes(b"\xff[]")
    wheel.with_name("2.whl.manifest.json").mkdir()
    wheel.with_name("3.whl").write_text("mine")
    os.mkfifo(wheel.with_name("4.whl"))
    assert tool.checkout()["next"] == "lmsbuild test v1.0 (there is a wheel of it)"
    assert tool.on("wheel", "--python", "3.11")["reused"]
    kept = tool("clean", "v1.0", "--work")["items"]
    assert any("3.whl in it is not made by lmsbuild" in each["kept"] for each in kept)
    wheel.with_name("3.whl").unlink()
    kept = tool("clean", "v1.0", "--work")["items"]
    assert any("4.whl in it is not made by lmsbuild" in each["kept"] for each in kept)


def test_undo_is_about_the_checkout_that_one_stands_in(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one, in the work folder, has something to be taken back, too."""
    tool("apply", "v1.0", "--source", "git")
    tool.on("apply")
    monkeypatch.chdir(tool.clone / "core")
    assert tool("undo")["path"] == str(tool.clone)
    assert tool.checkout()["undo"] is None


def test_few_processes(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one checkout it takes nine at most, this one and git's version among them."""
    tool.on("apply")
    started: list[object] = []

    class Counted(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: Any) -> None:
            started.append(command)
            super().__init__(command, **options)

    monkeypatch.setattr(subprocess, "Popen", Counted)
    tool.checkout()
    assert 4 <= len(started) <= 7, started


def test_changes_and_commits_of_the_user(tool: Tool) -> None:
    tool.on("apply")
    write(tool.clone, {"core/alloc.h": "changed\n", "new.txt": "new\n"})
    found = tool.checkout()
    assert sorted(entry[3:] for entry in found["changes"]) == ["core/alloc.h", "new.txt"]
    assert found["next"].startswith("commit, ") and "refresh v1.0 --patch" in found["next"]
    plain_git(tool.clone, "add", "-A")
    plain_git(tool.clone, "commit", "-q", "-m", "Mine")
    found = tool.checkout()
    assert found["on_top"][0].endswith(" Mine") and "refresh" in found["next"]
    before = snapshot(tool.clone)
    error = tool.on("undo", code=TreeStateError.exit_code)["error"]
    assert " Mine" in error["message"] and "git reset --keep" in error["message"]
    assert snapshot(tool.clone) == before


def test_changes_come_before_a_newer_series(tool: Tool) -> None:
    """`apply`, which would replace the older one, wants a clean tree."""
    tool.on("apply")
    alloc = (tool.clone / "core/alloc.cpp").read_text()
    write(tool.clone, {"core/alloc.cpp": alloc.replace("line20 = 21", "line20 = 29")})
    tool("refresh", "v1.0", "--patch", "1", "--from", str(tool.clone))
    tool.on("undo")
    found = tool.checkout()
    assert found["other"] == "an older version of the series is applied"
    assert found["changes"] and found["next"] == "commit, stash or remove the changes"
    plain_git(tool.clone, "checkout", "-q", ".")
    assert tool.checkout()["next"] == "lmsbuild apply v1.0 (replaces it)"


def test_a_damaged_patch_is_no_newer_series(tool: Tool) -> None:
    """`apply` does not take it, so it is not what to do next."""
    patch = patch_files(tool.world.target.tag_patches)[0]
    tool.on("apply")
    whole = patch.read_bytes()
    patch.write_text("no patch\n")
    found = tool.checkout()
    assert found["other"] is None and patch.name in found["damage"]
    assert found["next"] == "lmsbuild refresh v1.0 (writes the patches anew)"
    tool("refresh", "v1.0", "--from", str(tool.clone))
    assert patch.read_bytes() == whole and tool.checkout()["damage"] is None


def test_undo_refuses_changed_files_and_other_branches(tool: Tool) -> None:
    tool.on("apply")
    write(tool.clone, {"core/alloc.cpp": "mine\n"})
    error = tool.on("undo", code=TreeStateError.exit_code)["error"]
    assert error["files"] == ["core/alloc.cpp"]
    assert (tool.clone / "core/alloc.cpp").read_text() == "mine\n"
    plain_git(tool.clone, "checkout", "-q", "core/alloc.cpp")
    plain_git(tool.clone, "checkout", "-q", "-b", "other")
    error = tool.on("undo", code=TreeStateError.exit_code)["error"]
    assert "refs/heads/other is checked out" in error["message"]


def test_commits_before_and_after_a_refresh(tool: Tool) -> None:
    tool.on("apply")
    assert tool.checkout()["undo_blocked"] is None
    tool.world.commit(tool.clone, {"core/lms/engine.h": "#pragma once\nint engine(); //\n"}, "E")
    found = tool.checkout()
    assert found["other"] is None and found["edited"] == ["core/lms/engine.h"]
    assert [patch["state"] for patch in found["patches"]] == ["applied"] * 4
    assert found["patches"][3]["patch"] == "v1.0/0003-E.patch"  # to `drop`
    assert found["patches"][3]["file"] == "lms/" and found["patches"][0]["differs"]
    assert found["next"].startswith("lmsbuild refresh v1.0") and not found["refreshed"]
    assert "commits of yours lie on it" in found["undo_blocked"]
    tool("refresh", "v1.0", "--from", str(tool.clone))
    found = tool.checkout()
    assert found["refreshed"] and found["edited"] == []
    assert not any(patch["differs"] for patch in found["patches"])
    assert found["next"] == "lmsbuild verify v1.0, then lint and wheel"
    assert tool("refresh", "v1.0", "--from", str(tool.clone))["written"] == []


def test_a_rebase_is_kept_when_undo_refuses(tool: Tool) -> None:
    tool.on("apply")
    plain_git(tool.clone, "commit", "-q", "--amend", "-m", "Reworded")
    found = tool.checkout()
    assert found["next"].startswith("lmsbuild refresh v1.0")
    message = tool.on("undo", code=TreeStateError.exit_code)["error"]["message"]
    assert "`git branch mine`, then `git reset --keep " in message
    assert found["undo_blocked"] == message


def test_stopped_before_it_changed_anything_is_clean(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CheckoutTransaction, "commit", stop)
        patch.setattr(CheckoutTransaction, "finish", stop)
        with pytest.raises(Killed):
            run(["apply", "v1.0", "--into", str(tool.clone)])
    tool.capsys.readouterr()
    assert run(["status", "v1.0", "--into", str(tool.clone)]) == 0
    said = tool.capsys.readouterr().out
    assert "stopped before it changed anything" in said
    assert ", clean\n" in said and "not clean" not in said


def test_git_under_way(tool: Tool) -> None:
    world = tool.world
    world.commit(tool.clone, {"core/alloc.cpp": "one\n"}, "One")
    plain_git(tool.clone, "checkout", "-q", "-b", "side", "HEAD~1")
    world.commit(tool.clone, {"core/alloc.cpp": "two\n"}, "Two")
    assert "conflict" in json.dumps(_failing_merge(tool.clone)).lower()
    assert tool.checkout()["under_way"] == "a merge"


def _failing_merge(clone: Path) -> str:
    import subprocess

    done = subprocess.run(
        ["git", "-c", "user.name=u", "-c", "user.email=u@u", "merge", "mine"],
        cwd=clone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stdout


def test_stopped_in_the_middle(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(tool.clone)
    stop_in_the_switch(tool, monkeypatch, "apply", "v1.0", "--into", str(tool.clone))
    found = tool.checkout()["unfinished"]
    assert found["command"] == "apply alpha:v1.0" and "lmsbuild abort" in found["next"]
    for command in ("apply", "undo"):
        error = tool.on(command, code=17)["error"]
        assert "lmsbuild abort" in error["message"]
    assert tool.on("abort", "--dry-run")["aborted"][0]["outcome"] == "restored"
    # Other git programs cannot make it worse meanwhile.
    assert (tool.clone / ".git/index.lock").exists()
    # Nor does abort destroy what the user does.
    first = next(name for name in ("core/CMakeLists.txt",))
    write(tool.clone, {first: "mine\n"})
    error = tool.on("abort", code=TreeStateError.exit_code)["error"]
    assert error["files"] == [first]
    (tool.clone / first).rename(tool.world.folder / "saved")
    tool.on("abort")
    assert snapshot(tool.clone) == before


def test_stopped_refresh_and_its_undo(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tool.world.project.root

    def patches() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file() and "work" not in
                p.parts and ".lmsbuild" not in p.parts}  # fmt: skip

    write(root, {"lms/core/engine.cpp": "int engine() { return 9; }\n", "lms/core/new.h": "//\n"})
    before = patches()
    tool("refresh", "v1.0")
    after = patches()
    assert after != before
    assert tool("status")["project"]["undo"] == "refresh v1.0"
    tool("undo", "--refresh", "v1.0", code=UsageError.exit_code)
    tool("undo", "--refresh")
    assert patches() == before
    tool("undo", "--refresh", code=TreeStateError.exit_code)
    with monkeypatch.context() as patch:
        patch.setattr(FileTransaction, "settle", _kill)
        patch.setattr(FileTransaction, "roll_back", lambda self: None)
        patch.setattr(FileTransaction, "_forward", lambda self, number, step: None)
        with pytest.raises(Killed):
            run(["refresh", "v1.0"])
    found = tool("status")["project"]["unfinished"]
    assert "middle" in found["state"]
    tool("refresh", "v1.0", code=17)
    assert tool("abort")["aborted"][0]["outcome"] == "restored"
    assert patches() == before
    tool("refresh", "v1.0")
    assert patches() == after


def _kill(self: FileTransaction) -> None:
    assert self.journal.phase == SWITCHING
    raise Killed


def test_a_killed_build_is_shown_and_cleaned(tool: Tool) -> None:
    left = tool.world.target.work / "wheels/.build-left"
    left.mkdir(parents=True)
    assert tool("status")["project"]["wheels"] == [str(left.parent)]
    assert tool("abort", "--dry-run")["aborted"][0]["path"] == str(left.parent)
    assert left.exists()
    tool("abort")
    assert not left.exists() and tool("status")["project"]["wheels"] == []


def test_a_killed_fetch_is_shown_and_cleaned(tool: Tool) -> None:
    work = tool.world.target.work
    killer = Killer(tool.world.folder / "killer", work)
    killer.folder.mkdir()
    fetch, folder = ["fetch", "v1.0", "--source", "git"], tool.world.folder
    steps = killer.git_steps(fetch, folder)
    shutil.rmtree(work)
    shutil.rmtree(folder / "cache")
    checking_out = next(n for n, step in enumerate(steps, 1) if " checkout -q -b lms" in step)
    assert killer.at_git(checking_out, "before", fetch, folder)
    left = tool("status")["project"]["fetches"]
    assert left and Path(left[0]).is_dir()
    with FileLock(work / ".source.lock"):  # one at work
        assert tool("status")["project"]["fetches"] == tool("abort")["aborted"] == []
    assert tool("abort", "--dry-run")["aborted"][0]["path"] == left[0]
    assert [done["path"] for done in tool("abort")["aborted"]] == left
    assert not Path(left[0]).exists() and tool("status")["project"]["fetches"] == []


def test_abort_names_the_undo_of_what_had_finished(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tool.world.project.root, {"lms/core/new.h": "//\n"})
    for command, undo in (
        (("refresh", "v1.0"), "`lmsbuild undo --refresh`"),
        (("undo", "--refresh"), None),
        (("apply", "v1.0", "--into", str(tool.clone)), "`lmsbuild undo`"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(FileTransaction, "finish", _stop)
            patch.setattr(FileTransaction, "roll_back", _stop)
            with pytest.raises(Killed):
                run([*command])
        tool.capsys.readouterr()
        assert run(["abort", *(command[2:] if "--into" in command else ())]) == 0
        said = tool.capsys.readouterr().out
        assert "had finished, cleaned up" in said
        assert f"; {undo} takes it back" in said if undo else "takes it back" not in said


def _stop(self: FileTransaction) -> None:
    raise Killed


def test_which_checkouts_are_meant(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool("status")["checkouts"] == []
    tool("undo", code=UsageError.exit_code)
    tool("fetch", "v1.0")
    work = tool.world.target.work / "source"
    assert [found["path"] for found in tool("status")["checkouts"]] == [str(work)]
    monkeypatch.chdir(tool.clone / "core")
    assert [found["path"] for found in tool("status", "v1.0")["checkouts"]] == [str(tool.clone)]
    assert {found["path"] for found in tool("status")["checkouts"]} == {str(work), str(tool.clone)}
    tool("status", "--into", str(tool.world.folder), code=TreeStateError.exit_code)


def test_a_damaged_repository_is_named(tool: Tool) -> None:
    tool("fetch", "v1.0")
    work = tool.world.target.work / "source"
    (work / ".git/HEAD").write_bytes(b"junk")
    found = tool("status")
    assert found["checkouts"] == [] and len(found["damaged"]) == 1
    said = f"{work} cannot be worked on because its .git is damaged (git says: fatal: "
    assert found["damaged"][0].startswith(said)
    for command in ("apply", "fetch"):
        error = tool(command, "v1.0", code=TreeStateError.exit_code)["error"]
        assert error["message"].startswith(said)
    tool("status", "v1.0", "--into", str(work), code=TreeStateError.exit_code)


def test_text(tool: Tool, capsys: pytest.CaptureFixture[str]) -> None:
    tool.on("apply")
    for command in (["status"], ["abort"], ["undo"]):
        assert run([*command, "v1.0", "--into", str(tool.clone)]) == 0
    out = capsys.readouterr().out
    for text in (
        "  mine at ", ", clean\n", "  applied      runtime/0001-", "  next: lmsbuild wheel v1.0",
        "nothing was stopped in the middle", "took back lmsbuild apply alpha:v1.0: ",
    ):  # fmt: skip
        assert text in out, out


def test_a_checkout_is_of_the_tag_whose_code_lies_below(tool: Tool) -> None:
    """Of two releases whose files fit the same series: also before it is applied."""
    world = tool.world
    write(world.upstream, {"later.txt": "1.1\n"})
    plain_git(world.upstream, "add", "-A", "-f")
    plain_git(world.upstream, "commit", "-q", "-m", "Release 1.1")
    plain_git(world.upstream, "tag", "-a", "v1.1", "-m", "1.1")
    patches = world.project.patches / "alpha"
    shutil.copytree(patches / "v1.0", patches / "v1.1")
    toml = patches / "v1.1" / world.tag_file.name
    commit = plain_git(world.upstream, "rev-parse", "HEAD")
    toml.write_text(toml.read_text().replace(world.target.tag.commit, commit))
    for tag in ("v1.0", "v1.1"):
        place = str(world.folder / f"of {tag}")
        tool("fetch", tag, "--into", place, "--source", "git")
        (found,) = tool("status", "--into", place)["checkouts"]
        assert found["tag"] == f"alpha:{tag}" and found["next"] == f"lmsbuild apply {tag}"
        tool("verify", "--from", place)
        tool("apply", tag, "--into", place)
        assert tool("status", "--into", place)["checkouts"][0]["tag"] == f"alpha:{tag}"
