# SPDX-License-Identifier: Apache-2.0
"""One file merged three ways: as the patch found it, as the patch leaves it, as the tree has it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lmsbuild.base.errors import GitError
from lmsbuild.base.git import Entry
from lmsbuild.series.patchstate import likeliest
from lmsbuild.series.scratch import Scratch
from lmsbuild.series.series import NO_BLOB, FileChange, Hunk, Patch, Series

UPSTREAMS = "upstream"  # whose side the tree is, where nothing else is said
BEFORE = "before the patch"  # what the marks of a conflict call the version that it was made for
_FAILED = 255  # of `git merge-file`, which else gives the number of conflicts


@dataclass(frozen=True)
class Merged:
    """`base` and `theirs` are None where they are not at hand: then the merge shows a person the
    likeliest place, and proves nothing."""

    text: bytes  # with marks where the sides differ
    clean: bool
    base: bytes | None
    theirs: bytes | None


@dataclass(frozen=True)
class Versions:
    """The files that a series was made for, as far as `room` can read them, and those it makes."""

    room: Scratch
    series: Series
    ours: str = UPSTREAMS

    @cached_property
    def _makers(self) -> dict[str, tuple[Patch, FileChange]]:
        return {c.after: (patch, c) for patch in self.series.patches for c in patch.changes}

    def content(self, blob: str) -> bytes | None:
        """A version by its blob id, made of the one before it if need be; None where that is not
        at hand."""
        found = self.room.repository.git.read(blob)
        if found is not None:
            return found[2]
        maker = self._makers.get(blob)
        if maker is None:
            return None
        patch, change = maker
        tree = {}
        if change.before != NO_BLOB:
            if self.content(change.before) is None:
                return None
            tree[change.path] = Entry(change.mode_before, change.before)
        part = patch.part(change.path).encode(errors="surrogateescape")
        try:
            self.room.apply(self.room.tree(tree), part)
        except GitError as error:
            if error.killed:
                raise
            return None  # a damaged patch, for `verify` to tell
        found = self.room.repository.git.read(blob)
        return found[2] if found else None

    def merge(self, patch: Patch, change: FileChange, ours: str) -> Merged:
        """What `change` makes of the blob `ours`."""
        there = self.room.repository.blob(ours)
        names = self.ours, BEFORE, patch.name
        base, theirs = self.content(change.before), self.content(change.after)
        if change.before == NO_BLOB:
            base = b""
        if base is None or theirs is None:
            made_up = _made_up(there, patch.hunks_of(change.path))
            text, _ = merge_file(self.room, (there, *made_up), names)
            return Merged(text, clean=False, base=None, theirs=None)
        text, clean = merge_file(self.room, (there, base, theirs), names)
        return Merged(text, clean, base, theirs)


def merge_file(
    room: Scratch, versions: tuple[bytes, bytes, bytes], names: Sequence[str]
) -> tuple[bytes, bool]:
    """git's own merge of ours, base and theirs. Raises GitError for what is no text."""
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
        files = [Path(folder) / name for name in ("ours", "base", "theirs")]
        for file, content in zip(files, versions, strict=True):
            file.write_bytes(content)
        labels = [word for name in names for word in ("-L", name)]
        words = ("merge-file", "-p", "--diff3", *labels, *map(str, files))
        done = room.repository.git.run(*words, check=False)
    if done.returncode < 0 or done.returncode == _FAILED:
        raise GitError(words, done.stderr.decode(errors="replace"), room.repository.path)
    return done.stdout, done.returncode == 0


def _made_up(ours: bytes, hunks: Sequence[Hunk]) -> tuple[bytes, bytes]:
    """Stand-ins for the versions around a patch, where these are not at hand: the tree's file with
    what each hunk wants to find, and makes of it, at the likeliest place."""
    lines = ours.decode(errors="surrogateescape").split("\n")
    base, theirs = list(lines), list(lines)
    places = []
    for hunk in hunks:
        wanted = hunk.texts(" ", "-")
        places.append((likeliest(lines, wanted, hunk.source_start - 1), len(wanted), hunk))
    for start, length, hunk in sorted(places, key=lambda place: place[0], reverse=True):
        base[start : start + length] = hunk.texts(" ", "-")
        theirs[start : start + length] = hunk.texts(" ", "+")
    return _joined(base), _joined(theirs)


def _joined(lines: list[str]) -> bytes:
    return "\n".join(lines).encode(errors="surrogateescape")
