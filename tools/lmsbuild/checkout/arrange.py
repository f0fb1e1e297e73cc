# SPDX-License-Identifier: Apache-2.0
"""The patches of a checkout, arranged: pushed, popped, folded, squashed, dropped, put in another
order.

A plan says which patches are to be on the checkout and which off it. What stays at the bottom is
left alone; the rest is put on it patch by patch, three ways where the context changed, beside the
checkout. One transaction then switches files, index, refs and notes (`arranging`), as `port` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.errors import PatchError, TreeStateError, UsageError
from lmsbuild.base.git import ABSENT, NOTHING, Repository, changed, entries
from lmsbuild.checkout import arranging, picking
from lmsbuild.checkout.apply import check_clean, is_own, open_checkout
from lmsbuild.checkout.arranging import Arranging, Step, put_popped, restore
from lmsbuild.checkout.checkout import check_nothing_under_way
from lmsbuild.checkout.layout import Layout, lay_out, switch
from lmsbuild.checkout.notes import OUR_REFS
from lmsbuild.checkout.picking import (
    RESOLVED,
    SKIPPED,
    Stop,
    Writer,
    check_only_laid,
    commit,
    resolved,
)
from lmsbuild.checkout.shadow import Shadow, bring_blobs
from lmsbuild.checkout.switch import (
    CheckoutTransaction,
    Seen,
    check_unchanged,
    looking,
    recorded,
)
from lmsbuild.series.format import commit_patch, file_name, mail_of
from lmsbuild.series.mail import Mail, joined, reworded
from lmsbuild.series.merge import Versions
from lmsbuild.series.patchstate import (
    APPLIED,
    EMPTY,
    NOT_REACHED,
    UPSTREAM,
    PatchState,
    is_empty,
)
from lmsbuild.series.scratch import Scratch, scratch
from lmsbuild.series.series import FileChange, Series, check_preimage, series_of
from lmsbuild.series.standing import Standing, stand
from lmsbuild.tags.frameworks import Target

POPPED = "popped"
DROPPED = "dropped"
FOLDED = "folded"
CHANGED = "changed"  # by what was folded into it
_OURS = "HEAD"  # what git calls that side
_RUNTIME = 0  # where the runtime patch is, and its number


@dataclass(frozen=True)
class Stack:
    """The series of a checkout: the patches on it, and those that are off it, in order."""

    target: Target
    user: Repository
    base: str
    on: list[Step]
    popped: list[Step]
    seen: Seen

    @property
    def tip(self) -> str:
        return self.on[-1].commit if self.on else self.base

    @property
    def all(self) -> list[Step]:
        return [*self.on, *self.popped]

    def find(self, spec: str) -> int:
        """Where the patch is that `spec` names: its number (0 is the runtime), or a part of its
        name. Raises UsageError."""
        names = [step.name for step in self.all]
        files = [name.rpartition("/")[2] for name in names]
        if spec.isdecimal():
            found = [int(spec)] if int(spec) < len(files) else []
        else:
            words = spec.lower().replace(" ", "-")
            whole = [
                at for at, name in enumerate(names) if words in (name.lower(), files[at].lower())
            ]
            found = whole or [at for at, name in enumerate(names) if words in name.lower()]
        if len(found) == 1:
            return found[0]
        why = "several patches have that in their names" if found else "no patch is called so"
        listed = ", ".join(names[at] for at in found or range(len(names)))
        raise UsageError(
            f"{spec!r} cannot be found in {self.user.path} because {why}; give the number or "
            f"a part of the name of one of {listed}"
        )

    def hooks(self, specs: Sequence[str]) -> list[int]:
        """The same for patches that are to go elsewhere."""
        found = [self.find(spec) for spec in specs]
        if _RUNTIME in found:
            raise UsageError(
                "the runtime patch cannot go elsewhere because it is made from lms/ and is the "
                "first of every series; name hooks (from 1 on)"
            )
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Plan:
    """What is to be on the checkout, and what off it."""

    on: list[Step]
    popped: list[Step]
    gone: list[PatchState] = field(default_factory=list)  # what is in neither, or in another
    changes: str = ""  # a patch: what the files have, which is a part of the plan
    laid: dict[str, str | None] = field(default_factory=dict)  # fingerprints of those files


@dataclass(frozen=True)
class Arranged:
    path: Path
    head: str
    patches: list[PatchState]
    popped: list[str]
    in_patches: bool = False  # the patch files say just that already
    dry_run: bool = False


def open_stack(target: Target, path: Path) -> Stack:
    """The patches of the checkout at `path`. Raises TreeStateError when it is not fit."""
    user = open_checkout(target, path)
    with looking(user):
        check_nothing_under_way(user)
        base, off = _base(target, user)
        merge = next(user.iter_commits(f"{base}..HEAD", merges=True, max_count=1), None)
        if merge is not None:
            raise TreeStateError(
                f"the patches of {user.path} cannot be arranged because commit "
                f"{merge.hexsha[:12]} is a merge; rebase into a line of commits (`git rebase`)"
            )
        return stacked(target, user, base, off)


def stacked(target: Target, user: Repository, base: str, off: Sequence[Step]) -> Stack:
    """The commits of the checkout since `base`, and the steps `off` it, as patches of one series:
    numbered as `drop` and the others take them."""
    commits = user.commits(base, user.tip())
    on = [
        Step(named(target, at, mail_of(user, each).subject), commit=each)
        for at, each in enumerate(commits)
    ]
    off = [replace(s, name=named(target, at, s.patch.subject)) for at, s in enumerate(off, len(on))]
    return Stack(target, user, base, on, off, Seen.of(user))


def _base(target: Target, user: Repository) -> tuple[str, list[Step]]:
    """The tag's code below the patches, and the patches that are off the checkout."""
    base = recorded(user, "base")
    if base != NOTHING and user.holds(base):
        return base, arranging.popped(user)  # a file that is neither was dropped, or is newer
    series = series_of(target)
    count = series.applied(user)
    found = user.commit_id(f"HEAD~{count}")
    assert found is not None
    base = found
    check_preimage(target, user, base, str(user.path))
    rest = series.patches[count:]
    return base, [Step(patch.name, patch.text) for patch in rest]


def named(target: Target, at: int, subject: str) -> str:
    """What the file of the patch at `at` is called, with its folder."""
    if at == _RUNTIME:
        return f"{target.runtime_patches.name}/{file_name(1, subject)}"
    return f"{target.tag_name}/{file_name(at, subject)}"


# Plans.


def up_to(stack: Stack, count: int) -> Plan:
    """The first `count` patches on the checkout, the rest off it."""
    return Plan(stack.all[:count], stack.all[count:])


def without(stack: Stack, dropped: Sequence[int]) -> Plan:
    gone = [PatchState(stack.all[at].name, DROPPED) for at in dropped]
    kept = [step for at, step in enumerate(stack.all) if at not in dropped]
    count = len([at for at in range(len(stack.on)) if at not in dropped])
    return Plan(kept[:count], kept[count:], gone)


def reordered(stack: Stack, moved: Sequence[int], at: int, *, after: bool) -> Plan:
    """The patches `moved`, in that order, before or after the one at `at`; on the checkout if that
    is."""
    if at in moved:
        raise UsageError(
            f"{stack.all[at].name} cannot be put beside itself because it is the place and the "
            "patch; name another place"
        )
    if at == _RUNTIME and not after:
        raise UsageError(
            "no patch can go before the runtime patch because the hooks call what it adds; put it "
            "after that (--after 0)"
        )
    rest = [step for number, step in enumerate(stack.all) if number not in moved]
    place = rest.index(stack.all[at]) + after
    order = [*rest[:place], *(stack.all[number] for number in moved), *rest[place:]]
    count = len([number for number in range(len(stack.on)) if number not in moved])
    count += len(moved) if at < len(stack.on) else 0
    return Plan(order[:count], order[count:])


def squashed(stack: Stack, into: int, others: Sequence[int], wording: str | None = None) -> Plan:
    """The patches `others` as a part of the one at `into`, with all that their messages say, or
    with `wording` and their trailers."""
    if into in others:
        raise UsageError(
            f"{stack.all[into].name} cannot be squashed into itself because it is named twice; "
            "name other patches"
        )
    mails = [filled(stack, stack.all[at]).patch.mail for at in (into, *others)]
    try:
        message = joined(mails) if wording is None else reworded(wording, mails)
    except ValueError as error:
        raise UsageError(
            f"--message {wording!r} cannot be a patch's message because {error}; give another"
        ) from error
    parts = [replace(filled(stack, stack.all[at]), fold=True, message=message) for at in others]
    order: list[Step] = []
    count = 0
    for at, step in enumerate(stack.all):
        order += [] if at in others else [step, *parts] if at == into else [step]
        if at < len(stack.on):
            count = len(order)
    gone = [PatchState(stack.all[at].name, FOLDED) for at in others]
    if into >= len(stack.on):
        raise UsageError(
            f"{stack.all[into].name} cannot take other patches in because it is popped; put it on "
            f"with `lmsbuild apply --to {into}` first"
        )
    return Plan(order[:count], order[count:], gone)


def inserted(stack: Stack, at: int, steps: Sequence[Step]) -> Plan:
    """`steps` after the patch at `at`."""
    if not stack.on:
        raise UsageError(
            f"nothing can go onto {stack.user.path} because no patch is on it; put some on with "
            "`lmsbuild push` first"
        )
    if at >= len(stack.on):
        raise UsageError(
            f"nothing can go onto {stack.all[at].name} because it is popped; put it on with "
            f"`lmsbuild apply --to {at}` first"
        )
    return Plan([*stack.on[: at + 1], *steps, *stack.on[at + 1 :]], stack.popped)


def filled(stack: Stack, step: Step) -> Step:
    """With its text."""
    if step.text:
        return step
    with scratch(stack.user) as room:
        content = commit_patch(room, stack.user, step.commit)
    return replace(step, text=content.decode(errors="surrogateescape"))


# One transaction.


def arrange(
    stack: Stack, plan: Plan, command: str, console: Console, *, dry_run: bool = False
) -> Arranged:
    """Make the checkout as `plan` says. Raises PatchError when a patch needs a person; the checkout
    then has the conflict."""
    user = stack.user
    order = _numbered([*plan.on, *plan.popped])
    kept = 0
    for ours, theirs in zip(stack.on, plan.on, strict=False):
        if ours != theirs:
            break
        kept += 1
    tip = stack.tip
    way = Arranging(
        command=command,
        label=stack.target.label,
        branch=user.branch(),
        base=stack.base,
        start=tip,
        refs={name: recorded(user, name) for name in OUR_REFS},
        before=[dataclasses.asdict(step) for step in arranging.popped(user)],
        changes=plan.changes,
        tip=stack.on[kept - 1].commit if kept else stack.base,
        wanted=[filled(stack, step) for step in order[kept : len(plan.on)]],
        popped=[filled(stack, step) for step in order[len(plan.on) :]],
        done=[*plan.gone, *(PatchState(step.name, APPLIED) for step in stack.on[:kept])],
    )
    if dry_run:
        with looking(user, stack.seen):
            _foresee(stack, way, plan)
        return _arranged(stack.target, user, way, dry_run=True)
    if way.tip == tip and not way.wanted and not plan.changes and plan.popped == stack.popped:
        return _arranged(stack.target, user, way)
    with console.task(way.title):
        with _transaction(user, way, stack.seen) as transaction:
            if not plan.changes:
                check_clean(user, transaction.shadow)
            for path, found in plan.laid.items():
                transaction.expect(path, found)
            _go_on(transaction, stack.target, way, tip, list(plan.laid))
        return _end(stack.target, user, way)


def _numbered(steps: Sequence[Step]) -> list[Step]:
    """With the numbers in their names that they have in this order."""
    found: list[Step] = []
    number = -1
    for step in steps:
        number += not step.fold
        named = step.name
        if number > _RUNTIME and not step.fold:
            named = re.sub(r"/\d{4}-", f"/{number:04}-", named)
        found.append(replace(step, name=named))
    return found


def _foresee(stack: Stack, way: Arranging, plan: Plan) -> None:
    user = stack.user
    with (
        tempfile.TemporaryDirectory(prefix="lmsbuild-") as name,
        contextlib.closing(Shadow(user, Path(name))) as shadow,
        scratch(shadow.repository) as room,
    ):
        if not plan.changes:
            check_clean(user, shadow)
        stopped, _ = _put_on(shadow, room, user, way)
        for change in changed(shadow.repository, way.start, way.tip):
            if change.path not in plan.laid:
                check_unchanged(user, change)
    if stopped and way.stopped:
        way.done.append(way.stopped)
        way.done += [PatchState(step.name, NOT_REACHED) for step in way.wanted[1:]]


def _arranged(
    target: Target, user: Repository, way: Arranging, *, dry_run: bool = False
) -> Arranged:
    off = [PatchState(step.name, POPPED) for step in way.popped]
    names = [step.name for step in way.popped]
    known = not dry_run and not off and is_own(target, user)
    return Arranged(user.path, way.tip, [*way.done, *off], names, known, dry_run)


@contextmanager
def _transaction(user: Repository, way: Arranging, since: Seen) -> Iterator[CheckoutTransaction]:
    with CheckoutTransaction.on(user, way.command, since=since, tag=way.label) as transaction:
        yield transaction


def _go_on(
    transaction: CheckoutTransaction, target: Target, way: Arranging, since: str,
    laid: Sequence[str],
) -> None:  # fmt: skip
    """The patches that are still wanted, onto `way.tip`, and the switch to what they give, of a
    checkout that has the commit `since` but for the files `laid`."""
    shadow, user = transaction.shadow, transaction.user
    with scratch(shadow.repository) as room:
        standing, versions = _put_on(shadow, room, user, way)
        layout = lay_out(shadow, versions, standing) if standing else Layout()
    way.laid = layout.paths
    applied = way.refs["applied"]
    if not standing and not way.popped and _is_series(target, shadow.repository, way):
        applied = way.tip
    switch(transaction, since, way.tip, laid, layout)
    if standing:
        transaction.put_beside(arranging.FILE, way.content)
        put_popped(transaction, [])
    else:
        transaction.remove_beside(arranging.FILE)
        put_popped(transaction, way.popped)
    before = way.refs["before"] if way.refs["before"] != NOTHING else way.base
    transaction.move_refs(way.tip, base=way.base, applied=applied, before=before)
    transaction.journal.data.update(
        start=way.start, head=way.tip, stopped=standing is not None,
        arranged={"refs": way.refs, "popped": way.before, "changes": way.changes},
    )  # fmt: skip
    shadow.hand_over()
    transaction.commit()


def _is_series(target: Target, made: Repository, way: Arranging) -> bool:
    """Is what is on the checkout what the patch files say, commit by commit?"""
    patches, commits = series_of(target).patches, made.commits(way.base, way.tip)
    return len(patches) == len(commits) and all(
        mail_of(made, commit) == patch.mail
        and _changes(made, commit) == {change.path: change for change in patch.changes}
        for patch, commit in zip(patches, commits, strict=True)
    )


def _changes(made: Repository, commit: str) -> dict[str, FileChange]:
    found = {}
    for raw in changed(made, f"{commit}~1^{{tree}}", f"{commit}^{{tree}}"):
        modes = [entry.mode for entry in (raw.before, raw.after) if entry != ABSENT]
        found[raw.path] = FileChange(raw.path, raw.before.blob, raw.after.blob, modes[-1], modes[0])
    return found


def _put_on(
    shadow: Shadow, room: Scratch, user: Repository, way: Arranging
) -> tuple[Standing | None, Versions]:
    """Commit the patches of `way.wanted` up to the first that needs a person, and give that one's
    standing."""
    patches = [step.patch for step in way.wanted]
    whole = Series([patch for patch in patches if not is_empty(patch)])
    paths = list(whole.before)
    bring_blobs(user, way.base, paths)
    versions = Versions(room, whole, _OURS)
    made = shadow.repository
    tree = entries(made, way.tip, paths)
    writer = Writer(shadow, room, way.tip) if patches else None
    for patch in patches:
        assert writer is not None
        step, following = way.wanted[0], way.wanted[1:2]
        if _follows(made, step, way.tip):
            raws = changed(made, way.tip, step.commit)
            writer.take({raw.path: raw.after for raw in raws})
            way.tip, tree = step.commit, entries(made, step.commit, paths)
            _take(way, APPLIED)
            continue
        standing = stand(versions, tree, patch)
        if standing.stops:
            way.stopped = PatchState(step.name, standing.state)
            way.notes = _why(standing)
            return standing, versions
        _check_outcome(step, standing)
        state = EMPTY if standing.state in (EMPTY, UPSTREAM) else standing.state
        goes_on = bool(following and following[0].fold)
        if state != EMPTY or step.message or goes_on:
            after = {file.at: file.after for file in standing.files if file.after is not None}
            changes = {at: entry for at, entry in after.items() if entry != tree.get(at, ABSENT)}
            parent, mail = _onto(made, step, way.tip)
            way.tip = writer.commit(changes, parent, mail)
            tree = standing.onto(tree)
        _take(way, state)
    return None, versions


def _take(way: Arranging, state: str) -> None:
    step = way.wanted[0]
    if not step.fold:
        way.done.append(PatchState(step.name, state))
    elif state not in (EMPTY, SKIPPED):
        way.done[-1] = PatchState(_reworded(way.done[-1].patch, step.message), CHANGED)
    else:
        way.done.append(PatchState(step.name, state))
    way.wanted, way.stopped, way.notes = way.wanted[1:], None, []


def _reworded(name: str, message: str) -> str:
    """What the patch `name` is called with this message, "" for that which it has."""
    if not message:
        return name
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file_name(int(file[:4]), message.partition(chr(10))[0])}"


def _follows(made: Repository, step: Step, tip: str) -> bool:
    """Is the patch's own commit what comes next?"""
    if not step.commit or step.fold or step.message:
        return False
    return made.commit_id(f"{step.commit}~1") == tip


def _onto(made: Repository, step: Step, tip: str) -> tuple[str, Mail]:
    """The parent and the mail of the commit that `step` becomes, or becomes a part of."""
    if not step.fold:
        return tip, step.patch.mail
    parent = made.commit_id(f"{tip}~1")
    assert parent is not None
    mail = mail_of(made, tip)
    return parent, replace(mail, message=step.message) if step.message else mail


def _why(standing: Standing) -> list[str]:
    found = [conflict.why for file in standing.stops for conflict in file.conflicts]
    return found or [f"{file.at} is not there" for file in standing.stops]


def _check_outcome(step: Step, standing: Standing) -> None:
    """Raise PatchError for a patch file whose text is not what its index lines say."""
    if step.commit or step.fold or standing.state != APPLIED:
        return
    for change, file in zip(step.patch.changes, standing.files, strict=True):
        before = file.before.blob if file.before else NOTHING
        if before == change.before and file.after and file.after.blob != change.after:
            raise PatchError(
                f"{step.name} was not applied because {change.path} did not come out as the patch "
                "says: it was edited by hand; put it back, and change the code in a checkout, from "
                "which `lmsbuild refresh` writes it",
                file=change.path,
            )


# What a person did.


def go_on(path: Path, console: Console) -> Arranged:
    """What the user made of the conflict becomes the commit of its patch; then as `arrange`."""
    with _resumed(path, console) as (user, target, way, since):
        with _transaction(user, way, since) as transaction:
            _take_resolved(transaction, way)
            _go_on(transaction, target, way, way.tip, [])
        return _end(target, user, way)


def skip(path: Path, console: Console) -> Arranged:
    """Leave out the patch that needs a person; then as `arrange`."""
    with _resumed(path, console) as (user, target, way, since):
        with _transaction(user, way, since) as transaction:
            check_only_laid(user, _at(way))
            tip, laid = way.tip, way.laid
            _take(way, SKIPPED)
            _go_on(transaction, target, way, tip, laid)
        return _end(target, user, way)


def abort(path: Path, console: Console) -> Arranged:
    """The checkout as it was before."""
    with _resumed(path, console) as (user, target, way, since):
        before = arranging.steps(way.before)
        with _transaction(user, way, since) as transaction:
            check_only_laid(user, _at(way))
            restore(transaction, way.tip, way.start, way.laid, way.changes)
            transaction.remove_beside(arranging.FILE)
            put_popped(transaction, before)
            transaction.move_refs(way.start, **way.refs)
            transaction.journal.data["stopped"] = True
            transaction.commit()
        off = [step.name for step in before]
        return Arranged(user.path, way.start, [], off, not off and is_own(target, user))


def _resumed(
    path: Path, console: Console
) -> contextlib.AbstractContextManager[tuple[Repository, Target, Arranging, Seen]]:
    idle, begin = "no patch needs a person", "begin with `lmsbuild apply`, push or reorder"
    return picking.resumed(path, arranging.under_way, idle, begin, console)


def _at(way: Arranging) -> Stop:
    patch = way.stopped.patch if way.stopped else ""
    return Stop(way.what, "lmsbuild apply", patch, way.tip, way.laid, _OURS)


def _take_resolved(transaction: CheckoutTransaction, way: Arranging) -> None:
    user, shadow = transaction.user, transaction.shadow
    step = way.wanted[0]
    tree, tip = resolved(transaction, _at(way))
    if step.fold or tree != user.tree_id(tip).hex():
        parent, mail = _onto(shadow.repository, step, way.tip if step.fold else tip)
        tip = commit(shadow, tree, parent, mail)
        shadow.hand_over()  # the user's repository has to read it
    way.tip = tip
    _take(way, RESOLVED)


def _end(target: Target, user: Repository, way: Arranging) -> Arranged:
    """Say what needs a person, or what was done. Raises PatchError."""
    if way.stopped is None:
        return _arranged(target, user, way)
    files = ", ".join(way.laid) or "nothing"
    raise PatchError(
        f"{way.stopped.patch} needs a person because {way.notes[0]}; in {user.path}, where {files} "
        "is laid out, make it right, `git add` it and run `lmsbuild apply --continue` (or --skip, "
        "--abort)",
        path=user.path, patch=way.stopped.patch, patches=[*way.done, way.stopped],
        files=way.laid, todo=[step.name for step in way.wanted],
    )  # fmt: skip
