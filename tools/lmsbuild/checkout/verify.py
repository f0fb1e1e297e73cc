# SPDX-License-Identifier: Apache-2.0
"""Is a series what `refresh` would write, does it fit its tag, and is nothing in it stale?

What needs the tag's code is checked when that is at hand (nothing is downloaded), everything else
always. Every failure is found, not only the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.errors import ConfigError, TreeStateError
from lmsbuild.base.hashing import git_blob
from lmsbuild.checkout.refresh import runtime_patch
from lmsbuild.checkout.replay import Origin, Step, contents, find_origin, replay
from lmsbuild.series import binary
from lmsbuild.series.format import file_name, patch_bytes
from lmsbuild.series.scratch import Scratch, scratch
from lmsbuild.series.series import (
    NO_BLOB,
    Hunk,
    Patch,
    Series,
    check_settled,
    check_whole,
    missing,
    patch_files,
    series_of,
)
from lmsbuild.tags.frameworks import Target
from lmsbuild.tags.runtimefiles import runtime_files
from lmsbuild.tags.sourcelists import compare_sources, sources

REFRESH = "write it anew with `lmsbuild refresh`"


@dataclass
class Check:
    """One question about a series. `problems` are messages "X because Y; do Z"."""

    name: str
    meaning: str
    problems: list[str] = field(default_factory=list)
    skipped: str = ""  # why it could not be asked
    partly: bool = False  # part of it could be asked all the same

    @property
    def state(self) -> str:
        if self.problems:
            return "FAILED"
        return "in part" if self.partly else "not checked" if self.skipped else "ok"


@dataclass(frozen=True)
class Verified:
    label: str
    origin: str | None  # the commit of the tag's code, when it was at hand
    checks: list[Check]

    @property
    def problems(self) -> list[str]:
        return [problem for check in self.checks for problem in check.problems]


def verify(target: Target, console: Console, place: Path | None = None) -> Verified:
    """Check the series of a tag, on the code at `place` or wherever it is found.

    Raises ConfigError when there is no series, TreeStateError when `place` is not the tag's code.
    """
    check_settled(target.project)
    series = series_of(target, whole=False)
    origin = find_origin(target, place)
    checks: list[Check] = []

    @contextmanager
    def asking(name: str, meaning: str) -> Iterator[Check]:
        check = Check(name, meaning)
        checks.append(check)
        try:
            yield check
        except ConfigError as error:
            # A patch that cannot be read is a failure of `form`; elsewhere it only hinders.
            if error.message in checks[0].problems:
                check.skipped = "a patch cannot be read"
            else:
                check.problems.append(error.message)

    with asking("form", "each patch is the bytes that refresh writes") as check:
        check.problems = missing(target)
        for number, patch in _numbered(target):
            try:
                check.problems += _form(patch, number)
            except ConfigError as error:
                check.problems.append(error.message)
    with asking("chain", "blob ids lead from patch to patch") as check:
        check.problems += _chain(series)
    with asking("runtime", "the runtime patch is made from lms/") as check:
        check.problems += _runtime(target)
    with asking("preimage", "tag.toml records the blobs that the patches expect") as check:
        check.problems += _preimage(target, series)
    with asking("apply", "the tag's code takes every patch and becomes what it promises") as check:
        built: dict[str, bytes] = {}
        if origin is None:
            check.skipped = f"no code of {target.tag_name} here; `lmsbuild fetch` gets it"
        else:
            with console.task(f"applying the series of {target.label} to a scratch tree"):
                check.problems, built = _apply(target, series, origin, normal_form=True)
    with asking("build", "upstream's build lists the sources that tag.toml lists") as check:
        check.problems, check.skipped = _build(target, series, built)
        check.partly = bool(check.skipped)
    return Verified(target.label, origin.revision if origin else None, checks)


def provable(target: Target, console: Console) -> Check:
    """Whether git takes the series, and gets out of it what its index lines say; in part where the
    tag's code is not at hand. Raises ConfigError for a patch that cannot be read."""
    series = series_of(target)
    check = Check("apply", "git takes every patch, and it becomes what it promises")
    series.check()
    check_whole(target, series)
    check.problems = _chain(series)
    for patch in series.patches:
        check.problems += _edited(patch)
    origin = find_origin(target)
    if origin is None:
        check.skipped = f"no code of {target.tag_name} here; `lmsbuild fetch` gets it"
        check.partly = True
    elif not check.problems:
        with console.task(f"applying the series of {target.label} to a scratch tree"):
            check.problems, _ = _apply(target, series, origin, normal_form=False)
    return check


def _numbered(target: Target) -> list[tuple[int, Patch]]:
    return [
        (number, Patch(path))
        for folder in (target.runtime_patches, target.tag_patches)
        for number, path in enumerate(patch_files(folder), 1)
    ]


def _form(patch: Patch, number: int) -> list[str]:
    """What differs from the normal form, as far as the patch alone tells."""
    problems = []
    try:
        patch.data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = patch.data.count(b"\n", 0, error.start) + 1
        problems.append(f"{patch.name} is not portable because line {line} is not UTF-8; {REFRESH}")
    wanted = file_name(number, patch.subject)
    if patch.path.name != wanted:
        problems.append(
            f"{patch.name} has the wrong name because refresh would call it {wanted}; {REFRESH}"
        )
    problems += [_overlap(patch, hunk, why) for hunk, why in _arithmetic(patch)]
    line = _first_difference(patch.text, _canonical(patch))
    if line:
        shown = patch.text.split("\n")[line - 1][:60] if line <= patch.text.count("\n") else "end"
        problems.append(
            f"{patch.name} is not in its normal form because line {line} ({shown!r}) is not what "
            f"refresh writes; {REFRESH}"
        )
    return problems + _edited(patch)


def _edited(patch: Patch) -> list[str]:
    """Files that the patch adds with other content than their index lines say."""
    problems = []
    for change in patch.changes:
        found = git_blob(_new_content(patch, change.path))
        if change.before == NO_BLOB and change.after not in (NO_BLOB, found):
            problems.append(
                f"{patch.name} was edited by hand because {change.path} has blob {found}, not "
                f"{change.after} as its index line says; {REFRESH}"
            )
    return problems


def _overlap(patch: Patch, hunk: Hunk, why: str) -> str:
    return (
        f"{patch.name} was edited by hand because hunk {hunk.number} of {hunk.path} "
        f"({hunk.header}) {why}; {REFRESH}"
    )


def _arithmetic(patch: Patch) -> list[tuple[Hunk, str]]:
    """Hunks that do not follow from the ones before."""
    wrong = []
    shift = end = 0
    for hunk in patch.hunks:
        if hunk.number == 1:
            shift = end = 0
        # A side of no lines is counted from the line before it.
        source = hunk.source_start + (hunk.source_length == 0)
        target = hunk.target_start + (hunk.target_length == 0)
        if target - source != shift:
            wrong.append((hunk, f"should begin at +{source + shift} after the hunks before it"))
        elif source < end:
            wrong.append((hunk, f"begins before line {end}, where the hunk before it ends"))
        shift = target - source + hunk.target_length - hunk.source_length
        end = source + hunk.source_length
    return wrong


def _canonical(patch: Patch) -> str:
    """The patch written anew from what was read of it."""
    parts = [patch.mail.render()]
    for change in sorted(patch.changes, key=lambda c: c.path.encode(errors="surrogateescape")):
        name = change.path + ("\t" if " " in change.path else "")
        old, new = f"a/{name}", f"b/{name}"
        head = f"diff --git a/{change.path} b/{change.path}\n"
        index = f"index {change.before}..{change.after}"
        hunks = patch.hunks_of(change.path)
        if change.before == NO_BLOB:
            head += f"new file mode {change.mode}\n{index}\n"
            old = "/dev/null"
        elif change.after == NO_BLOB:
            head += f"deleted file mode {change.mode}\n{index}\n"
            new = "/dev/null"
        else:
            modes = re.search(r"^old mode \d+\nnew mode \d+\n", patch.part(change.path), re.M)
            head += f"{modes[0]}{index}\n" if modes else f"{index} {change.mode}\n"
        sides = patch.binary(change.path)
        if sides is not None:
            parts.append(head + binary.render(*sides))
            continue
        parts.append(head + (f"--- {old}\n+++ {new}\n" if hunks else ""))
        for hunk in hunks:
            lines = "".join(f"{line.kind}{line.text}\n" for line in hunk.lines)
            parts.append(f"{hunk.header}\n{lines}")
    return "".join(parts)


def _first_difference(text: str, wanted: str) -> int:
    """The first line (from 1) in which they differ, or 0."""
    if text == wanted:
        return 0
    ours, theirs = text.split("\n"), wanted.split("\n")
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if one != other:
            return number
    return min(len(ours), len(theirs))


def _new_content(patch: Patch, path: str) -> bytes:
    """The content of a file that the patch adds."""
    sides = patch.binary(path)
    if sides is not None:
        return sides[1]
    text = ""
    for hunk in patch.hunks_of(path):
        for line in hunk.lines:
            text = text.removesuffix("\n") if line.kind == "\\" else f"{text}{line.text}\n"
    return text.encode(errors="surrogateescape")


def _chain(series: Series) -> list[str]:
    problems = []
    state: dict[str, tuple[str, str]] = {}
    for patch in series.patches:
        for change in patch.changes:
            blob, left_by = state.get(change.path, (change.before, ""))
            if blob != change.before:
                problems.append(
                    f"{patch.name} is stale because it expects {change.path} to be blob "
                    f"{change.before} and {left_by} leaves blob {blob}; {REFRESH}"
                )
            state[change.path] = change.after, patch.name
    return problems


def _runtime(target: Target) -> list[str]:
    problems = []
    wanted = runtime_patch(target)
    there = {file.name: Patch(file) for file in patch_files(target.runtime_patches)}
    todo = f"run `lmsbuild refresh {target.tag_name}`"
    problems += [
        f"{patch.name} is not wanted because lms/ makes no patch of that name; {todo}"
        for name, patch in there.items()
        if name not in wanted
    ]
    for name, content in wanted.items():
        if name not in there:
            problems.append(f"runtime/{name} is missing because it was never written; {todo}")
        elif there[name].data != content:
            text = content.decode("utf-8", errors="surrogateescape")
            where = _differing(target, there[name]) or _place(
                there[name], _first_difference(there[name].text, text)
            )
            problems.append(
                f"{there[name].name} is stale because {where} differs from lms/; {todo}"
            )
    return problems


def _differing(target: Target, patch: Patch) -> str:
    """The files that the patch adds otherwise than lms/ has them."""
    ours = {path: git_blob(file.read_bytes()) for path, file in runtime_files(target).items()}
    theirs = {change.path: change.after for change in patch.changes}
    return ", ".join(sorted(p for p in ours.keys() | theirs.keys() if ours.get(p) != theirs.get(p)))


def _place(patch: Patch, line: int) -> str:
    """The file of the patch that its line `line` belongs to, with the line's number in it."""
    for hunk in reversed(patch.hunks):
        for one in hunk.lines:
            if one.at == line:
                return f"{hunk.path}:{one.target or one.source or 1} (line {line} of the patch)"
    return f"line {line}"


def _preimage(target: Target, series: Series) -> list[str]:
    recorded = target.tag.preimage
    wanted = {path: blob for path, blob in series.before.items() if blob != NO_BLOB}
    name = f"`preimage` of {target.file}"
    todo = f"run `lmsbuild refresh {target.tag_name}` in the checkout, or correct the entry"
    problems = [
        f"{name} lacks {path} because no blob id is recorded for it; {todo}"
        for path in sorted(wanted.keys() - recorded.keys())
    ]
    problems += [
        f"{name} has {path} although no patch touches it, because it was not taken out; {todo}"
        for path in sorted(recorded.keys() - wanted.keys())
    ]
    problems += [
        f"{name} does not fit because {path} is recorded as blob {recorded[path]} and its patch "
        f"expects {wanted[path]}; {todo}"
        for path in sorted(wanted.keys() & recorded.keys())
        if wanted[path] != recorded[path]
    ]
    return problems


def _apply(
    target: Target, series: Series, origin: Origin, *, normal_form: bool
) -> tuple[list[str], dict[str, bytes]]:
    """What is stale on the tag's code, and build files as the series leaves them. With
    `normal_form` also what is not as the diff of the trees gives it."""
    problems = []
    with scratch(origin.repository) as room:
        try:
            steps = replay(room, series, origin)
        except TreeStateError as error:
            return [error.message], {}
        before = room.entries(origin.revision, list(series.before))
        for path, blob in series.before.items():
            found = before[path].blob if path in before else NO_BLOB
            if found != blob:
                problems.append(
                    f"the series is not for this code because {path} of {target.label} is blob "
                    f"{found}, not {blob}; rebase the hooks on the tag and run `lmsbuild refresh`"
                )
        for step in steps:
            problems += step.problems
            if step.problems:
                continue
            after = room.entries(step.after)
            for change in step.patch.changes:
                found = after[change.path].blob if change.path in after else NO_BLOB
                if found != change.after:
                    problems.append(
                        f"{step.patch.name} was edited by hand because it leaves {change.path} as "
                        f"blob {found}, not {change.after} as its index line says; {REFRESH}"
                    )
            problems += _regenerated(room, step) if normal_form else []
        files = [lib.listed.file for lib in target.tag.overlay.libraries if lib.listed]
        return problems, {
            **_untouched(room, origin, [file for file in files if file not in series.before]),
            **contents(room, steps[-1].after, files),
        }


def _untouched(room: Scratch, origin: Origin, paths: Sequence[str]) -> dict[str, bytes]:
    """Files that no patch touches, as far as the tag's code has them at hand."""
    there = room.entries(origin.revision, paths)
    found = {path: room.repository.git.read(entry.blob) for path, entry in there.items()}
    return {path: blob[2] for path, blob in found.items() if blob is not None}


def _regenerated(room: Scratch, step: Step) -> list[str]:
    """Does the diff of the trees before and after give the patch's own bytes?"""
    patch = step.patch
    if _canonical(patch) != patch.text:
        return []  # told by `form`
    made = patch_bytes(room, patch.mail, step.before, step.after, patch.name)
    line = _first_difference(patch.text, made.decode("utf-8", errors="surrogateescape"))
    if not line:
        return []
    return [
        f"{patch.name} is not in its normal form because {_place(patch, line)} is not what the "
        f"diff of the trees gives; {REFRESH}"
    ]


def _build(target: Target, series: Series, built: dict[str, bytes]) -> tuple[list[str], str]:
    """Problems, and what could not be compared. `built` are files as the series leaves them."""
    problems, partly = [], []
    new = {path for path, blob in series.before.items() if blob == NO_BLOB}
    for library in target.tag.overlay.libraries:
        if library.listed is None:
            continue
        file = library.listed.file
        touching = [patch for patch in series.patches if any(c.path == file for c in patch.changes)]
        text = built.get(file)
        if text is None and touching and file in new and len(touching) == 1:
            text = _new_content(touching[0], file)
        if text is not None:
            problem = compare_sources(library, text.decode(errors="replace"))
            problems += [problem] if problem else []
            continue
        # Without the tag's code only what the series adds can be compared: its entries of a list,
        # which no line of a call is.
        partly.append(file)
        texts = [line for p in touching for h in p.hunks_of(file) for line in h.texts("+")]
        added = [line for line in texts if "(" not in line and ")" not in line]
        listed = sources(library, "\n".join((f"set({library.listed.variable}", *added, ")")))
        missing = sorted(new & set(library.sources) - listed)
        if missing:
            problems.append(
                f"{library.name} would not be upstream's because no patch adds {missing[0]} to "
                f"{library.listed.variable} in {file}; add it there or take it out of "
                f"{target.file}"
            )
    return problems, f"only the added lines of {', '.join(partly)}" if partly else ""
