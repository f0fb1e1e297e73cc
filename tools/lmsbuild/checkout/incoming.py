# SPDX-License-Identifier: Apache-2.0
"""Changes from outside as steps of an arrangement: mails, diffs, and what a checkout's files have.

Each becomes the difference of two trees, so that whatever form it came in it goes on as a patch of
a series does.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lmsbuild.base.errors import FileError, GitError, PatchError, TreeStateError, UsageError
from lmsbuild.base.filenames import is_utf8
from lmsbuild.base.git import Entry, Repository, entries
from lmsbuild.base.transaction import fingerprint
from lmsbuild.checkout.arrange import Plan, Stack, inserted, named
from lmsbuild.checkout.arranging import Step
from lmsbuild.checkout.shadow import Shadow, bring_blobs
from lmsbuild.checkout.switch import looking
from lmsbuild.series.format import mail_of, patch_bytes
from lmsbuild.series.mail import Mail, of_parts
from lmsbuild.series.scratch import Scratch, scratch

_MOST = 256 << 20  # bytes of a file of patches
_PATIENCE = 5.0  # seconds that a FIFO's writer may take to come


@dataclass
class _Desk:
    """Diffs laid one on the other, onto the commit `tip`."""

    room: Scratch
    user: Repository
    tip: str
    now: dict[str, Entry] = field(default_factory=dict)  # what diffs before have made

    def patch(self, diff: bytes, mail: Mail, what: str) -> str:
        """The diff as a patch of a series. Raises PatchError when it fits neither the code nor the
        blobs that it names."""
        paths = self._paths(diff, what)
        bring_blobs(self.user, self.tip, paths)
        there = {**entries(self.room.repository, self.tip, paths)}
        there.update({path: self.now[path] for path in paths if path in self.now})
        before = self.room.tree(there)
        try:
            after = self.room.apply(before, diff)
        except GitError as error:
            if error.killed:
                raise
            before, after = self._on_its_own(diff, what, error)
        self.now.update(self.room.entries(after))
        content = patch_bytes(self.room, mail, before, after, what)
        return content.decode(errors="surrogateescape")

    def _paths(self, diff: bytes, what: str) -> list[str]:
        words = ("apply", "--numstat", "-z", "-")
        done = self.room.repository.git.run(*words, stdin=diff, check=False)
        if done.returncode != 0 or not done.stdout:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["it is empty"]
            raise PatchError(
                f"{what} cannot be taken because it is no diff that git reads ({said[-1]}); give a "
                "mail, an mbox or a diff"
            )
        found: list[str] = []
        words_of = iter(os.fsdecode(done.stdout).split("\0")[:-1])
        for word in words_of:
            name = word.split("\t", 2)[2]
            # Of a renamed file both names follow.
            found += [name] if name else [next(words_of), next(words_of)]
        for path in found:
            if not is_utf8(path):
                raise PatchError(
                    f"{what} cannot be taken because the name {path!r} is not UTF-8; rename that "
                    "file"
                )
        return found

    def _on_its_own(self, diff: bytes, what: str, failure: GitError) -> tuple[str, str]:
        """The diff on the blobs that its index lines name."""
        git = self.room.repository.git
        with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
            index = Path(folder) / "index"
            words = ("apply", f"--build-fake-ancestor={index}", "-")
            done = git.run(*words, stdin=diff, check=False)
            if done.returncode == 0:
                ancestor = self.room.repository.variant(variables={"GIT_INDEX_FILE": str(index)})
                before = ancestor.git.text("write-tree")
                try:
                    return before, self.room.apply(before, diff)
                except GitError as error:
                    if error.killed:
                        raise
        raise PatchError(
            f"{what} cannot be taken because it does not fit the code and the checkout lacks the "
            f"blobs that it was made from (git says: {failure.reason}); put it after another "
            "patch, or make it fit",
            output=failure.output,
        ) from failure


@contextmanager
def _desk(stack: Stack, at: int) -> Iterator[_Desk]:
    inserted(stack, at, [])  # says why not, if so
    with scratch(stack.user) as room:
        yield _Desk(room, stack.user, stack.on[at].commit)


def diffs(stack: Stack, at: int, files: Sequence[Path]) -> list[Step]:
    """The diffs in `files`, to be folded into the patch at `at`."""
    with _desk(stack, at) as desk:
        mail = mail_of(stack.user, stack.on[at].commit)
        return [
            Step(stack.on[at].name, desk.patch(_read(file), mail, str(file)), fold=True)
            for file in files
        ]


def mails(stack: Stack, at: int, files: Sequence[Path]) -> list[Step]:
    """The mails in `files`, each a patch of its own, to go after the one at `at`."""
    made: list[Step] = []
    with _desk(stack, at) as desk:
        for file in files:
            for mail, diff in _split(desk.room, file):
                what = f"{mail.subject!r} of {file}"
                name = named(stack.target, at + 1 + len(made), mail.subject)
                made.append(Step(name, desk.patch(diff, mail, what)))
    return made


def _read(file: Path) -> bytes:
    """It may be a pipe, and what never ends."""
    if file.is_dir():
        raise PatchError(f"{file} cannot be taken because it is a folder; name the files in it")
    try:
        with open(file, "rb", opener=_at_once) as stream:
            begin = _begin(stream.fileno(), file) if file.is_fifo() else b""
            os.set_blocking(stream.fileno(), True)
            data = begin + stream.read(_MOST + 1)
    except OSError as error:
        raise FileError.of(error) from error
    if len(data) > _MOST:
        raise PatchError(
            f"{file} cannot be taken because it has over {_MOST >> 20} MiB; give a mail, an mbox "
            "or a diff"
        )
    return data


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _begin(pipe: int, file: Path) -> bytes:
    """What a FIFO begins with, or nothing yet. That no program writes to it is an error: to wait
    for one would have no end."""
    if select.select([pipe], [], [], _PATIENCE)[0]:
        return b""
    try:
        begin = os.read(pipe, 1)
    except BlockingIOError:  # a program has it open, and is still to write
        return b""
    if not begin:
        raise OSError(errno.ENXIO, "no program writes to that pipe", str(file))
    return begin


def _split(room: Scratch, file: Path) -> Iterator[tuple[Mail, bytes]]:
    """Message and diff of every mail in a file, as git reads them."""
    data = _read(file)  # once: it may be a pipe
    if not data.strip():
        raise PatchError(
            f"{file} cannot be taken because it is empty; give what `git format-patch` writes"
        )
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as name:
        folder = Path(name)
        # Where the first header ends with a carriage return, the way of the mail gave it to all.
        kept = () if data.partition(b"\n")[0].endswith(b"\r") else ("--keep-cr",)
        room.repository.git.run("mailsplit", *kept, "-b", f"-o{folder}", stdin=data)
        found = sorted(folder.iterdir())
        for number, each in enumerate(found, 1):
            body, diff = folder / "message", folder / "diff"
            # Recoded as git writes commits: --encoding=UTF-8 recodes nothing (git 2.35 and later).
            words = ("mailinfo", "-u", "-b", "--no-scissors", str(body), str(diff))
            try:
                head = room.repository.git.run(*words, stdin=each.read_bytes()).stdout
                fields = dict(
                    line.split(": ", 1)
                    for line in head.decode(errors="replace").splitlines()
                    if line
                )
                mail = of_parts(
                    fields.get("Author", ""), fields.get("Email", ""), fields.get("Date", ""),
                    f"{fields.get('Subject', '')}\n\n{body.read_text('utf-8', 'replace')}",
                )  # fmt: skip
            except (ValueError, GitError) as error:
                if isinstance(error, GitError) and error.killed:
                    raise
                why = f"git says: {error.reason}" if isinstance(error, GitError) else error
                raise PatchError(
                    f"mail {number} of {file} cannot be taken because {why}; give what `git "
                    "format-patch` writes, or take a plain diff with `lmsbuild fold`"
                ) from error
            yield mail, diff.read_bytes()


# What the files have.


def with_changes(stack: Stack, at: int) -> Plan:
    """What is changed and not committed, as a part of the patch at `at`. Raises UsageError when
    there is nothing."""
    inserted(stack, at, [])  # says why not, if so
    with looking(stack.user, stack.seen):
        text, laid = _changes(stack, at)
    plan = inserted(stack, at, [Step(stack.on[at].name, text, fold=True)])
    return Plan(plan.on, plan.popped, changes=text, laid=laid)


def _changes(stack: Stack, at: int) -> tuple[str, dict[str, str | None]]:
    """What is not committed as a patch, and the fingerprints of its files."""
    user = stack.user
    changes = user.variant(as_user=True).changes()
    untracked = [entry[3:] for entry in changes if entry.startswith("??")]
    if untracked:
        raise TreeStateError(
            f"{user.path} cannot be taken from because git does not track {untracked[0]}; `git "
            "add` what belongs to the patch, remove the rest or have git ignore it",
            files=untracked,
        )
    # Before their contents are read: what is saved since is noticed.
    found = {entry[3:]: fingerprint(user.path / entry[3:]) for entry in changes}
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as name:
        shadow = Shadow(user, Path(name))
        try:
            tree = _tree_of_files(user, shadow)
            with scratch(shadow.repository) as room:
                before = f"{user.tip()}^{{tree}}"
                raws = room.changed(before, tree)
                mail = mail_of(user, stack.on[at].commit)
                content = patch_bytes(room, mail, before, tree, f"what is changed in {user.path}")
        finally:
            shadow.close()
    if not raws:
        raise UsageError(
            f"nothing can be put into {stack.on[at].name} because no file that git tracks is "
            f"changed in {user.path}; edit there first (`git add` new files)"
        )
    laid = {raw.path: found.get(raw.path) for raw in raws}
    return content.decode(errors="surrogateescape"), laid


def _tree_of_files(user: Repository, shadow: Shadow) -> str:
    """The tree that `git commit -a` would give. Its objects go to the shadow alone."""
    unmerged = user.git.run("ls-files", "--unmerged").stdout
    if unmerged:
        raise TreeStateError(
            f"{user.path} cannot be taken from because files are in conflict there; resolve and "
            "`git add` them first"
        )
    copy = shadow.folder / "users-index"
    shutil.copy2(user.file("index"), copy)
    theirs = user.variant(
        as_user=True,
        variables={
            "GIT_INDEX_FILE": str(copy),
            "GIT_OBJECT_DIRECTORY": str(shadow.folder / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(user.file("objects").resolve()),
        },
    )
    theirs.git.run("add", "-u")
    return theirs.git.text("write-tree")
