# SPDX-License-Identifier: Apache-2.0
"""How each patch of a series stands on a tree, and why one does not apply, in a reader's words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from lmsbuild.base.errors import ConfigError, GitError, PatchError
from lmsbuild.base.git import Git
from lmsbuild.series import series
from lmsbuild.series.series import Patch

APPLIED = "applied"
MOVED = "moved"  # applied, at other lines than the patch says
MERGED = "merged"  # its context changed, and a three-way merge is without a conflict
UPSTREAM = "already upstream"  # its change is in the tree, though not by our commit
RENAMED = "renamed"  # applied, moved or merged, in a file that has another name
DELETED = "deleted"  # its file is not in the tree
CONFLICT = "conflict"
EMPTY = "empty"
NOT_REACHED = "not reached"

_SHOWN = 12  # lines of each side
_FAILED_HUNK = re.compile(r"^error: patch failed: (.+):(\d+)$", re.MULTILINE)
_FAILED_FILE = re.compile(
    r"^error: (.+): (already exists in (?:index|working directory)|does not exist in index|"
    r"does not match index|patch does not apply|No such file or directory|wrong type)$",
    re.MULTILINE,
)
_BROKEN = re.compile(
    r"^(?:error|fatal): (.*(?:corrupt patch|without header|No valid patches|unrecognized input|"
    r"cannot apply binary|format detection failed|garbage|lacks filename|recreate|bad git-diff|"
    r"invalid (?:mode|path)|conflicts? with|unexpected).*)$",
    re.MULTILINE | re.IGNORECASE,
)
_APPLY = ("apply", "--cached", "--whitespace=nowarn", "-")


@dataclass(frozen=True)
class PatchState:
    patch: str
    state: str
    whereabouts: str = ""  # upstream


@dataclass(frozen=True)
class Line:
    number: int
    text: str
    differs: bool


@dataclass(frozen=True)
class Conflict:
    """Where a patch fails. `hunk` counts from 1 and is 0 when the whole file is the reason."""

    patch: str
    file: str
    hunk: int
    header: str
    why: str
    expected: list[Line] = field(default_factory=list)  # what the patch wants to find
    found: list[Line] = field(default_factory=list)  # what the tree has at the likeliest place


def is_empty(patch: Patch) -> bool:
    return not re.search(r"^diff --git ", patch.text, re.MULTILINE)


def stopped(patches: Sequence[Patch], index: int) -> list[PatchState]:
    """The states when the patches up to `index` went on and that one did not."""
    words = [APPLIED] * index + [CONFLICT] + [NOT_REACHED] * len(patches)
    return [PatchState(patch.name, word) for patch, word in zip(patches, words, strict=False)]


def tried(git: Git, patches: Sequence[Patch]) -> tuple[list[PatchState], Conflict | None]:
    """Try `patches` one after the other on the index of `git`, which it changes."""
    states: list[PatchState] = []
    for index, patch in enumerate(patches):
        content = patch.data
        done = git.run(*_APPLY, stdin=content, check=False)
        if done.returncode == 0:
            states.append(PatchState(patch.name, APPLIED))
        elif git.run(*_APPLY, "--reverse", "--check", stdin=content, check=False).returncode == 0:
            states.append(PatchState(patch.name, UPSTREAM))
        else:
            output = done.stderr.decode(errors="replace")
            conflict = explain(git, patch, output)
            if conflict is None:
                raise GitError(_APPLY, output)
            return [*states, *stopped(patches[index:], 0)], conflict
    return states, None


def explain(git: Git, patch: Patch, output: str) -> Conflict | None:
    """git's text about a patch that does not fit the index of `git`; None when the patch is not
    what it complains of."""
    hunk = _FAILED_HUNK.search(output)
    if hunk:
        return _hunk(git, patch, hunk[1], int(hunk[2]))
    whole = _FAILED_FILE.search(output)
    if whole:
        what = "is no plain file there" if whole[2] == "wrong type" else whole[2]
        return Conflict(patch.name, whole[1], 0, "", f"{whole[1]} {what}")
    broken = _BROKEN.search(output)
    return Conflict(patch.name, "", 0, "", f"git says: {broken[1]}") if broken else None


def _hunk(git: Git, patch: Patch, file: str, line: int) -> Conflict:
    number, header, lines = _source(patch, file, line)
    wanted = [each.text for each in lines if each.kind != "+"]
    where = f"hunk {number} of {file} (line {line}: {header})"
    done = git.run("cat-file", "blob", f":{file}", check=False)
    if done.returncode != 0:
        return Conflict(patch.name, file, number, header, f"{where} finds no such file")
    tree = done.stdout.decode(errors="replace").split("\n")
    start = likeliest(tree, wanted, line - 1)
    place = _Place.of(tree, start, wanted)
    expected = [Line(line + i, text, i in place.lost) for i, text in enumerate(wanted)]
    found = [Line(i + 1, tree[i], i in place.other) for i in place.window]
    if place.lost:
        first, at = min(place.lost.items())
        text, other = wanted[first], tree[at] if at < len(tree) else None
        want = text.strip()
        have = f"the tree has `{other.strip()}`" if other is not None else "the file has ended"
        if other is not None and other.strip() == want:  # white space is all they differ in
            want, have = repr(text), f"the tree has {other!r}"
        why = f"{where} expects `{want}` where {have} in line {at + 1}"
    elif place.other:
        at = min(place.other)
        before = tree[at - 1].strip()
        why = (
            f"{where} expects nothing between `{before}` and the line after it, where the tree has "
            f"`{tree[at].strip()}` in line {at + 1}"
        )
    elif start + len(wanted) == len(tree):  # all but what ends the last line
        why = f"{where} expects a line break at the end of the file, where the tree has none"
    elif line <= 1 and start > 0:  # git takes it nowhere else
        why = f"{where} expects its lines at the beginning of the file, where the tree has more"
    elif lines and lines[-1].kind != " " and start + len(wanted) < len(tree):
        why = f"{where} expects its lines at the end of the file, where the tree has more"
    else:
        why = f"{where} does not fit there, though its lines do (the patch file is damaged)"
    return Conflict(patch.name, file, number, header, why, expected, found)


def _source(patch: Patch, file: str, line: int) -> tuple[int, str, Sequence[series.Line]]:
    """Number, header and lines of the hunk of `file` that starts at `line`."""
    with contextlib.suppress(ConfigError):
        for hunk in patch.hunks_of(file):
            if hunk.source_start == line:
                lines = [each for each in hunk.lines if each.kind in " -+"]
                return hunk.number, hunk.header, lines
    return 1, "no text hunk", []


@dataclass(frozen=True)
class _Place:
    """Lines that a patch wants beside those of the tree: what was only moved, by a line put between
    two, is no difference."""

    lost: dict[int, int]  # those that are not there -> the line of the tree that stands there
    other: set[int]  # lines of the tree that are not wanted
    window: range

    @classmethod
    def of(cls, tree: Sequence[str], start: int, wanted: Sequence[str]) -> _Place:
        size = len(wanted)
        low, high = max(0, start - size), min(len(tree), start + 2 * size)
        same = SequenceMatcher(None, wanted, tree[low:high], autojunk=False).get_matching_blocks()
        blocks = [(one.a, low + one.b, one.size) for one in same[:-1]]  # the last one is empty
        if not blocks:
            blocks = [(0, start, 0)]
        (first, begin, _), (last, end, _) = blocks[0], blocks[-1]
        begin, end = max(0, begin - first), min(len(tree), end + size - last)
        at = {i + n: j + n for i, j, count in blocks for n in range(count)}
        lost: dict[int, int] = {}
        following = begin  # the line of the tree after what stands for the wanted ones so far
        for number in range(size):
            if number in at:
                following = at[number] + 1
            else:
                lost[number] = following
                following += following not in at.values()
        window = range(begin, end)
        return cls(lost, set(window) - set(at.values()), window)


def likeliest(tree: Sequence[str], wanted: Sequence[str], near: int) -> int:
    """The place where most of the lines fit; of several the one nearest to `near`."""

    def fit(start: int) -> tuple[int, int]:
        same = sum(a == b for a, b in zip(tree[start:], wanted, strict=False))
        return same, -abs(start - near)

    return max(range(max(1, len(tree) - len(wanted) + 1)), key=fit)


def error(states: Sequence[PatchState], conflict: Conflict, advice: str) -> PatchError:
    return PatchError(
        f"{conflict.patch} does not apply because {conflict.why}; {advice}",
        patch=conflict.patch, file=conflict.file, hunk=conflict.hunk,
        conflict=conflict, states=list(states),
    )  # fmt: skip


def sides(conflict: Conflict) -> list[str]:
    """Both sides as lines of text: where they differ, a mark and the line's number."""
    text = []
    for title, lines in (
        ("the patch expects", conflict.expected),
        ("the tree has", conflict.found),
    ):
        if not lines:
            continue
        text.append(f"{title}:")
        first = next((i for i, line in enumerate(lines) if line.differs), 0)
        start = max(0, min(first - 3, len(lines) - _SHOWN))
        for line in lines[start : start + _SHOWN]:
            text.append(f"  {'>' if line.differs else ' '} {line.number:>5}  {line.text.rstrip()}")
    return text
