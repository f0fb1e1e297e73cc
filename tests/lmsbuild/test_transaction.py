# SPDX-License-Identifier: Apache-2.0
"""Files that change together, in this process; test_kill.py kills real ones."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lmsbuild_world import full_disk, write

from lmsbuild.base import transaction
from lmsbuild.base.errors import BusyError, FileError, TreeStateError, UnfinishedError
from lmsbuild.base.transaction import (
    FINISHED,
    PREPARING,
    SWITCHING,
    Content,
    FileTransaction,
    Journal,
    abort,
    fingerprint,
    hold,
    holder_of,
    put_back,
    undo_files,
)

BEFORE = {"a.txt": "a\n", "folder/b.txt": "b\n", "gone/c.txt": "c\n"}
AFTER = {"a.txt": "A\n", "folder/b.txt": "b\n", "new/deep/d.txt": "d\n", "run.sh": "#!\n"}


def everything(root: Path) -> dict[str, str]:
    """Every file and folder of `root` but the transaction's own state."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(".lmsbuild"):
            found[name] = f"{path.stat().st_mode:o} {fingerprint(path)}"
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "root", BEFORE)
    return tmp_path / "root"


def state(root: Path) -> Path:
    return root / ".lmsbuild"


def fill(transaction: FileTransaction) -> None:
    for name, text in AFTER.items():
        mode = 0o100755 if name.endswith(".sh") else 0o100644
        transaction.put(name, Content(text.encode(), mode))
    transaction.remove("gone/c.txt")


def switch(root: Path, command: str = "refresh v1.0") -> None:
    with FileTransaction.begin(root, state(root), command) as transaction:
        fill(transaction)
        transaction.commit()


def undo(root: Path) -> None:
    last = Journal.load(state(root) / "last")
    assert last is not None
    with FileTransaction.begin(root, state(root), "undo") as transaction:
        put_back(transaction, last)
        transaction.commit()


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs."""


def stop_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Leave the transaction, as a kill would, before its `count`th rename."""
    calls = 0
    real = Path.replace

    def replace(self: Path, target: str | Path) -> Path:
        nonlocal calls
        if "files" in self.parts:
            calls += 1
            if calls == count:
                raise Killed
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(FileTransaction, "roll_back", lambda self: None)


def stopped(root: Path, monkeypatch: pytest.MonkeyPatch, count: int = 2) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, count)
        with pytest.raises(Killed):
            switch(root)


def test_switches_everything(root: Path) -> None:
    switch(root)
    files = {name for name in everything(root) if (root / name).is_file()}
    assert files == set(AFTER)
    assert (root / "a.txt").read_text() == "A\n"
    assert os.access(root / "run.sh", os.X_OK)
    assert not (root / "gone").exists()
    assert not (state(root) / "work").exists()


def test_undo_gives_back_every_byte_and_mode(root: Path) -> None:
    (root / "a.txt").chmod(0o640)
    (root / "link").symlink_to("a.txt")
    before = everything(root)
    switch(root)
    undo(root)
    assert everything(root) == before
    assert Journal.load(state(root) / "last") is None


@pytest.mark.parametrize("place", ["work", "last"])
@pytest.mark.parametrize("name", ["../victim", "/etc/victim", "a/../../victim", ".git/victim"])
def test_a_journal_reaches_nothing_outside(
    root: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str
) -> None:
    """Whoever wrote it: one can come with a tree that somebody gave."""
    victim = root.parent / "victim"
    victim.write_text("mine\n")
    if place == "last":
        switch(root)
    else:
        stopped(root, monkeypatch)
    journal = state(root) / place / "journal.json"
    value = json.loads(journal.read_text())
    step = {"path": name, "before": None, "after": fingerprint(victim), "beside": False}
    journal.write_text(json.dumps({**value, "steps": [*value["steps"], step]}))
    with pytest.raises(UnfinishedError, match="damaged"):
        if place == "last":
            undo(root)
        else:
            abort(FileTransaction, root, state(root))
    assert victim.read_text() == "mine\n"
    journal.write_text(json.dumps({**value, "folders": [name]}))
    with pytest.raises(UnfinishedError, match="damaged"):
        Journal.load(journal.parent)


def test_undo_refuses_a_file_that_changed_since(root: Path) -> None:
    switch(root)
    write(root, {"a.txt": "mine\n"})
    after = everything(root)
    with pytest.raises(TreeStateError, match=r"a\.txt changed since"):
        undo(root)
    assert everything(root) == after
    assert Journal.load(state(root) / "last") is not None


def test_without_commit_nothing_changes(root: Path) -> None:
    before = everything(root)
    switch(root, "refresh v1.0")
    undo(root)
    with FileTransaction.begin(root, state(root), "refresh") as transaction:
        fill(transaction)
    assert everything(root) == before


@pytest.mark.parametrize("failure", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_failure_in_the_switch_rolls_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    before = everything(root)

    def fail(self: FileTransaction) -> None:
        raise failure

    monkeypatch.setattr(FileTransaction, "settle", fail)
    with pytest.raises(FileError if isinstance(failure, OSError) else KeyboardInterrupt):
        switch(root)
    assert everything(root) == before
    assert not (state(root) / "work").exists()


@pytest.mark.parametrize("phase", [PREPARING, SWITCHING, FINISHED])
@pytest.mark.parametrize("written", [False, True])
def test_failure_of_the_journal_rolls_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, phase: str, written: bool
) -> None:
    """A disk that is full from the moment on in which the journal is to say `phase`."""
    before = everything(root)
    real = Journal.save
    full = False

    def save(self: Journal, folder: Path) -> None:
        nonlocal full
        if written:
            real(self, folder)
        full = full or self.phase == phase
        if full:
            raise OSError(28, "No space left on device")
        real(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "save", save)
        with pytest.raises((FileError, OSError)):
            switch(root)
    if written and phase == FINISHED:
        # It cannot even be noted that it is taken back: abort goes on from there.
        assert abort(FileTransaction, root, state(root)) is not None
    else:
        assert everything(root) == before
    assert not (state(root) / "work").exists()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_abort_restores(root: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    before = everything(root)
    stopped(root, monkeypatch, count)
    with pytest.raises(UnfinishedError, match="lmsbuild abort"):
        switch(root)
    done = abort(FileTransaction, root, state(root))
    assert done is not None
    assert (done.outcome, done.command) == ("restored", "refresh v1.0")
    assert everything(root) == before
    assert abort(FileTransaction, root, state(root)) is None
    switch(root)


def test_abort_keeps_the_last_finished_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(root)
    with FileTransaction.begin(root, state(root), "refresh first") as transaction:
        transaction.put("a.txt", Content(b"first\n"))
        transaction.commit()
    stopped(root, monkeypatch)
    abort(FileTransaction, root, state(root))
    undo(root)
    assert everything(root) == before


def test_abort_destroys_no_later_change(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(root)
    stopped(root, monkeypatch)
    write(root, {"a.txt": "mine\n"})
    middle = everything(root)
    with pytest.raises(TreeStateError, match=r"a\.txt changed since; move"):
        abort(FileTransaction, root, state(root))
    assert everything(root) == middle
    # What the message says to do.
    (root / "a.txt").rename(root / "mine.txt")
    abort(FileTransaction, root, state(root))
    assert (root / "mine.txt").read_text() == "mine\n"
    (root / "mine.txt").unlink()
    assert everything(root) == before


def test_a_switch_that_was_complete_rolls_forward(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FileTransaction.phase

    def phase(self: FileTransaction, name: str) -> None:
        if name != SWITCHING:
            raise Killed
        real(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(FileTransaction, "phase", phase)
        patch.setattr(FileTransaction, "roll_back", lambda self: None)
        with pytest.raises(Killed):
            switch(root)
    done = abort(FileTransaction, root, state(root))
    assert done is not None
    assert done.outcome == "completed"
    assert (root / "a.txt").read_text() == "A\n"
    undo(root)


def test_undo_takes_back_what_was_not_cleaned_up(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one before it, nor what an undo had taken back."""
    switch(root, "refresh v1.0")
    before = everything(root)
    with monkeypatch.context() as patch:
        patch.setattr(FileTransaction, "finish", full_disk)
        with FileTransaction.begin(root, state(root), "refresh v2.0") as transaction:
            transaction.put("a.txt", Content(b"newer\n"))
            transaction.commit()
    assert undo_files(root, state(root), dry_run=True).command == "refresh v2.0"
    undo_files(root, state(root))
    assert everything(root) == before
    switch(root, "refresh v3.0")
    with monkeypatch.context() as patch:
        patch.setattr(FileTransaction, "finish", full_disk)
        with FileTransaction.begin(root, state(root), "undo") as transaction:
            transaction.put("a.txt", Content(b"a\n"))
            transaction.commit()
    with pytest.raises(TreeStateError, match="nothing can be taken back"):
        undo_files(root, state(root), dry_run=True)


def test_a_file_changed_during_the_preparation_is_kept(root: Path) -> None:
    with (
        pytest.raises(TreeStateError, match=r"a\.txt changed meanwhile"),
        FileTransaction.begin(root, state(root), "refresh") as transaction,
    ):
        fill(transaction)
        transaction.claim = lambda: write(root, {"a.txt": "mine\n"})  # type: ignore[method-assign]
        transaction.commit()
    assert (root / "a.txt").read_text() == "mine\n"
    assert (root / "gone/c.txt").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda value: {**value, "schema": 2}, "newer lmsbuild"),
        (lambda value: {**value, "surprise": 1}, "damaged"),
        (lambda value: [], "damaged"),
    ],
)
def test_unknown_journals_are_refused(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[dict[str, object]], object],
    message: str,
) -> None:
    stopped(root, monkeypatch)
    middle = everything(root)
    journal = state(root) / "work/journal.json"
    journal.write_text(json.dumps(damage(json.loads(journal.read_text()))))
    with pytest.raises(UnfinishedError, match=message):
        switch(root)
    with pytest.raises(UnfinishedError, match=message):
        abort(FileTransaction, root, state(root))
    assert everything(root) == middle


def test_two_at_once(root: Path) -> None:
    with hold(state(root) / "lock", "apply v1.0", root):
        holder = holder_of(state(root) / "lock")
        assert holder is not None
        assert holder.pid == os.getpid()
        with pytest.raises(BusyError, match=rf"`lmsbuild apply v1\.0` \(process {os.getpid()}, "):
            switch(root)
    assert holder_of(state(root) / "lock") is None
    switch(root)


def test_what_is_being_switched_was_not_stopped(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen without the lock; only a process that is over was stopped."""
    stopped(root, monkeypatch)
    with (
        hold(state(root) / "lock", "apply v1.0", root),
        pytest.raises(BusyError, match=r"`lmsbuild apply v1\.0` \(process"),
    ):
        FileTransaction.check_none_unfinished(root, state(root))
    with pytest.raises(UnfinishedError, match="lmsbuild abort"):
        FileTransaction.check_none_unfinished(root, state(root))


def test_abort_takes_back_nothing_that_runs(root: Path) -> None:
    """A dry run says so as well."""
    with FileTransaction.begin(root, state(root), "refresh v1.0") as running:
        for dry_run in (True, False):
            with pytest.raises(BusyError, match=r"`lmsbuild refresh v1\.0` \(process"):
                abort(FileTransaction, root, state(root), dry_run=dry_run)
        fill(running)
        running.commit()


def test_a_switch_that_ends_while_it_is_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal is read before its end, and nobody holds the lock after it."""
    stopped(root, monkeypatch)

    def ends(_lock: Path) -> None:
        monkeypatch.undo()
        abort(FileTransaction, root, state(root))

    monkeypatch.setattr(transaction, "holder_of", ends)
    FileTransaction.check_none_unfinished(root, state(root))


def test_the_lock_of_a_killed_process_is_no_obstacle(root: Path) -> None:
    """Its child still has the lock for a moment, and is waited for."""
    lock = state(root) / "lock"
    program = (
        "import os, subprocess, sys, pathlib\n"
        "from lmsbuild.base.transaction import hold\n"
        "with hold(pathlib.Path(sys.argv[1]), 'apply', pathlib.Path('.')) as lock:\n"
        "    subprocess.Popen(['sleep', '0.5'], pass_fds=[lock])\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(lock)], check=False)
    assert holder_of(lock) is not None
    switch(root)


def test_who_only_looks_is_not_at_work(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lock for a moment, in which the last holder is not taken for one at work."""
    switch(root)
    looker = os.open(state(root) / "lock", os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        os.close(looker)

    monkeypatch.setattr(time, "sleep", sleep)
    undo(root)
    assert len(waited) == 1


def test_names_that_are_no_text(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.fsdecode(b"caf\xe9 \xff.txt")
    before = everything(root)
    with FileTransaction.begin(root, state(root), "refresh") as transaction:
        transaction.put(name, Content(b"x"))
        transaction.commit()
    assert (root / name).read_bytes() == b"x"
    undo(root)
    assert everything(root) == before


def test_a_lock_that_is_no_file(root: Path) -> None:
    """Opening one may never end, and nothing can be written to it."""
    lock = state(root) / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.unlink(missing_ok=True)
    os.mkfifo(lock)
    assert holder_of(lock) is None
    with (
        pytest.raises(FileError, match="no regular file; remove it"),
        FileTransaction.begin(root, state(root), "refresh"),
    ):
        pass


def test_a_folder_in_the_way_is_named(root: Path) -> None:
    before = everything(root)
    with (
        pytest.raises(TreeStateError, match="folder cannot be replaced"),
        FileTransaction.begin(root, state(root), "refresh") as transaction,
    ):
        transaction.put("folder", Content(b"x"))
        transaction.commit()
    assert everything(root) == before


def test_works_across_file_systems(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state lies on another file system (a linked worktree's may)."""
    places = (Path("/dev/shm"), Path("/tmp"), Path.home())
    other = [p for p in places if p.is_dir() and p.stat().st_dev != root.stat().st_dev]
    if not other:
        pytest.skip("there is no second file system here")
    place = other[0] / f"lmsbuild-test-{os.getpid()}"
    try:
        with FileTransaction.begin(root, place, "refresh") as transaction:
            fill(transaction)
            transaction.commit()
        assert {name for name in everything(root) if (root / name).is_file()} == set(AFTER)
    finally:
        subprocess.run(["rm", "-rf", str(place)], check=True)


@pytest.mark.parametrize(
    "text", ["[" * 9999, '{"schema": 1, "schema": 1}', '{"schema": NaN}', "\ufeff{}", "[]", "null"]
)
def test_a_journal_that_is_no_plain_json(root: Path, text: str) -> None:
    stopped_folder = state(root) / "work"
    write(stopped_folder, {"journal.json": text})
    with pytest.raises(UnfinishedError, match="damaged"):
        abort(FileTransaction, root, state(root))


def test_a_journal_that_never_ends(root: Path) -> None:
    (state(root) / "work").mkdir(parents=True)
    os.mkfifo(state(root) / "work/journal.json")
    with pytest.raises(UnfinishedError, match="no regular file"):
        abort(FileTransaction, root, state(root))


@pytest.mark.parametrize(
    "text", ['{"command": "x", "pid": 1e99, "started": ""}', "[]", "[" * 3000, "\x00"]
)
def test_a_lock_with_other_text_is_a_lock(root: Path, text: str) -> None:
    lock = state(root) / "lock"
    with hold(lock, "apply", root):
        lock.write_text(text)
        holder = holder_of(lock)
        assert holder is not None and "another command" in holder.command
        assert str(holder)
