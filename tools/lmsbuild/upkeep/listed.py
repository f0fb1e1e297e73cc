# SPDX-License-Identifier: Apache-2.0
"""The patches of a checkout, by the names that `drop` and its like take, beside the patch files.

The two are the same right after `apply` and `refresh`; in between, the checkout is ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lmsbuild.base.errors import LmsbuildError
from lmsbuild.base.git import changed
from lmsbuild.checkout import arranging, porting
from lmsbuild.checkout.arrange import POPPED, stacked
from lmsbuild.checkout.arranging import Step
from lmsbuild.checkout.edits import Line
from lmsbuild.series.format import mail_of
from lmsbuild.series.mail import Mail
from lmsbuild.series.patchstate import APPLIED, EMPTY, NOT_REACHED
from lmsbuild.series.series import NO_BLOB, Patch, Series

NOT_APPLIED = "not applied"
_RUNTIME = 0  # where the runtime patch is
LMS = "lms/"
FILE_ONLY = "file only"  # the checkout has nothing of it: `refresh` would remove it


@dataclass(frozen=True)
class Listed:
    patch: str  # as the checkout has it; where that has none, the file's name
    state: str
    whereabouts: str = ""  # upstream
    file: str = ""  # the patch file of it, `LMS` for what goes there alone, "" for none
    differs: bool = False  # from that file


def by_files(series: Series, count: int) -> list[Listed]:
    """The patch files, of which the checkout has the first `count`."""
    return [
        Listed(p.name, APPLIED if index < count else NOT_APPLIED, p.whereabouts, p.name)
        for index, p in enumerate(series.patches)
    ]


def by_commits(
    line: Line, series: Series, off: Sequence[Step], *, newer: bool
) -> list[Listed] | None:
    """The commits of `line` and the steps `off` it as patches; None where they cannot be that. With
    `newer`, a file that is none of them has still to be applied."""
    user = line.repository
    if user.line(line.base, line.tip) is None:
        return None
    stack = stacked(line.target, user, line.base, off)
    way = arranging.under_way(user)
    steps = [(step, APPLIED) for step in stack.on]
    if way is not None and way.stopped is not None:
        steps += [(s, NOT_REACHED if n else way.stopped.state) for n, s in enumerate(way.wanted)]
        steps += [(step, POPPED) for step in way.popped]
    else:
        steps += [(step, POPPED) for step in stack.popped]
    try:
        return _beside(line, series, steps, NOT_APPLIED if newer else FILE_ONLY)
    except LmsbuildError:  # a patch file or a commit that cannot be read
        return None


def of_port(port: porting.Port) -> list[Listed]:
    """What has become of the patches of a series that is being ported."""
    known = [*port.done, *([port.stopped] if port.stopped else [])]
    rest = [name for name in port.todo if port.stopped is None or name != port.stopped.patch]
    return [
        *(Listed(each.patch, each.state, file=each.patch) for each in known),
        *(Listed(name, NOT_REACHED, file=name) for name in rest),
    ]


def _beside(
    line: Line, series: Series, steps: Sequence[tuple[Step, str]], alone: str
) -> list[Listed]:
    ours = [_of_step(line, at, step) for at, (step, _) in enumerate(steps)]
    files = [_of_file(at, patch) for at, patch in enumerate(series.patches)]
    left = list(range(len(files)))
    twins: dict[int, int] = {}  # place among the steps -> among the files
    likeness: tuple[Callable[[int, int], bool], ...] = (
        lambda at, other: ours[at] == files[other],
        lambda at, other: steps[at][0].name == series.patches[other].name,
        lambda at, other: ours[at].mail.subject == files[other].mail.subject,
    )
    for alike in likeness:
        for at in range(len(steps)):
            found = None if at in twins else next((n for n in left if alike(at, n)), None)
            if found is not None:
                twins[at] = found
                left.remove(found)
    listed = []
    for at, (step, state) in enumerate(steps):
        where, twin = ours[at].mail.whereabouts, twins.get(at)
        if twin is None:
            file = LMS if ours[at].runtime and not ours[at].files else ""
            state = state if ours[at].files or ours[at].runtime else EMPTY
            listed.append(Listed(step.name, state, where, file))
        else:
            differs = ours[at] != files[twin]
            listed.append(Listed(step.name, state, where, series.patches[twin].name, differs))
    gone = (series.patches[other] for other in left)
    return [*listed, *(Listed(p.name, alone, p.whereabouts, p.name) for p in gone)]


@dataclass(frozen=True)
class _Content:
    """What a patch is, in whatever form."""

    mail: Mail
    files: dict[str, tuple[str, ...]]  # path -> blobs and modes, before and after
    runtime: bool = field(default=False, compare=False)  # it changes runtime files as well


def _of_step(line: Line, at: int, step: Step) -> _Content:
    """Without the runtime files of a hook, which `refresh` takes into the runtime patch: so that
    one has what the whole line has."""
    if step.text:
        return _of_file(at, step.patch)
    mail = mail_of(line.repository, step.commit)
    if at == _RUNTIME:
        return _Content(mail, {path: (blob,) for path, blob in line.runtime.items()})
    raws = changed(line.repository, f"{step.commit}~1", step.commit)
    return _Content(
        mail,
        {
            raw.path: _sides(raw.before.blob, raw.before.mode, raw.after.blob, raw.after.mode)
            for raw in raws
            if not line.is_runtime(raw.path)
        },
        runtime=any(line.is_runtime(raw.path) for raw in raws),
    )


def _of_file(at: int, patch: Patch) -> _Content:
    if at == _RUNTIME:
        return _Content(patch.mail, {each.path: (each.after,) for each in patch.changes})
    return _Content(
        patch.mail,
        {
            each.path: _sides(each.before, each.mode_before, each.after, each.mode)
            for each in patch.changes
        },
    )


def _sides(*parts: str) -> tuple[str, ...]:
    """Blob and mode, before and after; a file that is not there has no mode."""
    before, mode_before, after, mode_after = parts
    return (
        before, "" if before == NO_BLOB else mode_before,
        after, "" if after == NO_BLOB else mode_after,
    )  # fmt: skip
