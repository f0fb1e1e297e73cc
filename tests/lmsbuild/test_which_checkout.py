# SPDX-License-Identifier: Apache-2.0
"""A command works on the checkout that is meant, or says why not: never on the next one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from lmsbuild_kill import snapshot
from lmsbuild_world import World, plain_git

from lmsbuild.__main__ import run
from lmsbuild.base.errors import FileError, SourceError, TreeStateError
from lmsbuild.base.git import checkout_git, open_at
from lmsbuild.upkeep.cleaning import users_work


def no_head(git: Path) -> None:
    (git / "HEAD").unlink()


def empty(git: Path) -> None:
    shutil.rmtree(git)
    git.mkdir()


def gone(git: Path) -> None:
    """As in a linked worktree whose repository was moved."""
    shutil.rmtree(git)
    git.write_text("gitdir: /nowhere/worktrees/one\n")


def dangling(git: Path) -> None:
    shutil.rmtree(git)
    git.symlink_to("/nowhere")


def other_ids(git: Path) -> None:
    """SHA-256."""
    shutil.rmtree(git)
    plain_git(git.parent, "init", "-q", "--object-format=sha256")


DAMAGES = [no_head, empty, gone, dangling, other_ids]
COMMANDS = [
    ["status"], ["apply", "v1.0"], ["apply"], ["verify", "v1.0"], ["map", "v1.0"], ["undo"],
    ["abort"], ["refresh", "v1.0"], ["wheel", "v1.0"],
]  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "logs" not in path.parts and not path.name.endswith("lock")
    }


@pytest.fixture
def enclosed(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone within another checkout of the framework, with a third in the work folder."""
    assert run(["fetch", "v1.0", "--json"]) == 0
    outer = world.clone("outer")
    inner = outer / "inner"
    world.clone("inner").rename(inner)
    monkeypatch.chdir(inner / "core")
    return inner


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_one_the_user_stands_in_is_named(
    world: World, enclosed: Path, capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
) -> None:  # fmt: skip
    damage(enclosed / ".git")
    before = files(world.folder)
    for command in COMMANDS if damage is no_head else COMMANDS[:2]:
        capsys.readouterr()
        assert run(command) == TreeStateError.exit_code, command
        said = capsys.readouterr().err
        assert f"error: {enclosed} cannot be worked on because its " in said, command
        assert "objects have SHA256 ids" in said if damage is other_ids else "damaged" in said
    assert files(world.folder) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_one_that_is_given_is_named(
    world: World, enclosed: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None],
) -> None:  # fmt: skip
    damage(enclosed / ".git")
    monkeypatch.chdir(world.folder)
    before = files(world.folder)
    for place in (enclosed, enclosed / "core"):
        # These take no folder within one.
        wholes = ("status", "abort", "undo") if place == enclosed else ()
        for command in ("apply", *wholes):
            capsys.readouterr()
            assert run([command, "v1.0", "--into", str(place)]) == TreeStateError.exit_code
            assert f"error: {enclosed} cannot be worked on" in capsys.readouterr().err
        for command in ("verify", "map", "refresh"):
            assert run([command, "v1.0", "--from", str(place)]) == TreeStateError.exit_code
            assert f"error: {enclosed} cannot be worked on" in capsys.readouterr().err
    for option in ("--source", "--reference"):
        assert run(["fetch", "v1.0", "--into", "new", option, str(enclosed)])
        assert f"error: {enclosed} cannot be " in capsys.readouterr().err
    assert files(world.folder) == before and not (world.folder / "new").exists()


def test_the_one_in_the_work_folder_is_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which could be the one that is meant when there is no name."""
    assert run(["fetch", "v1.0"]) == 0
    work = world.target.work / "source"
    no_head(work / ".git")
    before = files(work)
    for command in COMMANDS[1:]:
        capsys.readouterr()
        assert run(command) == TreeStateError.exit_code, command
        assert f"error: {work} cannot be worked on" in capsys.readouterr().err
    assert "or give --force to remove it" in users_work(work)
    assert run(["status", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["damaged"]
    assert told.startswith(f"{work} cannot be worked on")
    assert files(work) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_checkout_of_the_framework_does_not_matter(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
) -> None:  # fmt: skip
    assert run(["fetch", "v1.0"]) == 0
    mine = world.folder / "mine"
    mine.mkdir()
    plain_git(mine, "init", "-q")
    damage(mine / ".git")
    monkeypatch.chdir(mine)
    for command in (["apply", "v1.0"], ["verify", "v1.0"], ["map", "v1.0"], ["undo"], ["abort"]):
        assert run(command) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run(["status", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["checkouts"]
    assert found["path"] == str(world.target.work / "source")


@pytest.mark.parametrize("part", ["HEAD", "objects", "refs"])
def test_a_damaged_bare_repository_is_not_what_it_lies_in(
    world: World, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outer = world.clone("outer")
    bare = outer / "mirror.git"
    plain_git(outer, "clone", "-q", "--mirror", str(world.upstream), str(bare))
    lost = bare / part
    lost.unlink() if lost.is_file() else shutil.rmtree(lost)
    with pytest.raises(TreeStateError, match=r"mirror\.git cannot be worked on because it is dama"):
        open_at(bare)
    code = run(["fetch", "v1.0", "--source", "git", "--reference", str(bare)])
    assert code == SourceError.exit_code
    assert f"error: {bare} cannot be a reference because it is damaged" in capsys.readouterr().err


def test_a_checkout_by_a_link_is_one(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone, link = world.clone(), world.folder / "link"
    before = snapshot(clone)
    link.symlink_to(clone)
    work = world.target.work
    work.mkdir(parents=True)
    (work / "source").symlink_to(os.path.relpath(clone, work))

    def tool(*command: str) -> str:
        capsys.readouterr()
        assert run([*command, "--json"]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    for place in (["--into", str(link)], ["--into", str(link / "core" / "..")], []):
        tool("apply", *(["v1.0"] if place else []), *place)  # without a name: the only one there is
        (found,) = json.loads(tool("status", *place))["checkouts"]
        assert found["path"] == str(clone) and found["undo"] == "apply alpha:v1.0"
        tool("undo", *place)
    for option in ("--from", "--into"):
        tool("apply", "v1.0", "--into", str(link))
        tool("refresh", option, str(link), "--dry-run")
    tool("verify", "--from", str(link))
    monkeypatch.chdir(link / "core")
    tool("undo")
    now = snapshot(clone)
    # `refresh` noted nothing: it was a dry run.
    assert {**now, "index file": ""} == {**before, "index file": ""}


def test_git_dir_by_a_link(world: World) -> None:
    clone = world.clone()
    (clone / ".git").rename(world.folder / "store")
    (clone / ".git").symlink_to(world.folder / "store")
    found = checkout_git(clone / "core")
    assert found is not None and found.path == clone
    assert Path(found.git_dir).resolve() == world.folder / "store"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("part", ["", ".git", ".git/HEAD", ".git/config", ".git/objects"])
def test_what_may_not_be_read_is_not_damaged(world: World, part: str) -> None:
    """Nor is it another one that is meant by who stands there."""
    with tempfile.TemporaryDirectory() as name:  # which others can reach, unlike ours
        outer = Path(name) / "outer"
        shutil.copytree(world.clone(), outer)
        shutil.copytree(world.folder / "clone", outer / "inner")
        for path in (Path(name), *Path(name).rglob("*")):
            os.chown(path, 12345, 12345)
        inside = os.open(outer / "inner" / "core", os.O_RDONLY)
        (outer / "inner" / part).chmod(0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setresuid(12345, 12345, 12345)
                os.fchdir(inside)
                checkout_git(Path.cwd() if part else Path("..") / ".." / "inner" / "core")
            except FileError as error:
                said = f"/{part} cannot be read or written because Permission denied"
                code = 0 if said in error.message else 2
            except PermissionError:
                code = 0 if not part else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_place_that_refuses_is_named() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "ours", None, "theirs")
    assert FileError.of(error).message.startswith("theirs cannot be read or written")
