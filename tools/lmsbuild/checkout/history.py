# SPDX-License-Identifier: Apache-2.0
"""What upstream did between two tags: where a file went, and which commit changed a line.

Answers only from commits that a clone holds. Where the two have no common ancestor there, as in
shallow clones and imported tarballs, no commit is named, and a renamed file is told by its content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from lmsbuild.base.errors import GitError
from lmsbuild.base.git import Repository, entries
from lmsbuild.series.patchstate import Conflict
from lmsbuild.series.scratch import Scratch

_RENAMES = 8  # of one file, one after the other
_LIKE = "-M50%"  # as much of a renamed file is still the same


@dataclass(frozen=True)
class Commit:
    """One of upstream's."""

    id: str
    date: str  # YYYY-MM-DD
    subject: str

    def __str__(self) -> str:
        return f"{self.id[:12]} of {self.date} ({self.subject})"


@dataclass(frozen=True)
class Fate:
    """What became of a file that a tree has not: its new name, or "" for one that is gone."""

    path: str
    to: str
    commit: Commit | None


@dataclass(frozen=True)
class _Touch:
    """A commit on the way, and what it does to the files that were asked about: path -> A, D, M."""

    commit: str
    files: dict[str, str]


@dataclass(frozen=True, eq=False)
class History:
    """The commits of `repository` between the tag that a series is for, None where that is not
    there, and another. `room` reads the objects of both; `paths` are what will be asked about."""

    repository: Repository
    before: str | None
    after: str
    room: Scratch
    paths: tuple[str, ...]

    @cached_property
    def _span(self) -> str | None:
        """What `git log` is asked for, None when nothing links the two."""
        if self.before is None or not self.repository.git.ok("merge-base", self.before, self.after):
            return None
        return f"{self.before}...{self.after}"

    @cached_property
    def _known(self) -> list[_Touch]:
        return self._walk(self.paths)

    def _touching(self, *paths: str) -> list[_Touch]:
        """The commits that touch one of `paths`, newest first."""
        # A walk takes a second where there are years between the two: one is for all files.
        known = self._known if set(paths) <= set(self.paths) else self._walk(paths)
        return [touch for touch in known if not touch.files.keys().isdisjoint(paths)]

    def _walk(self, paths: Sequence[str]) -> list[_Touch]:
        if self._span is None:
            return []
        done = self.repository.git.run(
            "--literal-pathspecs", "-c", "core.quotePath=false",
            "log", "--no-renames", "--name-status", "--format=%x00%H %P",
            self._span, "--", *paths, check=False,
        )  # fmt: skip
        if done.returncode != 0:  # a clone lacks what would tell
            return []
        found = []
        for record in done.stdout.decode(errors="surrogateescape").split("\0")[1:]:
            ids, _, rest = record.partition("\n")
            name, *parents = ids.split()
            lines = (line.split("\t", 1) for line in rest.splitlines() if line)
            # The first commit that a shallow clone has seems to have made everything.
            if parents:
                found.append(_Touch(name, {path: status for status, path in lines}))
        return found

    def _newest(self, commits: Sequence[str], *words: str) -> Commit | None:
        """The first of `commits`, newest first, that `git log` shows with these `words`."""
        if not commits:
            return None
        shown = "--format=%H%x00%cs%x00%s"
        done = self.repository.git.run(
            "--literal-pathspecs", "log", "-1", "--no-walk=unsorted", "--stdin", shown, *words,
            stdin="".join(f"{name}\n" for name in commits).encode(), check=False,
        )  # fmt: skip
        line = done.stdout.decode(errors="replace").partition("\n")[0]
        return Commit(*line.split("\0")) if done.returncode == 0 and line else None

    def fate(self, path: str) -> Fate:
        """What became of `path`, which the later tree has not and the series' tag has."""
        name, first = path, None
        for _ in range(_RENAMES):
            touches = [t.commit for t in self._touching(name) if t.files[name] in ("A", "D")]
            commit = self._newest(touches[:1])
            if commit is None:
                break
            first = first or commit
            name = self._renamed_by(commit, name)
            if not name:
                return Fate(path, "", first)
            if entries(self.repository, self.after, [name]):
                return Fate(path, name, first)
        return Fate(path, self._like(path), first)

    def _renamed_by(self, commit: Commit, path: str) -> str:
        """The other name that `path` has on the other side of a commit, or ""."""
        done = self.repository.git.run(
            "diff-tree", "-r", "-z", "--no-commit-id", _LIKE, "-l0", "--diff-filter=R",
            "--name-status", f"{commit.id}^1", commit.id, check=False,
        )  # fmt: skip
        words = done.stdout.decode(errors="surrogateescape").split("\0")
        pairs = zip(words[1::3], words[2::3], strict=False)
        return next((b if a == path else a for a, b in pairs if path in (a, b)), "")

    def _like(self, path: str) -> str:
        """The file of the later tree that is most like `path` and new there, or ""."""
        if self.before is None:
            return ""
        before = self.room.entries(self.before, [path])
        kind = PurePosixPath(path).suffix
        new = [name for name in self._added() if PurePosixPath(name).suffix == kind]
        after = entries(self.repository, self.after, new)
        if not before or not after:
            return ""
        git = self.room.repository.git
        trees = self.room.tree(before), self.room.tree(after)
        words = ("diff-tree", "-r", "-z", _LIKE, "-l0", "--diff-filter=R", "--name-only", *trees)
        done = git.run(*words, check=False)
        return done.stdout.decode(errors="surrogateescape").split("\0")[0]

    def _added(self) -> list[str]:
        assert self.before is not None
        words = ("diff-tree", "-r", "-z", "--no-renames", "--diff-filter=A", "--name-only")
        done = self.room.repository.git.run(*words, self.before, self.after, check=False)
        return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]

    def broke(self, path: str, at: str, conflict: Conflict) -> Commit | None:
        """The commit that made the lines differ that `conflict` is about: of the lines that one
        side has more often, in the whole file, the longest."""
        if self._span is None:
            return None
        try:
            ours, theirs = self._lines(self.before or "", path), self._lines(self.after, at)
        except GitError as error:
            if error.killed:
                raise
            return None
        differing = [
            line.text
            for line in (*conflict.expected, *conflict.found)
            if line.differs and ours.count(line.text) != theirs.count(line.text)
        ]
        names = list(dict.fromkeys((path, at)))
        commits = [touch.commit for touch in self._touching(*names)] if differing else []
        for text in sorted(dict.fromkeys(differing), key=lambda text: -len(text.strip())):
            found = self._newest(commits, _LIKE, f"-S\n{text}\n", "--", *names)
            if found is not None:
                return found
        return None

    def _lines(self, commit: str, path: str) -> list[str]:
        found = entries(self.repository, commit, [path])
        text = self.repository.blob(found[path].blob) if found else b""
        return text.decode(errors="replace").split("\n")
