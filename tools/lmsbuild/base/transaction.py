# SPDX-License-Identifier: Apache-2.0
"""Files that change together: all of them or none, whenever the process is killed.

A transaction keeps its state in a folder of its own: `lock`, `work` (the running one: a versioned
journal, the new contents, copies of the old ones) and `last` (the last finished one, for undo).
Whatever can fail happens before the switch, but for one thing: a file that somebody saves is never
replaced, so each is looked at again right before. The switch only renames; while the journal says
`switching`, every file is as it was before or as it is after, and `abort` can tell which.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from lmsbuild.base import strictjson
from lmsbuild.base.errors import BusyError, FileError, TreeStateError, UnfinishedError
from lmsbuild.base.filenames import check_regular, inner_path
from lmsbuild.base.hashing import sha256_file, write_atomic

SCHEMA = 1
PROJECT_STATE = ".lmsbuild"  # below the project's root

# Phases of a journal.
PREPARING = "preparing"  # nothing is changed yet
SWITCHING = "switching"  # each file is as before or as after
FINISHED = "finished"  # all are as after; clean-up may be missing

_ORPHAN_SECONDS = 10.0


@dataclass(frozen=True)
class Content:
    """A file as it is to be. Of `mode` the type and the owner's x bit count (git's modes).

    `data` of a symbolic link is what it points to.
    """

    data: bytes
    mode: int = 0o100644

    @property
    def fingerprint(self) -> str:
        kind = "link" if self.mode == 0o120000 else "exec" if self.mode & 0o100 else "file"
        return f"{kind}:{hashlib.sha256(self.data).hexdigest()}"


def fingerprint(path: Path) -> str | None:
    """What is at `path`: kind and SHA-256; None when nothing is there."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return Content(os.fsencode(path.readlink()), 0o120000).fingerprint
        if stat.S_ISREG(mode):
            return f"{'exec' if mode & 0o100 else 'file'}:{sha256_file(path)}"
    except (FileNotFoundError, NotADirectoryError):
        return None
    return "other"


@dataclass
class Step:
    """One file: its path below the root, or below the state folder's parent (`beside`)."""

    path: str
    before: str | None  # fingerprints
    after: str | None
    beside: bool = False


@dataclass
class Journal:
    """What a transaction is about to do; enough to finish it or take it back."""

    kind: str  # apply, undo, refresh
    command: str
    started: str
    pid: int
    phase: str = PREPARING
    steps: list[Step] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # made by the switch, below the root
    refs: dict[str, list[str]] = field(default_factory=dict)  # name -> [before, after]
    data: dict[str, Any] = field(default_factory=dict)  # what the command wants to know later

    def save(self, folder: Path) -> None:
        value = {"schema": SCHEMA, **dataclasses.asdict(self)}
        write_atomic(folder / "journal.json", json.dumps(value, indent=1).encode())

    def check_types(self) -> None:
        """Raise ValueError for what no lmsbuild writes."""
        steps = [(step.path, step.before or "", step.after or "") for step in self.steps]
        moves = [*self.refs.values(), *steps]
        texts = [self.kind, self.command, self.started, self.phase, *self.folders, *self.refs]
        whole = {len(both) for both in self.refs.values()} <= {2} and isinstance(self.pid, int)
        if not whole or not isinstance(self.data, dict) or isinstance(self.folders, str):
            raise ValueError("a field is of another type")
        if not all(isinstance(text, str) for text in (*texts, *(t for m in moves for t in m))):
            raise ValueError("a name or a commit is no text")

    @classmethod
    def load(cls, folder: Path) -> Journal | None:
        """The journal in `folder`, None if there is none. Raises UnfinishedError for an unknown
        schema or an unreadable file."""
        path = folder / "journal.json"
        try:
            check_regular(path)
            value = strictjson.loads(path.read_bytes())
            schema = value.pop("schema")
            if isinstance(schema, int) and schema > SCHEMA:
                raise UnfinishedError(
                    f"{path} cannot be understood because a newer lmsbuild wrote it (schema "
                    f"{schema}, this one knows {SCHEMA}); use that lmsbuild"
                )
            steps = [Step(**step) for step in value.pop("steps")]
            journal = cls(steps=steps, **value)
            journal.check_types()
            for name in (*(step.path for step in steps), *journal.folders, *journal.refs):
                inner_path(name, foreign=True)
            return journal
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnfinishedError(
                f"{path} cannot be understood because it is damaged ({error}); look at the files "
                f"in {folder}, then move this folder away"
            ) from error


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as far as the lock file says."""

    command: str
    pid: int
    started: str

    @property
    def alive(self) -> bool:
        if not self.pid:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass
        return True

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        if self.alive:
            return f"`lmsbuild {self.command}` (process {self.pid}, since {self.started})"
        return f"a git process that `lmsbuild {self.command}` started before it was stopped"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read_holder(descriptor: int) -> Holder:
    try:
        found = Holder(**strictjson.loads(os.pread(descriptor, 4096, 0)))
        if not 0 < int(found.pid) < 1 << 31:
            raise ValueError("it is the number of no process")
        return found
    except (ValueError, TypeError):
        return Holder("another command", 0, "just now")


def _busy(what: Path, holder: Holder) -> BusyError:
    return BusyError(
        f"{what} cannot be worked on because {holder} is at work on it; wait for its end",
        **dataclasses.asdict(holder),
    )


@contextmanager
def hold(lock: Path, command: str, what: Path) -> Iterator[int]:
    """Hold `lock`; yields its descriptor. Raises BusyError naming the holder.

    The kernel drops the lock with the last process that has the descriptor. A child that must be
    over before anybody else goes on is given it too.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    # Not to wait for who writes to it, where somebody put a FIFO there.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(lock, flags, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileError(f"{lock} cannot be a lock because it is no regular file; remove it")
        deadline = time.monotonic() + _ORPHAN_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = _read_holder(descriptor)
                # A killed holder may have left a child that is about to end, and who only looks
                # (`holder_of`) has the lock for a moment.
                if holder.alive or time.monotonic() > deadline:
                    raise _busy(what, holder) from None
                time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        value = {"command": command, "pid": os.getpid(), "started": _now()}
        os.pwrite(descriptor, json.dumps(value).encode(), 0)
        try:
            yield descriptor
        finally:
            os.ftruncate(descriptor, 0)  # another process may get the number
    finally:
        os.close(descriptor)


def holder_of(lock: Path) -> Holder | None:
    """Who holds `lock` now; None when nobody does. Changes nothing."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(descriptor)
    finally:
        os.close(descriptor)
    return None


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FileError.CAUSES:
            raise
        raise FileError.of(error) from error


Self = TypeVar("Self", bound="FileTransaction")


class FileTransaction:
    """Files below `root`. Make one with `begin`; `put` and `remove`, then `commit`."""

    def __init__(self, root: Path, state: Path, journal: Journal, descriptor: int = -1) -> None:
        self.root = root
        self.state = state
        self.journal = journal
        self.descriptor = descriptor  # of the lock
        self._contents: dict[tuple[str, bool], Content | None] = {}
        self._expected: dict[tuple[str, bool], str | None] = {}  # fingerprints

    @property
    def work(self) -> Path:
        return self.state / "work"

    @classmethod
    @contextmanager
    def begin(
        cls: type[Self], root: Path, state: Path, command: str, **data: object
    ) -> Iterator[Self]:
        """Lock, and give a transaction that is dropped unless its body calls `commit`.

        `command` is the command line without `lmsbuild`. Raises BusyError when another process
        works there, UnfinishedError when an earlier run must be aborted first, FileError when the
        disk is full or read-only.
        """
        with _file_errors(), hold(state / "lock", command, root) as descriptor:
            unfinished = cls.pending(root, state, descriptor)
            if unfinished:
                unfinished.check_complete()
                unfinished.recover()
                unfinished.finish()
            kind = command.split()[0]
            journal = Journal(kind, command, _now(), os.getpid(), data=dict(data))
            transaction = cls(root, state, journal, descriptor)
            _remove(transaction.work)
            (transaction.work / "files").mkdir(parents=True)
            try:
                journal.save(transaction.work)
                yield transaction
            finally:
                if journal.phase == PREPARING:
                    transaction.finish()

    @classmethod
    def pending(cls: type[Self], root: Path, state: Path, descriptor: int = -1) -> Self | None:
        """The transaction that was stopped before its end, if there is one."""
        journal = Journal.load(state / "work")
        return None if journal is None else cls(root, state, journal, descriptor)

    @classmethod
    def last(cls, root: Path, state: Path) -> Journal | None:
        """The last finished one, if it can be taken back, be it that its clean-up is missing."""
        found = cls.pending(root, state)
        if found is None or found.journal.phase == PREPARING or not found.complete():
            return Journal.load(state / "last")
        return found.journal if found.undoable else None

    @classmethod
    def check_none_unfinished(cls, root: Path, state: Path) -> None:
        """Raise UnfinishedError for a transaction that was stopped in the middle of its switch,
        BusyError for one that is there. Takes no lock."""
        found = cls.pending(root, state)
        if found and not found.complete():
            found = cls.stopped(root, state)
            if found:
                found.check_complete()

    @classmethod
    def stopped(cls: type[Self], root: Path, state: Path) -> Self | None:
        """The transaction that was stopped before its end, seen without the lock. Raises BusyError
        while somebody is at work."""
        holder, found = cls.look(root, state)
        if holder and holder.alive:
            raise _busy(root, holder)
        return found

    @classmethod
    def look(cls: type[Self], root: Path, state: Path) -> tuple[Holder | None, Self | None]:
        """Who is at work, and the transaction that was stopped before its end, if nobody who lives
        is. Takes no lock."""
        seen = None
        while True:
            holder = holder_of(state / "lock")
            if holder and holder.alive:
                return holder, None
            found = cls.pending(root, state)
            # The same before and after a moment at which nobody who lives held the lock: stopped.
            if found is None or found.journal == seen:
                return holder, found
            seen = found.journal

    # What a transaction changes.

    def expect(self, path: str, found: str | None, *, beside: bool = False) -> None:
        """`path` had this fingerprint when it was looked at: what has been saved there since is not
        replaced."""
        self._expected[path, beside] = found

    def put(self, path: str, content: Content) -> None:
        """`path` (below the root, `/` as separator) is to have this content."""
        self._contents[path, False] = content

    def remove(self, path: str) -> None:
        self._contents[path, False] = None

    def put_beside(self, path: str, content: Content) -> None:
        """The same for a file below the state folder's parent; it is switched last."""
        self._contents[path, True] = content

    def remove_beside(self, path: str) -> None:
        self._contents[path, True] = None

    def commit(self) -> None:
        """Switch everything. On any failure everything is as it was before."""
        self._stage()
        try:
            self.claim()
            for step in self.journal.steps:
                self._check_before(step)
            self.phase(SWITCHING)
            for number, step in enumerate(self.journal.steps):
                try:
                    self._check_before(step)
                except BaseException:
                    del self.journal.steps[number:]  # of which nothing is to be taken back
                    raise
                self._forward(number, step)
            self.settle()
            self.phase(FINISHED)
        except BaseException:
            if self.journal.phase != PREPARING:
                self.roll_back()
            raise
        with contextlib.suppress(OSError):  # it is done; the next run cleans up
            self.finish()

    def phase(self, phase: str) -> None:
        # Set first: an interrupt between the two lines must find the later phase.
        self.journal.phase = phase
        self.journal.save(self.work)

    # For subclasses that switch more than files. Each may be called again after a kill.

    def claim(self) -> None:
        """Take the locks of other programs. Raises when one is held."""

    def release(self) -> None:
        """Give back what `claim` took, if it is ours."""

    def settle(self) -> None:
        """Switch what is not a file."""

    def unsettle(self) -> None:
        """Take back `settle`, done or not."""

    def recover(self) -> None:
        """Remove what a killed child of ours may have left."""

    def is_settled(self) -> bool:
        return True

    def foreign(self) -> list[str]:
        """What somebody else changed, so that `unsettle` would destroy it."""
        return []

    @property
    def undoable(self) -> bool:
        """Whether a finished one is kept, to be taken back."""
        return self.journal.kind != "undo"

    # Recovery.

    def complete(self) -> bool:
        """Nothing is left to do but to clean up: not yet begun, or completely switched."""
        return self.journal.phase != SWITCHING or (
            self.is_settled()
            and all(fingerprint(self._target(step)) == step.after for step in self.journal.steps)
        )

    def outcome(self) -> str:
        """What `abort` makes of it: see Aborted."""
        if self.journal.phase == PREPARING:
            return "nothing"
        return "completed" if self.complete() else "restored"

    def check_complete(self) -> None:
        """Raise UnfinishedError unless `complete`."""
        if not self.complete():
            raise UnfinishedError(
                f"{self.root} cannot be worked on because `lmsbuild {self.journal.command}` was "
                f"stopped in the middle ({self.journal.started}); run `lmsbuild abort` there first"
            )

    def changed_since(self) -> list[str]:
        """Files that are neither as before nor as after: somebody changed them after the kill."""
        return [
            step.path
            for step in self.journal.steps
            if fingerprint(self._target(step)) not in (step.before, step.after, None)
        ] + self.foreign()

    def roll_back(self) -> None:
        """Everything as before. Raises TreeStateError, with nothing done, when that would destroy
        a change that was made since."""
        changed = self.changed_since()
        if changed:
            raise TreeStateError(
                f"{self.root} was not restored because {', '.join(changed)} changed since; move "
                "that away and run `lmsbuild abort`",
                files=changed,
            )
        on_disk = Journal.load(self.work)
        if on_disk and on_disk.phase == FINISHED:  # an interrupt right after it was written
            self.phase(SWITCHING)
        self.unsettle()
        for number, step in reversed(list(enumerate(self.journal.steps))):
            self._backward(number, step)
        for name in reversed(self.journal.folders):
            with contextlib.suppress(OSError):
                (self.root / name).rmdir()
        self.journal.phase = PREPARING
        self.finish()

    def finish(self) -> None:
        """Clean up a complete one: keep it for undo, or forget it when it changed nothing."""
        if self.journal.phase == SWITCHING:
            self.phase(FINISHED)
        for step in self.journal.steps:
            with contextlib.suppress(OSError):
                _beside(self._target(step)).unlink()
        self.release()
        last = self.state / "last"
        if self.journal.phase == FINISHED:
            _remove(last)
            if self.undoable:
                for entry in self.work.iterdir():
                    if entry.name not in ("journal.json", "files"):
                        _remove(entry)
                self.work.rename(last)
                return
        _remove(self.work)

    # Steps.

    def _target(self, step: Step) -> Path:
        return (self.state.parent if step.beside else self.root) / step.path

    def _file(self, number: int, what: str) -> Path:
        return self.work / "files" / f"{number}.{what}"

    def _stage(self) -> None:
        """New contents and copies of the old ones, on the disk before anything is switched."""
        made: list[str] = []
        entries = sorted(self._contents.items(), key=lambda entry: (entry[0][1], entry[0][0]))
        for (path, beside), content in entries:
            step = Step(path, None, content.fingerprint if content else None, beside)
            target = self._target(step)
            step.before = fingerprint(target)
            if step.before == step.after:
                continue
            if step.before != self._expected.get((path, beside), step.before):
                raise self._changed(step)
            if step.before == "other":
                raise TreeStateError(
                    f"{target} cannot be replaced because it is no file; move it away"
                )
            number = len(self.journal.steps)
            if content:
                _write(self._file(number, "new"), content, target)
                made += [] if beside else _missing_folders(self.root, path, made)
            if step.before:
                shutil.copy2(target, self._file(number, "old"), follow_symlinks=False)
                _sync(self._file(number, "old"))
            self.journal.steps.append(step)
        self.journal.folders = made
        self.journal.save(self.work)

    def _check_before(self, step: Step) -> None:
        if fingerprint(self._target(step)) != step.before:
            raise self._changed(step)

    def _changed(self, step: Step) -> TreeStateError:
        return TreeStateError(
            f"{self.root} was not changed because {step.path} changed meanwhile; run the command "
            "again",
            files=[step.path],
        )

    def _forward(self, number: int, step: Step) -> None:
        target = self._target(step)
        if step.after:
            _install(self._file(number, "new"), target)
        else:
            target.unlink()
            if not step.beside:
                _prune(target.parent, self.root)

    def _backward(self, number: int, step: Step) -> None:
        target = self._target(step)
        if fingerprint(target) == step.before:
            return
        if step.before is None:
            target.unlink()
            return
        old = self._file(number, "old")
        if fingerprint(old) != step.before:
            raise TreeStateError(
                f"{target} cannot be restored because its copy {old} is damaged; restore it "
                "by other means, then run `lmsbuild abort` again"
            )
        _install(old, target)


def content_before(folder: Path, number: int) -> Content | None:
    """The `number`th file as it was before the transaction in `folder` (a `last`)."""
    old = folder / "files" / f"{number}.old"
    if old.is_symlink():
        return Content(os.fsencode(old.readlink()), 0o120000)
    if not old.exists():
        return None
    return Content(old.read_bytes(), 0o100755 if old.stat().st_mode & 0o100 else 0o100644)


def check_as_left(root: Path, last: Journal) -> None:
    """Raise TreeStateError naming the files that changed since `last`."""
    changed = [
        step.path
        for step in last.steps
        if not step.beside and fingerprint(root / step.path) != step.after
    ]
    if changed:
        raise TreeStateError(
            f"`lmsbuild {last.command}` cannot be taken back because {', '.join(changed)} changed "
            "since; save the change elsewhere and put the file back first",
            files=changed,
        )


def put_back(transaction: FileTransaction, last: Journal) -> None:
    """Fill `transaction` with the files as they were before `last`.

    Raises TreeStateError naming the files that changed since.
    """
    folder = transaction.state / "last"
    check_as_left(transaction.root, last)
    for number, step in enumerate(last.steps):
        if step.beside:
            continue
        content = content_before(folder, number)
        if (content.fingerprint if content else None) != step.before:
            raise TreeStateError(
                f"`lmsbuild {last.command}` cannot be taken back because the kept copy of "
                f"{step.path} is damaged; restore the file with git"
            )
        transaction.expect(step.path, step.after)
        if content:
            transaction.put(step.path, content)
        else:
            transaction.remove(step.path)


def undo_files(root: Path, state: Path, *, dry_run: bool = False) -> Journal:
    """Take back the last finished FileTransaction; its journal. Raises TreeStateError when there is
    none or a file changed since."""
    last = FileTransaction.last(root, state)
    if last is None:
        raise TreeStateError(
            f"nothing can be taken back because no `lmsbuild refresh` changed {root} since the "
            "last undo; `lmsbuild status` says where it stands"
        )
    if not dry_run:
        with FileTransaction.begin(root, state, "undo --refresh") as transaction:
            put_back(transaction, last)
            transaction.commit()
    return last


@dataclass(frozen=True)
class Aborted:
    command: str  # what had been stopped
    outcome: str  # nothing (it had changed nothing), restored, or completed


def abort(
    cls: type[FileTransaction], root: Path, state: Path, *, dry_run: bool = False
) -> Aborted | None:
    """Take back what was stopped in the middle; None when nothing was.

    Raises BusyError while it still runs, TreeStateError naming what changed since.
    """
    if not (state / "work").exists():
        return None
    if dry_run:
        stopped = cls.stopped(root, state)
        return None if stopped is None else Aborted(stopped.journal.command, stopped.outcome())
    with _file_errors(), hold(state / "lock", "abort", root) as descriptor:
        found = cls.pending(root, state, descriptor)
        if found is None:
            _remove(state / "work")
            return None
        done = Aborted(found.journal.command, found.outcome())
        found.recover()
        if done.outcome == "restored":
            found.roll_back()
        else:
            found.finish()
        return done


def _remove(folder: Path) -> None:
    """A folder, its journal first: what is left after a kill is no transaction any more."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (folder / "journal.json").unlink()
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _write(path: Path, content: Content, like: Path) -> None:
    """A new file with the permissions of `like`, where that is one of the same kind."""
    if content.mode == 0o120000:
        path.symlink_to(os.fsdecode(content.data))
        return
    executable = bool(content.mode & 0o100)
    mode = 0o777 if executable else 0o666
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content.data)
        stream.flush()
        os.fsync(stream.fileno())
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        info = like.lstat()
        if stat.S_ISREG(info.st_mode) and bool(info.st_mode & 0o100) == executable:
            path.chmod(stat.S_IMODE(info.st_mode))


def _sync(path: Path) -> None:
    if not path.is_symlink():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.lmsbuild-new")


def _install(source: Path, target: Path) -> None:
    """Move into place in one step, also from another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        near = _beside(target)
        near.unlink(missing_ok=True)
        shutil.copy2(source, near, follow_symlinks=False)
        _sync(near)
        near.replace(target)


def _missing_folders(root: Path, path: str, made: list[str]) -> list[str]:
    parts = path.split("/")[:-1]
    names = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    return [name for name in names if name not in made and not (root / name).is_dir()]


def _prune(folder: Path, root: Path) -> None:
    """Remove folders that became empty, as git does."""
    with contextlib.suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent
