# SPDX-License-Identifier: Apache-2.0
"""How one patch stands on a tree: whether git takes it, and where not, why, file by file.

Nothing is asked of a checkout: a tree is a table of names and blobs, and `git apply` works on it in
a scratch repository. What the patch makes of it is a table again, for the next patch to stand on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lmsbuild.base.errors import GitError
from lmsbuild.base.git import ABSENT, Entry
from lmsbuild.series.merge import Merged, Versions
from lmsbuild.series.patchstate import (
    APPLIED,
    CONFLICT,
    DELETED,
    EMPTY,
    MERGED,
    MOVED,
    NOT_REACHED,
    RENAMED,
    UPSTREAM,
    Conflict,
    explain,
    is_empty,
)
from lmsbuild.series.scratch import Scratch
from lmsbuild.series.series import FILE_MODES, NO_BLOB, FileChange, Patch

# From what needs nobody to what needs somebody most: a patch is in the last of its files' states.
ORDER = (UPSTREAM, EMPTY, APPLIED, MOVED, MERGED, RENAMED, NOT_REACHED, DELETED, CONFLICT)
STOPS = (NOT_REACHED, DELETED, CONFLICT)  # what needs a person

_CHECKING = re.compile(r"^Checking patch (.+)\.\.\.$")
_OFFSET = re.compile(r"^Hunk #(\d+) succeeded at \d+ \(offset (-?\d+) lines?\)\.$")

Tree = Mapping[str, Entry]


@dataclass(frozen=True)
class FileStanding:
    """One file of a patch. `after` is what the tree has when the patch is on it (ABSENT: no file);
    None when a person must say."""

    path: str  # in the patch
    at: str  # in the tree, where upstream may have renamed it
    state: str
    before: Entry | None  # what the tree has; None for no file
    after: Entry | None
    offsets: dict[int, int] = field(default_factory=dict)  # hunk -> lines it lies further down
    conflicts: list[Conflict] = field(default_factory=list)  # hunks that git refuses
    merged: Merged | None = None  # of those
    obstacle: str = ""  # why the tree can have no file there


@dataclass(frozen=True)
class Standing:
    patch: Patch
    files: list[FileStanding]

    @property
    def state(self) -> str:
        return max((file.state for file in self.files), key=ORDER.index, default=EMPTY)

    @property
    def stops(self) -> list[FileStanding]:
        """The files that need a person."""
        return [file for file in self.files if file.state in STOPS]

    def onto(self, tree: Tree) -> dict[str, Entry]:
        """The tree with the patch on it, as far as it stands without a person."""
        after = dict(tree)
        for file in self.files:
            if file.after == ABSENT:
                after.pop(file.at, None)
            elif file.after is not None:
                after[file.at] = file.after
        return after


def stand(
    versions: Versions, tree: Tree, patch: Patch, names: Mapping[str, str] | None = None,
    obstacles: Mapping[str, str] | None = None,
) -> Standing:  # fmt: skip
    """How `patch` stands on `tree`. `names` says what files are called there that upstream renamed,
    `obstacles` which paths can be no file of it, and why.

    The blobs of `tree` that the patch touches must be at hand. Raises ConfigError for a patch that
    cannot be read.
    """
    if is_empty(patch):
        return Standing(patch, [])
    names, obstacles = names or {}, obstacles or {}
    # As if nothing had been renamed: git needs no other patch then.
    places = {change.path: names.get(change.path, change.path) for change in patch.changes}
    here = {path: tree[at] for path, at in places.items() if at in tree}
    barred = {path: obstacles[at] for path, at in places.items() if at in obstacles}
    files = None if barred else _whole(versions.room, here, patch)
    if files is None:
        files = [
            _barred(patch, change, barred[change.path])
            if change.path in barred
            else _file(versions, here.get(change.path), patch, change)
            for change in patch.changes
        ]
    return Standing(patch, [_placed(file, places[file.path]) for file in files])


def _placed(file: FileStanding, at: str) -> FileStanding:
    renamed = at != file.path and file.state in (APPLIED, MOVED, MERGED)
    state = RENAMED if renamed else file.state
    return FileStanding(
        file.path, at, state, file.before, file.after, file.offsets, file.conflicts, file.merged,
        file.obstacle,
    )  # fmt: skip


def _barred(patch: Patch, change: FileChange, why: str) -> FileStanding:
    conflicts = [Conflict(patch.name, change.path, 0, "", why)]
    return FileStanding(
        change.path, change.path, CONFLICT, None, None, conflicts=conflicts, obstacle=why
    )


def _whole(room: Scratch, here: Tree, patch: Patch) -> list[FileStanding] | None:
    """All files at once, None when git refuses one."""
    data = patch.diff.encode(errors="surrogateescape")
    try:
        tree, said = room.applied(room.tree(here), data, "--verbose")
    except GitError as error:
        if error.killed:
            raise
        return None
    after = room.entries(tree)
    offsets = _offsets(said)
    return [
        FileStanding(
            path=change.path,
            at=change.path,
            state=MOVED if change.path in offsets else APPLIED,
            before=here.get(change.path),
            after=after.get(change.path, ABSENT),
            offsets=offsets.get(change.path, {}),
        )
        for change in patch.changes
    ]


def _offsets(said: str) -> dict[str, dict[int, int]]:
    """Of each file the hunks that lie elsewhere than the patch says."""
    found: dict[str, dict[int, int]] = {}
    path = ""
    for line in said.splitlines():
        if match := _CHECKING.match(line):
            path = match[1]
        elif match := _OFFSET.match(line):
            found.setdefault(path, {})[int(match[1])] = int(match[2])
    return found


def _file(
    versions: Versions, entry: Entry | None, patch: Patch, change: FileChange
) -> FileStanding:
    room, path = versions.room, change.path
    part = patch.part(path).encode(errors="surrogateescape")
    tree = room.tree({path: entry} if entry else {})
    try:
        made, said = room.applied(tree, part, "--verbose")
    except GitError as error:
        if error.killed:
            raise
        output = error.output
    else:
        after = room.entries(made).get(path, ABSENT)
        offsets = _offsets(said).get(path, {})
        return FileStanding(path, path, MOVED if offsets else APPLIED, entry, after, offsets)
    if _is_there(room, tree, part):
        return FileStanding(path, path, UPSTREAM, entry, entry or ABSENT)
    if entry is None:
        return FileStanding(path, path, DELETED, None, None)
    conflicts = refused(room, patch, part, output)
    if change.after == NO_BLOB or entry.mode not in FILE_MODES:
        return FileStanding(path, path, CONFLICT, entry, None, {}, conflicts)
    try:
        merged = versions.merge(patch, change, entry.blob)
    except GitError as error:
        if error.killed:
            raise
        return FileStanding(path, path, CONFLICT, entry, None, {}, conflicts)
    if not merged.clean or change.before == NO_BLOB:
        return FileStanding(path, path, CONFLICT, entry, None, {}, conflicts, merged)
    blob = room.add_blob(merged.text)
    state = UPSTREAM if blob == entry.blob else MERGED
    mode = change.mode if change.changes_mode else entry.mode
    return FileStanding(path, path, state, entry, Entry(mode, blob), {}, conflicts, merged)


def _is_there(room: Scratch, tree: str, part: bytes) -> bool:
    """Could the change be taken back from the tree?"""
    room.stand_on(tree)
    words = ("apply", "--cached", "--reverse", "--check", "--whitespace=nowarn", "-")
    return room.repository.git.run(*words, stdin=part, check=False).returncode == 0


def refused(room: Scratch, patch: Patch, part: bytes, output: str) -> list[Conflict]:
    """Every hunk of `part` of the patch that does not fit the index, not only that in git's
    `output`; none when the patch itself is what git complains of."""
    # With --reject git goes on after the first one.
    options = ("--cached", "--check", "--reject", "--whitespace=nowarn")
    tried = room.repository.git.run("apply", *options, "-", stdin=part, check=False)
    lines = tried.stderr.decode(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith("error: patch failed: ")] or [output]
    found = (explain(room.repository.git, patch, line) for line in failed)
    return [conflict for conflict in found if conflict]
