# SPDX-License-Identifier: Apache-2.0
"""Put a series on a checkout with `git am`: all of it, or the checkout stays as it was.

`git am` runs in a shadow of the checkout, where it may fail. Only its verified result is switched
to, in one transaction; so a conflict, a hostile setting or a full disk never reaches the checkout.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.errors import GitError, LmsbuildError, PatchError, TreeStateError
from lmsbuild.base.git import (
    NOTHING,
    Repository,
    changed,
    checkout_git,
    entries,
)
from lmsbuild.base.transaction import Journal, check_as_left, put_back
from lmsbuild.checkout import checkout
from lmsbuild.checkout.arranging import check_none_popped, put_popped, restore, steps
from lmsbuild.checkout.checkout import check_nothing_under_way, is_framework
from lmsbuild.checkout.edits import holds_refreshed
from lmsbuild.checkout.notes import OUR_REFS
from lmsbuild.checkout.shadow import Shadow, bring_blobs
from lmsbuild.checkout.switch import (
    CheckoutTransaction,
    check_unchanged,
    last_of,
    looking,
    recorded,
    resolve,
)
from lmsbuild.series.patchstate import (
    EMPTY,
    NOT_REACHED,
    Conflict,
    PatchState,
    error,
    explain,
    is_empty,
    sides,
    stopped,
    tried,
)
from lmsbuild.series.series import (
    Patch,
    Series,
    check_preimage,
    check_whole,
    names,
    series_of,
)
from lmsbuild.tags.frameworks import Target

AM_OPTIONS = (
    "--keep-cr",
    "--keep-non-patch",
    "--whitespace=nowarn",
    "--no-scissors",
    "--no-gpg-sign",
    "--no-3way",
    "--committer-date-is-author-date",
    "--quiet",
)


@dataclass(frozen=True)
class Applied:
    path: Path
    patches: list[str]  # applied by this call
    already: int  # patches that were there
    head: str
    replaced: bool = False  # an older version of the series was taken off first
    states: list[PatchState] = field(default_factory=list)


@dataclass(frozen=True)
class _Plan:
    start: str  # HEAD as it is
    base: str  # what the patches go onto
    tag_code: str  # the commit below the whole series
    todo: list[Patch]
    already: int
    replaced: bool


def apply(target: Target, path: Path, console: Console, *, dry_run: bool = False) -> Applied:
    """Apply the series of `target` to the checkout at `path`.

    Raises TreeStateError when the checkout is not fit, PatchError when a patch does not apply;
    in both cases the checkout is as it was before. The states of the patches are shown then.
    """
    try:
        return _apply(target, path, console, dry_run=dry_run)
    except LmsbuildError as failure:
        _show(failure, console)
        raise


def _show(failure: LmsbuildError, console: Console) -> None:
    """The details of a failure that its message has no room for."""
    states, conflict = failure.details.get("states"), failure.details.get("conflict")
    if isinstance(states, list):
        console.table("", ("patch", "state"), [(state.patch, state.state) for state in states])
    if isinstance(conflict, Conflict):
        for line in sides(conflict):
            console.say(line)
    if states:
        console.say("nothing of this is in the checkout, which is as it was")


def _apply(target: Target, path: Path, console: Console, *, dry_run: bool) -> Applied:
    user = open_checkout(target, path)
    with looking(user) as since:
        check_nothing_under_way(user)
        check_none_popped(user, f"{target.label} cannot be applied")
        series = series_of(target)
        _check_not_empty(target, series.patches)
        if dry_run or _has_all(series, user):
            return _as_it_would_be(target, user, series, path)
    with (
        console.task(f"applying the series of {target.label}"),
        CheckoutTransaction.on(
            user, f"apply {target.label}", since=since, tag=target.label
        ) as transaction,
    ):
        shadow = transaction.shadow
        plan, tip = _prepare(target, user, series, shadow)
        changes = changed(shadow.repository, plan.start, tip)
        transaction.journal.data.update(start=plan.start, head=tip, patches=names(plan.todo))
        after = {change.path: change.after for change in changes if change.after.blob != NOTHING}
        transaction.switch_to(changes, shadow.contents(after))
        transaction.move_refs(tip, base=plan.tag_code, applied=tip, before=plan.start)
        shadow.hand_over()
        transaction.commit()
    return _applied(path, plan, tip)


def _as_it_would_be(target: Target, user: Repository, series: Series, path: Path) -> Applied:
    with (
        tempfile.TemporaryDirectory(prefix="lmsbuild-") as name,
        contextlib.closing(Shadow(user, Path(name))) as shadow,
    ):
        plan, tip = _prepare(target, user, series, shadow)
        for change in changed(shadow.repository, plan.start, tip):
            check_unchanged(user, change)
    return _applied(path, plan, plan.start)


def _applied(path: Path, plan: _Plan, head: str) -> Applied:
    states = stopped(plan.todo, len(plan.todo))
    return Applied(path, names(plan.todo), plan.already, head, plan.replaced, states)


def open_checkout(target: Target, path: Path) -> Repository:
    """The checkout of the framework at `path`. Raises TreeStateError if it is none."""
    checkout.hold(path)
    user = checkout_git(path) if path.is_dir() else None
    if user is None:
        raise TreeStateError(
            f"the series cannot be applied because {path} is no git checkout; run `lmsbuild fetch "
            f"{target.tag_name}` or stand in a clone of {target.framework_name}"
        )
    if not is_framework(target, user.path):
        raise TreeStateError(
            f"the series cannot be applied because {path} is no clone of "
            f"{target.framework_name} (it lacks one of {', '.join(target.framework.recognise)}); "
            "stand in one or give --into"
        )
    user.tip()  # before what is missing is told as something else
    return user


def _check_not_empty(target: Target, patches: list[Patch]) -> None:
    empty = [patch for patch in patches if is_empty(patch)]
    if empty:
        other = empty[0].data.strip() and not empty[0].data.startswith(b"From ")
        what = "it is no mail with a diff" if other else "it is empty"
        raise PatchError(
            f"{empty[0].name} does not apply because {what}; remove it, or write the series "
            f"anew with `lmsbuild refresh {target.tag_name}`",
            patch=empty[0].name,
            states=[PatchState(p.name, EMPTY if p in empty else NOT_REACHED) for p in patches],
        )


def is_own(target: Target, user: Repository) -> bool:
    """On the base lie only commits that `apply` made itself or that `refresh` put into the
    patches: nothing would be lost with them."""
    own = recorded(user, "applied") == user.tip() or holds_refreshed(target, user)
    return own and recorded(user, "base") != NOTHING


def _has_all(series: Series, user: Repository) -> bool:
    try:
        return series.applied(user) == len(series.patches)
    except TreeStateError:
        return False


def _prepare(target: Target, user: Repository, series: Series, shadow: Shadow) -> tuple[_Plan, str]:
    """Run `git am` in the shadow; the plan and the commit that it gave."""
    check_clean(user, shadow)
    plan = _plan(target, user, series, shadow)
    if plan.todo:
        _put_on(target, user, series, plan, shadow)
    check_whole(target, series)  # after what says more of a damaged patch
    return plan, shadow.repository.tip() if plan.todo else plan.start


def _put_on(target: Target, user: Repository, series: Series, plan: _Plan, shadow: Shadow) -> None:
    bring_blobs(user, plan.base, list(series.before))
    shadow.stand_on(plan.base)
    files = [str(patch.path.resolve()) for patch in plan.todo]
    try:
        shadow.repository.git.run("am", *AM_OPTIONS, "--", *files)
    except GitError as failure:
        raise _conflict(target, plan.todo, shadow, failure) from None
    _check_result(shadow.repository, series)


def _plan(target: Target, user: Repository, series: Series, shadow: Shadow) -> _Plan:
    start = user.tip()
    try:
        count = series.applied(user)
    except TreeStateError as mismatch:
        base = recorded(user, "base")
        if not is_own(target, user):
            _explain_other_code(target, user, series, shadow, mismatch)
            raise
        # An older version of the series.
        check_preimage(target, user, base, str(user.path))
        count = series.applied(user, base)
        return _Plan(start, base, base, series.patches[count:], count, replaced=True)
    if count == 0:
        check_preimage(target, user, start, str(user.path))
    tag_code = start if count == 0 else recorded(user, "base")
    return _Plan(start, start, tag_code, series.patches[count:], count, replaced=False)


def _explain_other_code(
    target: Target, user: Repository, series: Series, shadow: Shadow, mismatch: TreeStateError
) -> None:
    """Raise PatchError when a patch conflicts with the checkout's code, else add the states."""
    if _was_applied(user, series):
        return  # another version of it, with commits on it: that is what must be said
    bring_blobs(user, "HEAD", list(series.before))
    shadow.stand_on(user.tip())
    states, conflict = tried(shadow.repository.git, series.patches)
    if conflict:
        raise error(states, conflict, _advice(target)) from mismatch
    mismatch.details["states"] = states


def _was_applied(user: Repository, series: Series) -> bool:
    """Are there commits on the tag's code that `apply` made, or a command that arranged them?"""
    base, applied = recorded(user, "base"), recorded(user, "applied")
    if applied != NOTHING and user.holds(applied):
        return True
    if base == NOTHING or not user.holds(base):
        return False
    subjects = {patch.subject for patch in series.patches}
    made = user.iter_commits(f"{base}..HEAD", first_parent=True)
    return any(commit.summary in subjects for commit in made)


def _advice(target: Target) -> str:
    return (
        f"take the tag's own source (`lmsbuild apply {target.tag_name} --into NEW_FOLDER` fetches "
        f"it), or check the patch with `lmsbuild verify {target.tag_name}`"
    )


def _conflict(
    target: Target, patches: list[Patch], shadow: Shadow, failure: GitError
) -> LmsbuildError:
    try:
        index = int((shadow.folder / "rebase-apply" / "next").read_text()) - 1
    except (OSError, ValueError):
        index = 0
    index = min(index, len(patches) - 1)
    conflict = explain(shadow.repository.git, patches[index], failure.output)
    if conflict is None:  # a full disk, say
        return failure
    return error(stopped(patches, index), conflict, _advice(target))


def check_clean(user: Repository, shadow: Shadow) -> None:
    """Raise TreeStateError when the checkout has changes or untracked files."""
    index = user.file("index")
    copy = shadow.folder / "users-index"
    if index.exists():
        shutil.copy2(index, copy)
    shadow.repository.git.run("update-ref", "--no-deref", "HEAD", user.tip())
    changes = shadow.over(copy).changes()
    remedy = "commit, stash or remove these changes first"
    checkout.check_clean(user, changes, "the series cannot be applied", remedy)


def _check_result(made: Repository, series: Series) -> None:
    after = series.after()
    found = entries(made, "HEAD", list(after))
    there = {file: found[file].blob if file in found else NOTHING for file in after}
    wrong = {file for file, blob in after.items() if there[file] != blob}
    modes = series.modes()
    wrong |= {f for f, mode in modes.items() if (found[f].mode if f in found else "") != mode}
    if wrong:
        file = sorted(wrong)[0]
        of_it = [p.name for p in series.patches if file in {c.path for c in p.changes}]
        raise PatchError(
            f"the series was not applied because {file} did not come out as its last patch, "
            f"{of_it[-1]}, says: it was edited by hand; put the patch back, and change the code in "
            "a checkout, from which `lmsbuild refresh` writes it",
            file=file,
            patch=of_it[-1],
        )


@dataclass(frozen=True)
class Undone:
    path: Path
    command: str  # what was taken back
    head: str | None  # the commit that is HEAD again; None when it was not a checkout


def undo(user: Repository, console: Console, *, dry_run: bool = False) -> Undone:
    """Take back the last finished `apply` or arrangement of a checkout.

    Raises TreeStateError, with nothing done, when there is none or when commits or changes of the
    user's lie on it.
    """
    checkout.hold(user.path)
    with looking(user) as since:
        last = last_of(user)
        if last is None:
            raise TreeStateError(
                f"nothing can be taken back because no command that changes {user.path} finished "
                "there since the last undo; `lmsbuild status` says where it stands, and `git "
                "reflog` there which commit each command left"
            )
        check_undo(user, last)
    start, head = str(last.data["start"]), str(last.data["head"])
    if dry_run:
        return Undone(user.path, last.command, start)
    with (
        console.task(f"taking back `lmsbuild {last.command}`"),
        CheckoutTransaction.on(user, "undo", since=since) as transaction,
    ):
        refs = {name.rpartition("/")[2]: both[0] for name, both in last.refs.items()}
        arranged = last.data.get("arranged")
        if arranged:  # by several transactions, it may be
            restore(transaction, head, start, (), str(arranged["changes"]))
            put_popped(transaction, steps(arranged["popped"]))
            refs = arranged["refs"]
        else:
            put_back(transaction, last)
            transaction.put_index(changed(user, head, start))
        kept = {name: refs[name] for name in OUR_REFS}
        transaction.move_refs(start, **kept)
        transaction.commit()
    return Undone(user.path, last.command, start)


def check_undo(user: Repository, last: Journal) -> None:
    """Raise TreeStateError when `last` cannot be taken back as the checkout stands."""
    check_nothing_under_way(user)
    _check_on_top(user, *(str(last.data[name]) for name in ("branch", "start", "head")))
    check_as_left(user.path, last)


def _check_on_top(user: Repository, branch: str, start: str, head: str) -> None:
    now, on = resolve(user, "HEAD"), user.branch()
    if on != branch:
        raise TreeStateError(
            f"the series cannot be taken off {user.path} because {on} is checked out, and it was "
            f"put on {branch}; switch to that first"
        )
    if now == head:
        return
    commits = user_commits(user, head)
    if commits:
        raise TreeStateError(
            f"the series cannot be taken off {user.path} because commits of yours lie on it "
            f"({'; '.join(commits[:5])}); keep them with `git branch mine`, then `git reset --keep "
            f"{head[:12]}` and undo again, or move them with `git rebase --onto {start[:12]} "
            f"{head[:12]}`",
            commits=commits,
        )
    raise TreeStateError(
        f"the series cannot be taken off {user.path} because HEAD is {now[:12]} and no longer what "
        f"`apply` left; keep what is there with `git branch mine`, then `git reset --keep "
        f"{head[:12]}` and undo again"
    )


def user_commits(user: Repository, head: str) -> list[str]:
    """`id subject` of the commits since `head`, newest first; none when HEAD does not hold it."""
    if not user.holds(head):
        return []
    log = user.iter_commits(f"{head}..HEAD")
    return [f"{commit.hexsha[:12]} {commit.summary!s}" for commit in log]
