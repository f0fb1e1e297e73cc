# SPDX-License-Identifier: Apache-2.0
"""Switch a checkout from one commit to another: files, index and refs, all or none of them.

The index is locked the way git locks it, so no other git program can work on a half-switched
checkout, not even after this process was killed; `abort` knows its own lock and removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lmsbuild.base.errors import BusyError, GitError, LmsbuildError, TreeStateError, UnfinishedError
from lmsbuild.base.git import NOTHING, Entry, Raw, Repository, checkout_git
from lmsbuild.base.hashing import git_blob
from lmsbuild.base.transaction import SWITCHING, Content, FileTransaction, Journal, fingerprint
from lmsbuild.checkout.notes import OUR_REFS
from lmsbuild.checkout.shadow import Shadow

# Of each worktree its own. `base` is the tag's code, `applied` HEAD right after `apply`.
REFS = "refs/worktree/lmsbuild/"
_NO_MODE = "000000"
_GIT_SECONDS = 2.0  # no git program holds a ref's lock for longer


def state_of(user: Repository) -> Path:
    return user.file("lmsbuild")


def resolve(user: Repository, name: str) -> str:
    """The commit of a ref, NOTHING when there is none."""
    return user.commit_id(name) or NOTHING


def recorded(user: Repository, name: str) -> str:
    """`base` or `applied` of this worktree, NOTHING when there is none."""
    found = resolve(user, f"{REFS}{name}")
    # Checkouts made before worktrees had refs of their own.
    return found if found != NOTHING else resolve(user, f"refs/lmsbuild/{name}")


@dataclass(frozen=True)
class Seen:
    """Where a checkout stands. Each command of ours that changes it changes one of these, even
    where HEAD stays because only what is popped is arranged."""

    head: str
    refs: tuple[str, ...]
    notes: dict[str, str | None]

    @classmethod
    def of(cls, user: Repository) -> Seen:
        refs = tuple(recorded(user, name) for name in OUR_REFS)
        notes = {path.name: fingerprint(path) for path in state_of(user).glob("*.json")}
        return cls(user.tip(), refs, notes)

    def check(self, user: Repository) -> None:
        """Raise BusyError when the checkout stands elsewhere now."""
        now = Seen.of(user)
        if now != self:
            moved = now.head != self.head
            what = "it moved to another commit" if moved else "another lmsbuild worked on it"
            raise BusyError(
                f"{user.path} cannot be worked on because {what} meanwhile; run the command again"
            )


@contextmanager
def looking(user: Repository, since: Seen | None = None) -> Iterator[Seen]:
    """A look at a checkout without its lock, which goes on with one `since` if given. What is found
    while a command of ours changes it is no result, and no reason to refuse: raises BusyError then,
    and UnfinishedError where one was stopped in the middle of that."""
    seen = since or Seen.of(user)

    def check() -> None:
        CheckoutTransaction.check_none_unfinished(user.path, state_of(user))
        seen.check(user)

    check()
    try:
        yield seen
    except (LmsbuildError, OSError):
        check()
        raise
    check()


class CheckoutTransaction(FileTransaction):
    """Make one with `on`; then `switch_to`, `move_refs` and `commit`."""

    shadow: Shadow

    @classmethod
    @contextmanager
    def on(
        cls, user: Repository, command: str, *, since: Seen, **data: object
    ) -> Iterator[CheckoutTransaction]:
        """Raises BusyError when the checkout does not stand as it did `since` any more."""
        branch = user.branch()
        with cls.begin(user.path, state_of(user), command, branch=branch, **data) as transaction:
            since.check(transaction.user)
            transaction.shadow = Shadow(transaction.user, transaction.work / "shadow")
            with transaction.user, contextlib.closing(transaction.shadow):
                yield transaction

    @cached_property
    def user(self) -> Repository:
        """The user's. Git processes that change it hold our lock: nobody goes on before they are
        over."""
        found = checkout_git(self.root)
        assert found is not None
        return found.variant(keep=(self.descriptor,)) if self.descriptor >= 0 else found

    # What is to change.

    def switch_to(self, changes: list[Raw], files: dict[str, bytes]) -> None:
        """The files of `changes` get the contents `files` and all of them go into the index.

        Raises TreeStateError naming what is in the way.
        """
        for change in changes:
            if self._is_sparse(change):
                continue
            self.expect(change.path, check_unchanged(self.user, change))
            if change.after.mode == _NO_MODE:
                self.remove(change.path)
            else:
                self.put(change.path, Content(files[change.path], int(change.after.mode, 8)))
        self.put_index(changes)

    def put_index(
        self, changes: list[Raw], conflicts: Mapping[str, Sequence[Entry | None]] | None = None
    ) -> None:
        """The user's index with the entries of `changes` replaced. `conflicts` are files in
        conflict, as git has them: base, ours and theirs, each as far as there is one."""
        index = self.work / "index"
        shutil.copy2(self.user.file("index"), index)
        self.expect("index", fingerprint(index), beside=True)
        git = self.shadow.over(index).git
        sparse = [change.path for change in changes if self._is_sparse(change)]
        lines = (f"{c.after.mode} {c.after.blob}\t{c.path}\0" for c in changes)
        git.run("update-index", "-z", "--index-info", stdin=os.fsencode("".join(lines)))
        for path, sides in (conflicts or {}).items():
            stages = [f"{_NO_MODE} {NOTHING}\t{path}\0"] + [
                f"{entry.mode} {entry.blob} {number}\t{path}\0"
                for number, entry in enumerate(sides, 1)
                if entry is not None
            ]
            git.run("update-index", "-z", "--index-info", stdin=os.fsencode("".join(stages)))
        names = os.fsencode("".join(f"{path}\0" for path in sparse))
        git.run("update-index", "-z", "--skip-worktree", "--stdin", stdin=names)
        self.put_beside("index", Content(index.read_bytes()))

    def _is_sparse(self, change: Raw) -> bool:
        """Tracked, and by a sparse checkout not among the files."""
        if change.before.mode == _NO_MODE or os.path.lexists(self.root / change.path):
            return False
        asked = ("--literal-pathspecs", "ls-files", "-t", "-z", "--", change.path)
        line = self.user.git.run(*asked).stdout
        return line.startswith(b"S ")

    def move_refs(self, head: str, **kept: str) -> None:
        """HEAD (its branch, if one is checked out) and refs of ours; NOTHING removes one."""
        after = {str(self.journal.data["branch"]): head}
        after.update({f"{REFS}{name}": commit for name, commit in kept.items()})
        self.journal.refs = {
            name: [resolve(self.user, name), commit] for name, commit in after.items()
        }

    # The switch.

    @property
    def _token(self) -> Path:
        return self.work / "index-lock"

    @property
    def _index_lock(self) -> Path:
        return self.state.parent / "index.lock"

    def claim(self) -> None:
        self._token.touch()
        try:
            os.link(self._token, self._index_lock)
        except FileExistsError:
            raise TreeStateError(
                f"{self.root} was not changed because another git program works on it "
                f"({self._index_lock} exists); wait for its end, or remove that file if none runs"
            ) from None
        if self.user.branch() != self.journal.data["branch"]:
            raise TreeStateError(
                f"{self.root} was not changed because another branch was checked out meanwhile; "
                "run the command again"
            )
        for name, (before, _) in self.journal.refs.items():
            if resolve(self.user, name) != before:
                raise TreeStateError(
                    f"{self.root} was not changed because {name} moved meanwhile; run the command "
                    "again"
                )

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._token.samefile(self._index_lock):
                self._index_lock.unlink()

    def _forward(self, number: int, step: object) -> None:
        found = self.journal.steps[number]
        if found.beside and found.path == "index":
            # Only now the new files have the times and inodes that the index keeps.
            staged = self._file(number, "new")
            self.shadow.over(staged).git.run("update-index", "-q", "--refresh", check=False)
            found.after = fingerprint(staged)
            self.journal.save(self.work)
        super()._forward(number, found)

    def settle(self) -> None:
        self._update({name: (after, before) for name, (before, after) in self.journal.refs.items()})

    def unsettle(self) -> None:
        refs = self.journal.refs.items()
        back = {n: (before, after) for n, (before, after) in refs if resolve(self.user, n) == after}
        self._update(back)

    @property
    def undoable(self) -> bool:
        # What several of them make is taken back by --abort until it is at its end.
        return self.journal.kind not in ("undo", "port") and not self.journal.data.get("stopped")

    def recover(self) -> None:
        if self.journal.phase == SWITCHING:
            self._remove_ref_locks()

    def is_settled(self) -> bool:
        refs = self.journal.refs.items()
        return all(resolve(self.user, name) == after for name, (_, after) in refs)

    def foreign(self) -> list[str]:
        refs = self.journal.refs.items()
        moved = [name for name, both in refs if resolve(self.user, name) not in both]
        branch = self.user.branch()
        return moved if branch == self.journal.data["branch"] else [*moved, f"HEAD (now {branch})"]

    def _update(self, moves: dict[str, tuple[str, str]]) -> None:
        lines = []
        for name, (to, since) in moves.items():
            if to == since:
                continue
            lines.append(
                f"delete {name} {since}" if to == NOTHING else f"update {name} {to} {since}"
            )
        if lines:
            text = "".join(f"{line}\n" for line in lines)
            reason = f"lmsbuild {self.journal.command}"
            self.user.git.run("update-ref", "-m", reason, "--stdin", stdin=os.fsencode(text))

    def _remove_ref_locks(self) -> None:
        """Of a git that was killed with us. Another program's would be gone after a moment."""
        deadline = time.monotonic() + _GIT_SECONDS
        names = ["HEAD", "packed-refs", *self.journal.refs]
        locks = [Path(f"{self.user.file(name)}.lock") for name in names]
        while any(lock.exists() for lock in locks) and time.monotonic() < deadline:
            time.sleep(0.1)
        for lock in locks:
            lock.unlink(missing_ok=True)


def check_unchanged(user: Repository, change: Raw) -> str | None:
    """The file's fingerprint. Raises TreeStateError unless it is as the checkout's commit has it.

    A form that the user's own settings give it (line ends, filters) is no change.
    """
    path = user.path / change.path
    if change.before.mode == _NO_MODE:
        for place in [path, *path.parents]:
            if place == user.path:
                return None
            if os.path.lexists(place) and (place == path or place.is_symlink() or place.is_file()):
                name = place.relative_to(user.path)
                raise TreeStateError(
                    f"the series cannot be applied because {name} in {user.path} is in the way of "
                    f"a new file ({change.path}) and git does not track it; move it away",
                    file=str(name),
                )
        return None
    found = fingerprint(path)  # before its content is read: what is saved since is noticed
    if _blob_there(user, change, found) != change.before.blob:
        raise TreeStateError(
            f"the series cannot be applied because {change.path} in {user.path} is not as its "
            "commit has it (git was told to overlook that, or it was saved just now); put it back, "
            "or commit it",
            file=change.path,
        )
    return found


def _blob_there(user: Repository, change: Raw, found: str | None) -> str:
    """The blob of the file, which has the fingerprint `found`, in the form that the commit has it
    in; "" for none."""
    path = user.path / change.path
    if found is None or found == "other":
        return ""
    try:
        if found.startswith("link:"):
            return git_blob(os.fsencode(path.readlink()))
        blob = git_blob(path.read_bytes())
    except FileNotFoundError:  # it went since
        return ""
    if blob != change.before.blob:
        try:
            return user.variant(as_user=True).git.text("hash-object", "--", change.path)
        except GitError as error:
            if error.misconfigured:
                raise
    return blob


def last_of(user: Repository) -> Journal | None:
    """The last finished switch of this checkout, if it can be taken back. Raises UnfinishedError
    for a journal that no switch wrote."""
    folder = state_of(user) / "last"
    last = CheckoutTransaction.last(user.path, state_of(user))
    if last is None:
        return None
    arranged = last.data.get("arranged")
    texts = [last.data.get(name) for name in ("branch", "start", "head")]
    if arranged is not None:
        try:
            texts += [arranged["changes"], *(arranged["refs"][name] for name in OUR_REFS)]
            texts += [each["name"] for each in arranged["popped"]]
        except (KeyError, TypeError):
            texts.append(None)
    if not all(isinstance(text, str) for text in texts):
        raise UnfinishedError(
            f"{folder / 'journal.json'} cannot be understood because it is damaged (what was done "
            "is not in it); nothing can be taken back by it: move this folder away"
        )
    return last
