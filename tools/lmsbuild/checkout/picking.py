# SPDX-License-Identifier: Apache-2.0
"""Patches put on a checkout one by one, up to the first that needs a person: what `port` and the
commands that arrange patches share."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from lmsbuild.base.console import Console
from lmsbuild.base.errors import TreeStateError, UsageError
from lmsbuild.base.git import Entry, Repository, checkout_git, checkout_top, has_git
from lmsbuild.base.project import Project, find_project, full_path
from lmsbuild.checkout.checkout import hold
from lmsbuild.checkout.layout import bring
from lmsbuild.checkout.shadow import Shadow
from lmsbuild.checkout.switch import CheckoutTransaction, Seen, looking
from lmsbuild.series.mail import Mail
from lmsbuild.series.merge import BEFORE
from lmsbuild.series.scratch import Scratch
from lmsbuild.tags.frameworks import Target, resolve

RESOLVED = "resolved"  # by a person
SKIPPED = "skipped"


@dataclass(frozen=True)
class Stop:
    """A patch that needs a person: where, and what messages call the command."""

    what: str  # the port
    tool: str  # lmsbuild port
    patch: str
    tip: str  # HEAD as it was left
    laid: Sequence[str]
    ours: str  # what the marks call the checkout's side


class Way(Protocol):
    """What a checkout knows of patches that are being put on it."""

    branch: str

    @property
    def label(self) -> str: ...  # framework:tag of the series
    @property
    def what(self) -> str: ...  # what messages call it
    @property
    def title(self) -> str: ...  # what its progress is called


W = TypeVar("W", bound=Way)


@contextmanager
def resumed(
    path: Path,
    under_way: Callable[[Repository], W | None],
    idle: str,
    begin: str,
    console: Console,
) -> Iterator[tuple[Repository, Target, W, Seen]]:
    """What is under way in the checkout at `path`, and where that stands; `idle` is why
    nothing may be, `begin` how one begins. Raises UsageError, TreeStateError."""
    hold(path)
    user = checkout_git(path)
    assert user is not None
    with looking(user) as since:
        way = under_way(user)
        if way is None:
            raise UsageError(f"nothing can be gone on with in {path} because {idle}; {begin}")
        if user.branch() != way.branch:
            raise TreeStateError(
                f"{way.what} in {path} cannot go on because {user.branch()} is checked out, and it "
                f"was begun on {way.branch}; switch to that first"
            )
    target = resolve(find_project(), way.label)
    with user, console.task(way.title):
        yield user, target, way, since


class Writer:
    """Commits, written in the index of a shadow, which has the tree of `tip`."""

    def __init__(self, shadow: Shadow, room: Scratch, tip: str) -> None:
        self._shadow, self._room = shadow, room
        shadow.stand_on(tip)

    def take(self, changes: Mapping[str, Entry]) -> None:
        lines = (f"{entry.mode} {entry.blob}\t{path}\0" for path, entry in changes.items())
        text = os.fsencode("".join(lines))
        self._shadow.repository.git.run("update-index", "-z", "--index-info", stdin=text)

    def commit(self, changes: Mapping[str, Entry], parent: str, mail: Mail) -> str:
        """The commit on `parent` with `changes` that the scratch repository made."""
        bring(self._shadow, self._room, changes.values())
        self.take(changes)
        made = self._shadow.repository.git.text("write-tree", "--missing-ok")
        return commit(self._shadow, made, parent, mail)


def commit(shadow: Shadow, tree: str, parent: str, mail: Mail) -> str:
    """A commit as `git am` makes it of a mail."""
    who = {
        "GIT_AUTHOR_NAME": mail.author,
        "GIT_AUTHOR_EMAIL": mail.email,
        "GIT_AUTHOR_DATE": mail.date,
        "GIT_COMMITTER_DATE": mail.date,
    }
    git = shadow.repository.variant(variables=who).git
    words = ("commit-tree", tree, "-p", parent)
    return git.run(*words, stdin=f"{mail.message}\n".encode()).stdout.decode().strip()


def find(project: Project, into: Path | None, place: Callable[[Repository], Path],
         stop: tuple[str, str]) -> Path:  # fmt: skip
    """The checkout where something is under way, which has a file at `place`: `into`, else the one
    the user stands in, else the only one in the work folder. `stop` is what that is called, and how
    one begins. Raises UsageError."""

    def has(path: Path) -> bool:
        user = checkout_git(path) if path.is_dir() and has_git(path) else None
        return user is not None and place(user).exists()

    here = checkout_top(Path.cwd())
    choices = [full_path(into)] if into else [here] if here else []
    found = [path for path in choices if has(path)]
    if not found and into is None:
        found = [path for path in sorted(project.work.glob("*/source")) if has(path)]
    if len(found) == 1:
        return found[0]
    what, begin = stop
    where = f"in {into}" if into else f"where you stand or in {project.work}"
    names = f"{len(found)} {what}s are" if found else f"no {what} is"
    raise UsageError(
        f"nothing can be gone on with because {names} under way {where}; name the checkout with "
        f"--into, or begin with {begin}"
    )


def resolved(transaction: CheckoutTransaction, stop: Stop) -> tuple[str, str]:
    """The tree that a person made of the patch, and the commit that is HEAD: that where it stopped,
    or what was committed on top of it. Raises TreeStateError."""
    user, shadow = transaction.user, transaction.shadow
    _check_resolved(user, stop)
    copy = transaction.work / "resolved"
    shutil.copy2(user.file("index"), copy)
    tree = shadow.over(copy).git.text("write-tree", "--missing-ok")
    tip = user.tip()
    if not user.holds(stop.tip):
        raise TreeStateError(
            f"{stop.what} in {user.path} cannot go on because HEAD does not come from "
            f"{stop.tip[:12]}, where it stopped; go back with `git reset --soft {stop.tip[:12]}`"
        )
    if tree == user.tree_id(tip).hex() and tip == stop.tip:
        raise TreeStateError(
            f"{stop.what} in {user.path} cannot go on because nothing of {stop.patch} is staged; "
            f"`git add` what resolves it, or leave the patch out with `{stop.tool} --skip`"
        )
    return tree, tip


def _check_resolved(user: Repository, stop: Stop) -> None:
    listed = os.fsdecode(user.git.run("ls-files", "--unmerged", "-z").stdout).split("\0")
    left = list(dict.fromkeys(line.partition("\t")[2] for line in listed if line))
    why = "is still in conflict"
    if not left:
        theirs = user.variant(as_user=True).git
        words = ("diff", "--name-only", "-z", "--no-ext-diff", "--no-renames")
        left = os.fsdecode(theirs.run(*words).stdout).split("\0")[:-1]
        why = "has changes that are not staged"
    if not left:
        marked = _marked(user, stop)
        left = list(marked)
        why = f"still has the marks of a conflict, as in line {min(marked.values(), default=0)}"
    if left:
        raise TreeStateError(
            f"{stop.what} in {user.path} cannot go on because {left[0]} {why}; edit it, `git add` "
            f"(or `git rm`) it and run `{stop.tool} --continue`",
            files=left,
        )


def _marked(user: Repository, stop: Stop) -> dict[str, int]:
    """What was laid out and is staged with one of the three marks that have a name: the first
    line of such. Only these are no line of a file's own."""
    names = f"<<<<<<< {stop.ours}", f"||||||| {BEFORE}", f">>>>>>> {stop.patch}"
    mark = re.compile(rb"^(?:%s)\r?$" % b"|".join(re.escape(os.fsencode(n)) for n in names), re.M)
    found = {}
    for path in stop.laid:
        text = _staged(user, path) or b""
        first = mark.search(text)
        if first:
            found[path] = text.count(b"\n", 0, first.start()) + 1
    return found


def _staged(user: Repository, path: str) -> bytes | None:
    found = user.git.read(f":{path}")
    return found[2] if found else None


def check_only_laid(user: Repository, stop: Stop) -> None:
    """Raise TreeStateError when anything but what was laid out would be lost."""
    if user.tip() != stop.tip:
        raise TreeStateError(
            f"{user.path} was not changed because HEAD is {user.tip()[:12]} and no longer what "
            f"`{stop.tool}` left; keep what is there with `git branch mine`, then `git reset "
            f"--soft {stop.tip[:12]}`"
        )
    theirs = user.variant(as_user=True).changes()
    others = [line[3:] for line in theirs if line[3:] not in stop.laid and line[:2] != "??"]
    if others:
        raise TreeStateError(
            f"{user.path} was not changed because {', '.join(others[:5])} has changes that "
            f"{stop.what} did not make; commit them on another branch, stash or remove them first",
            files=others,
        )
