# SPDX-License-Identifier: Apache-2.0
"""Unusual checkouts and failing machines: `apply` works, or says why and leaves all as it was."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_kill import snapshot
from lmsbuild_world import REPOSITORY, World, blobs_of, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.errors import LmsbuildError, TreeStateError
from lmsbuild.base.git import checkout_git
from lmsbuild.base.transaction import SWITCHING, abort
from lmsbuild.checkout.apply import apply, undo
from lmsbuild.checkout.refresh import refresh
from lmsbuild.checkout.switch import CheckoutTransaction
from lmsbuild.series.series import series_of

pytestmark = pytest.mark.default
FILE_ERROR, GIT_ERROR, BUSY = 18, 15, 16


def tree_of(path: Path) -> str:
    return plain_git(path, "rev-parse", "HEAD^{tree}")


def there_and_back(world: World, console: Console, clone: Path) -> None:
    """Apply gives the series' tree and a clean checkout; undo gives everything back."""
    before = snapshot(clone)
    done = apply(world.target, clone, console)
    assert len(done.patches) == 3
    after = series_of(world.target).after()
    assert blobs_of(clone, after) == after
    assert plain_git(clone, "status", "--porcelain") == ""
    assert plain_git(clone, "fsck", "--connectivity-only", "--no-dangling") == ""
    user = checkout_git(clone)
    assert user is not None
    undo(user, console)
    now = snapshot(clone)
    assert {**now, "index file": ""} == {**before, "index file": ""}


def test_a_branch_moves_and_stays_checked_out(world: World, console: Console) -> None:
    clone = world.clone()
    plain_git(clone, "checkout", "-q", "-b", "mine")
    plain_git(clone, "branch", "other")
    start = plain_git(clone, "rev-parse", "HEAD")
    done = apply(world.target, clone, console)
    assert plain_git(clone, "symbolic-ref", "HEAD") == "refs/heads/mine"
    assert plain_git(clone, "rev-parse", "mine", "other").split() == [done.head, start]
    assert "lmsbuild apply" in plain_git(clone, "reflog", "-1", "mine")


def test_detached(world: World, console: Console) -> None:
    clone = world.clone()
    plain_git(clone, "checkout", "-q", "--detach")
    there_and_back(world, console, clone)


@pytest.mark.parametrize("name", ["a clone", "klön ñ 中", 'it\'s "quoted" $HOME; #1', "-n"])
def test_paths(world: World, console: Console, name: str) -> None:
    plain = world.clone()
    clone = world.folder / name
    plain.rename(clone)
    there_and_back(world, console, clone)


def test_two_worktrees_of_one_repository(world: World, console: Console) -> None:
    """Each has its own state: an undo in one is none in the other."""
    clone = world.clone()
    for name in ("one", "two"):
        plain_git(clone, "worktree", "add", "-q", "--detach", f"../{name}", "v1.0")
    one, two = world.folder / "one", world.folder / "two"
    world.commit(two, {"z.txt": "z\n"}, "Stand elsewhere")
    apply(world.target, one, console)
    there_and_back(world, console, two)
    apply(world.target, two, console)
    write(world.project.root, {"lms/core/engine.cpp": "int engine() { return 2; }\n"})
    refresh(world.target, None)
    for tree in (one, two):
        assert apply(world.target, tree, console).replaced
    user = checkout_git(one)
    assert user is not None
    undo(user, console)
    assert plain_git(one, "log", "--format=%s", "-1") == "Show it in Python"
    assert tree_of(clone) == plain_git(clone, "rev-parse", "v1.0^{tree}")


def test_submodule(world: World, console: Console) -> None:
    above = world.folder / "above"
    above.mkdir()
    plain_git(above, "init", "-q")
    plain_git(
        above, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add",
        str(world.upstream), "third party/alpha",
    )  # fmt: skip
    there_and_back(world, console, above / "third party/alpha")


def test_a_checkout_that_has_submodules(world: World, console: Console) -> None:
    clone = world.clone()
    other = world.folder / "other"
    other.mkdir()
    plain_git(other, "init", "-q")
    world.commit(other, {"file.txt": "one\n"}, "One")
    allow = ("-c", "protocol.file.allow=always")
    plain_git(clone, *allow, "submodule", "--quiet", "add", str(other), "third party/other")
    plain_git(clone, "commit", "-q", "-m", "Add a submodule")
    there_and_back(world, console, clone)
    write(clone, {"third party/other/file.txt": "mine\n"})
    with pytest.raises(TreeStateError, match="third party/other"):
        apply(world.target, clone, console)


def test_shallow(world: World, console: Console) -> None:
    world.commit(world.upstream, {"later.txt": "later\n"}, "Later")
    clone = world.folder / "shallow"
    url = world.upstream.as_uri()
    plain_git(world.folder, "clone", "-q", "--depth=1", "-b", "v1.0", url, str(clone))
    there_and_back(world, console, clone)


def partial(world: World, kind: str) -> Path:
    """A sparse partial clone: what the series touches was never fetched."""
    plain_git(world.upstream, "config", "uploadpack.allowFilter", "true")
    plain_git(world.upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
    clone = world.folder / "partial"
    url = world.upstream.as_uri()
    plain_git(world.folder, "clone", "-q", f"--filter={kind}", "--sparse", url, str(clone))
    assert not (clone / "core").exists()
    missing = plain_git(clone, "rev-list", "--objects", "--missing=print", "HEAD")
    assert "?" in missing
    return clone


@pytest.mark.parametrize("kind", ["blob:none", "tree:0"])
def test_partial_clone(world: World, console: Console, kind: str) -> None:
    there_and_back(world, console, partial(world, kind))


def test_partial_clone_without_its_remote(world: World, console: Console) -> None:
    clone = partial(world, "blob:none")
    world.upstream.rename(world.folder / "gone")
    before = snapshot(clone)
    with pytest.raises(TreeStateError, match=r"partial clone|lacks the content of"):
        apply(world.target, clone, console)
    assert snapshot(clone) == before


def test_sparse_checkout_stays_sparse(world: World, console: Console) -> None:
    clone = world.clone()
    plain_git(clone, "sparse-checkout", "set", "core")
    assert not (clone / "python").exists()
    apply(world.target, clone, console)
    assert not (clone / "python/api.py").exists()
    assert (clone / "core/lms/engine.cpp").exists()
    after = series_of(world.target).after()
    assert blobs_of(clone, after) == after
    assert plain_git(clone, "status", "--porcelain") == ""


# What is in the way ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["core/lms/engine.cpp", "core/lms"])
def test_an_ignored_file_in_the_way_is_named(world: World, console: Console, name: str) -> None:
    clone = world.clone()
    write(clone, {name: "mine\n", ".git/info/exclude": "lms\n"})
    before = snapshot(clone)
    with pytest.raises(TreeStateError, match=f"{name} in .* is in the way"):
        apply(world.target, clone, console)
    with pytest.raises(TreeStateError, match=f"{name} in .* is in the way"):
        apply(world.target, clone, console, dry_run=True)
    assert snapshot(clone) == before


def test_a_link_in_the_way_is_not_followed(world: World, console: Console) -> None:
    clone = world.clone()
    elsewhere = world.folder / "elsewhere"
    elsewhere.mkdir()
    (clone / "core/lms").symlink_to(elsewhere)
    write(clone, {".git/info/exclude": "lms\n"})
    with pytest.raises(TreeStateError, match=r"core/lms in .* is in the way"):
        apply(world.target, clone, console)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_change_that_git_was_told_to_overlook(world: World, console: Console, flag: str) -> None:
    clone = world.clone()
    plain_git(clone, "update-index", flag, "core/alloc.cpp")
    write(clone, {"core/alloc.cpp": "mine\n"})
    with pytest.raises(TreeStateError, match=r"core/alloc\.cpp .* not as its commit has it"):
        apply(world.target, clone, console)
    assert (clone / "core/alloc.cpp").read_text() == "mine\n"


def test_real_am_under_way_is_left_alone(world: World, console: Console) -> None:
    clone = world.clone()
    world.commit(clone, {"core/alloc.cpp": "other\n"}, "Other")
    patch = series_of(world.target).patches[1].path
    with pytest.raises(subprocess.CalledProcessError):
        plain_git(clone, "am", "-q", str(patch))
    before = snapshot(clone)
    with pytest.raises(TreeStateError, match=r"`git am` .* under way"):
        apply(world.target, clone, console)
    assert snapshot(clone) == before
    plain_git(clone, "am", "--abort")


def test_another_git_at_work(world: World, console: Console) -> None:
    clone = world.clone()
    write(clone, {".git/index.lock": ""})
    before = snapshot(clone)
    with pytest.raises(TreeStateError, match=r"index\.lock exists"):
        apply(world.target, clone, console)
    assert snapshot(clone) == before


# Somebody at work beside us ----------------------------------------------------------------------


def beside(
    monkeypatch: pytest.MonkeyPatch, name: str, edit: Callable[[], object], phase: str = ""
) -> None:
    """Make `edit` where a transaction calls its method `name`, with `phase` if given."""
    real = getattr(CheckoutTransaction, name)

    def edited(self: CheckoutTransaction, *given: Any, **more: Any) -> Any:
        found = real(self, *given, **more) if phase else None
        if not phase or given == (phase,):
            monkeypatch.setattr(CheckoutTransaction, name, real)
            edit()
        return found if phase else real(self, *given, **more)

    monkeypatch.setattr(CheckoutTransaction, name, edited)


@pytest.mark.parametrize("name", ["core/alloc.cpp", "python/windows.py", "python/lms.py"])
@pytest.mark.parametrize("when", ["_stage", "claim", "phase"])
def test_a_file_that_is_saved_meanwhile_is_kept(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch, when: str, name: str
) -> None:
    """After it was looked at, after its copy was made, or in the middle of the switch; the last
    one is no file yet."""
    clone = world.clone()
    before = snapshot(clone)
    phase = SWITCHING if when == "phase" else ""
    beside(monkeypatch, when, lambda: write(clone, {name: "mine\n"}), phase)
    with pytest.raises(TreeStateError, match=f"{name} changed meanwhile; run the command again"):
        apply(world.target, clone, console)
    assert (clone / name).read_text() == "mine\n"
    plain_git(clone, "clean", "-fdq")
    plain_git(clone, "checkout", "-q", ".")
    assert {**snapshot(clone), "index file": ""} == {**before, "index file": ""}


def test_what_is_staged_meanwhile_is_kept(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = world.clone()
    write(clone, {"mine.generated": "mine\n"})
    add = ("add", "-f", "mine.generated")
    beside(monkeypatch, "move_refs", lambda: plain_git(clone, *add))
    with pytest.raises(TreeStateError, match="index changed meanwhile; run the command again"):
        apply(world.target, clone, console)
    assert plain_git(clone, "status", "--porcelain") == "A  mine.generated"


def test_undo_keeps_a_file_that_is_saved_meanwhile(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = world.clone()
    apply(world.target, clone, console)
    user = checkout_git(clone)
    assert user is not None
    beside(monkeypatch, "_stage", lambda: write(clone, {"core/alloc.cpp": "mine\n"}))
    with pytest.raises(TreeStateError, match=r"core/alloc\.cpp changed meanwhile"):
        undo(user, console)
    assert plain_git(clone, "status", "--porcelain") == "M core/alloc.cpp"


# Machines that fail ------------------------------------------------------------------------------


def tool(clone: Path, *wrapper: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """The real `lmsbuild apply` on `clone`, in a process of its own."""

    def before_exec() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [*wrapper, sys.executable, "-m", "lmsbuild", "apply", "v1.0", "--into", str(clone)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")},
        preexec_fn=before_exec,
        capture_output=True,
        text=True,
        check=False,
    )


def unchanged_or_applied(world: World, clone: Path, before: dict[str, str], code: int) -> bool:
    """True when applied. In both cases nothing unfinished is left."""
    assert not (clone / ".git/lmsbuild/work/journal.json").exists()
    if code == 0:
        after = series_of(world.target).after()
        assert blobs_of(clone, after) == after
        return True
    assert snapshot(clone) == before
    return False


def test_a_checkout_that_cannot_be_written(world: World) -> None:
    clone = world.clone()
    before = snapshot(clone)
    for path in [clone, *clone.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o555)
    wrapper = []
    if os.geteuid() == 0:
        # root, but without its power over the permissions of files
        if not shutil.which("setpriv"):
            pytest.skip("root may write everything, and there is no setpriv to take that away")
        wrapper = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    done = tool(clone, *wrapper)
    for path in [clone, *clone.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o200)
    assert done.returncode == FILE_ERROR
    assert "because Permission denied; " in done.stderr
    assert snapshot(clone) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=2m", "small"]
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk(world: World, console: Console, small_disk: Path) -> None:
    """With ever more room: nothing happens, or all of it, and at last all of it."""
    clone = small_disk / "clone"
    shutil.copytree(world.clone(), clone, symlinks=True)
    plain_git(clone, "update-index", "-q", "--refresh")
    before = snapshot(clone)
    filler = small_disk / "filler"
    codes = []
    for free in (0, 24, 72, 136, 200, 400):
        room = os.statvfs(small_disk)
        filler.write_bytes(b"x" * max(0, (room.f_bavail * room.f_frsize) - free * 1024))
        done = tool(clone)
        filler.unlink()
        codes.append(done.returncode)
        assert done.returncode in (0, FILE_ERROR), done.stderr
        if done.returncode:
            assert "because No space left on device; free space" in done.stderr
        if unchanged_or_applied(world, clone, before, done.returncode):
            break
    assert len(codes) > 2 and codes[-1] == 0, codes


@pytest.mark.parametrize("limit", [0, 1500])
def test_files_may_not_grow(world: World, limit: int) -> None:
    clone = world.clone()
    before = snapshot(clone)
    done = tool(clone, limit=limit)
    assert done.returncode in (0, FILE_ERROR, GIT_ERROR), done.stderr
    unchanged_or_applied(world, clone, before, done.returncode)
    assert tool(clone).returncode == 0


def test_two_runs_at_once(world: World) -> None:
    clone = world.clone()
    command = [sys.executable, "-m", "lmsbuild", "apply", "v1.0", "--into", str(clone)]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")}
    both = [
        subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [process.communicate()[1].decode() for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, BUSY]), said
    after = series_of(world.target).after()
    assert blobs_of(clone, after) == after
    assert plain_git(clone, "status", "--porcelain") == ""
    assert plain_git(clone, "rev-list", "--count", "v1.0..HEAD") == "3"


def test_a_failure_says_nothing_is_left_to_abort(world: World, console: Console) -> None:
    clone = world.clone()
    world.commit(clone, {"core/alloc.cpp": "other\n"}, "Other")
    with pytest.raises(LmsbuildError):
        apply(world.target, clone, console)
    from lmsbuild.checkout.switch import CheckoutTransaction

    assert abort(CheckoutTransaction, clone, clone / ".git/lmsbuild") is None


BEHEADED: dict[str, Callable[[Path], object]] = {
    "unborn": lambda clone: (clone / ".git/HEAD").write_text("ref: refs/heads/none\n"),
    "junk": lambda clone: (clone / ".git/refs/heads/main").write_text("junk"),
    "objects": lambda clone: shutil.rmtree(clone.parent / "upstream/.git/objects"),
}


@pytest.mark.parametrize("name", BEHEADED)
def test_a_head_that_is_no_commit_is_the_cause(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plain_git(world.folder, "clone", "-q", "--shared", str(world.upstream), "clone")
    clone = world.folder / "clone"
    assert run(["fetch", "v1.0"]) == 0
    BEHEADED[name](clone)
    for command in ("apply", "refresh", "status"):
        capsys.readouterr()
        assert run([command, "v1.0", "--into", str(clone)]) == TreeStateError.exit_code
        said = f"error: {clone} cannot be worked on because its HEAD is no commit that is there"
        assert said in capsys.readouterr().err
    # And what else there is is told of all the same.
    monkeypatch.chdir(clone)
    assert run(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [Path(one["path"]).name for one in found["checkouts"]] == ["source"]
    assert "its HEAD is no commit" in found["damaged"][0]


@pytest.mark.parametrize("lock", ["HEAD.lock", "refs/heads/main.lock"])
def test_a_lock_of_git_s_is_named(
    world: World, capsys: pytest.CaptureFixture[str], lock: str
) -> None:
    clone = world.clone()
    before = snapshot(clone)
    (clone / ".git" / lock).touch()
    assert run(["apply", "v1.0", "--into", str(clone)]) == GIT_ERROR
    said = capsys.readouterr().err
    assert f"another git program works there ({clone}/.git/{lock} exists); wait for its end" in said
    (clone / ".git" / lock).unlink()
    assert {**snapshot(clone), "index file": ""} == {**before, "index file": ""}


def test_a_file_in_the_way_of_our_own_folder(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = world.clone()
    (clone / ".git/lmsbuild").write_text("junk")
    assert run(["apply", "v1.0", "--into", str(clone)]) == FILE_ERROR
    assert ".git/lmsbuild cannot be read or written because File exists; remove the file" in (
        capsys.readouterr().err
    )


def test_a_name_does_not_command_the_terminal(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = world.clone()
    (clone / "red\x1b[31m\x9b0m").touch()
    assert run(["apply", "v1.0", "--into", str(clone)]) == TreeStateError.exit_code
    assert run(["status", "--into", str(clone)]) == 0
    out, err = capsys.readouterr()
    assert r"red\x1b[31m\x9b0m" in out and r"red\x1b[31m\x9b0m" in err
    assert not {"\x1b", "\x9b"}.intersection(out + err)


def test_verify_needs_no_cache_folder(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMSBUILD_CACHE", "/proc/nothing can be made here")
    assert run(["verify", "v1.0"]) == 0
