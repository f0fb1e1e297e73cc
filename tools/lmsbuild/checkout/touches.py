# SPDX-License-Identifier: Apache-2.0
"""Which patch of a series touches which upstream files and functions."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.checkout.replay import contents, find_origin, replay
from lmsbuild.series.functions import enclosing, spans
from lmsbuild.series.scratch import scratch
from lmsbuild.series.series import NO_BLOB, FileChange, Hunk, Patch, series_of
from lmsbuild.tags.frameworks import Target


@dataclass(frozen=True, kw_only=True)
class Touched:
    """What one patch does to one file."""

    tag: str
    patch: str
    file: str
    kind: str  # new, changed or removed
    added: int  # lines
    removed: int
    functions: list[str]  # that it changes; of a new file none
    new_functions: list[str]
    hunks: list[str]  # headers
    whereabouts: str  # of the patch, upstream


@dataclass(frozen=True)
class _Code:
    """A file around one patch; None where the tag's code is not at hand."""

    before: bytes | None
    after: bytes | None


def series_map(
    target: Target, console: Console, file: str | None = None, place: Path | None = None
) -> list[Touched]:
    """One entry for each file of each patch, or for `file` alone.

    Functions are looked up in the tag's code at `place`, or wherever it is found; otherwise they
    are what the hunks' headers say.
    """
    series = series_of(target)
    series.check()
    with console.task(f"reading the series of {target.label}"):
        code = _code(target, place)
    return [
        _touched(target, patch, change, code.get((patch.name, change.path), _Code(None, None)))
        for patch in series.patches
        for change in patch.changes
        if file in (None, change.path)
    ]


def no_such_file(wanted: Sequence[Target], file: str) -> UsageError:
    """The error for a `file` that no patch of the tags touches."""
    changes = (c for target in wanted for p in series_of(target).patches for c in p.changes)
    known = sorted({change.path for change in changes})
    near = difflib.get_close_matches(file, known, n=3, cutoff=0.3) or known[:3]
    labels = ", ".join(target.label for target in wanted)
    return UsageError(
        f"{file or repr(file)} cannot be mapped because no patch of {labels} touches it; "
        f"near ones: {', '.join(near)}"
    )


def _code(target: Target, place: Path | None) -> dict[tuple[str, str], _Code]:
    origin = find_origin(target, place)
    if origin is None:
        return {}
    found = {}
    with scratch(origin.repository) as room:
        for step in replay(room, series_of(target), origin):
            paths = [c.path for c in step.patch.changes if NO_BLOB not in (c.before, c.after)]
            before = contents(room, step.before, paths)
            after = contents(room, step.after, paths)
            for path in before.keys() & after.keys():
                found[step.patch.name, path] = _Code(before[path], after[path])
    return found


def _touched(target: Target, patch: Patch, change: FileChange, code: _Code) -> Touched:
    hunks = patch.hunks_of(change.path)
    kinds = {change.before: "new", change.after: "removed"}
    changed, new = _functions(change, hunks, code)
    return Touched(
        tag=target.label,
        patch=patch.name,
        file=change.path,
        kind=kinds.get(NO_BLOB, "changed"),
        added=sum(len(hunk.texts("+")) for hunk in hunks),
        removed=sum(len(hunk.texts("-")) for hunk in hunks),
        functions=changed,
        new_functions=new,
        hunks=[hunk.header for hunk in hunks],
        whereabouts=patch.whereabouts,
    )


def _functions(change: FileChange, hunks: list[Hunk], code: _Code) -> tuple[list[str], list[str]]:
    """Changed and new functions, in the order of the file."""
    if NO_BLOB in (change.before, change.after):
        return [], []
    old = spans(change.path, code.before) if code.before is not None else None
    new = spans(change.path, code.after) if code.after is not None else None
    if old is None or new is None:
        return list(dict.fromkeys(hunk.section for hunk in hunks if hunk.section)), []
    names: dict[str, None] = {}
    for hunk in hunks:
        for line in hunk.lines:
            if line.kind == "-" and line.source:
                names[enclosing(old, line.source)] = None
            if line.kind == "+" and line.target and line.text.strip():
                names[enclosing(new, line.target)] = None
    names.pop("", None)
    there = {span.name for span in old}
    return [n for n in names if n in there], [n for n in names if n not in there]
