# SPDX-License-Identifier: Apache-2.0
"""Take a series to another tag, commit by commit, up to the first that needs a person.

Everything is worked out beside the checkout: how each patch stands (`series.standing`) in a scratch
repository, the commits in the shadow. Then one transaction switches files, index, refs and the note
of how far it came (`porting`), as `apply` does; so a kill leaves a checkout before or after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    MismatchError,
    PatchError,
    TreeStateError,
)
from lmsbuild.base.git import (
    ABSENT,
    Repository,
    entries,
    obstacles,
    open_at,
)
from lmsbuild.base.hashing import sha256_value
from lmsbuild.checkout import picking, porting
from lmsbuild.checkout.apply import check_clean, open_checkout
from lmsbuild.checkout.checkout import check_nothing_under_way, default_path, fetch, is_there
from lmsbuild.checkout.drift import Ground, ground, home_of
from lmsbuild.checkout.edits import Line
from lmsbuild.checkout.layout import Layout, lay_out, switch
from lmsbuild.checkout.newcode import (
    Wanted,
    checked_out,
    clone_of,
    upstreams_commit,
    with_commit,
)
from lmsbuild.checkout.newtag import check_new, new_tag, record, unknown
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
from lmsbuild.checkout.porting import Port, Ported
from lmsbuild.checkout.replay import Origin
from lmsbuild.checkout.shadow import Shadow, bring_blobs
from lmsbuild.checkout.source import is_repository
from lmsbuild.checkout.switch import CheckoutTransaction, Seen, looking, recorded
from lmsbuild.series.merge import UPSTREAMS
from lmsbuild.series.patchstate import APPLIED, EMPTY, UPSTREAM, is_empty
from lmsbuild.series.scratch import scratch
from lmsbuild.series.series import Series, series_of
from lmsbuild.series.standing import Standing
from lmsbuild.tags.frameworks import Target
from lmsbuild.tags.official import Wheels, look_up


@dataclass(frozen=True)
class Outcome:
    path: Path
    series: str
    tag: str
    head: str
    patches: list[Ported]
    written: list[str]  # files of the project
    unknown: list[str]  # what a person must say of the tag
    wheel: Path | None = None  # that was made of it


@dataclass(frozen=True)
class Aborted:
    path: Path
    series: str
    tag: str
    head: str


def begin(
    target: Target, spec: str, origin: Wanted, into: Path | None, console: Console
) -> Outcome:
    """Port the series of `target` to the tag `spec`, in the checkout at `into`, which is fetched if
    need be.

    Raises PatchError when a patch needs a person; the checkout then has the conflict.
    """
    new = new_tag(target, spec)
    check_new(target, new)
    clone = clone_of(origin)
    path = default_path(new, into)
    if not is_there(path):
        new = with_commit(new, upstreams_commit(new, origin.source, clone))
        fetch(new, origin.source, path, console, origin.reference)
    user = open_checkout(new, path)
    with looking(user) as since:
        check_nothing_under_way(user)
        new = with_commit(new, checked_out(new, user, clone, into))
        series = series_of(target)
    tip = since.head
    with (
        console.task(f"porting {target.label} to {new.tag_name}"),
        _transaction(user, target, new.tag_name, since) as transaction,
    ):
        check_clean(user, transaction.shadow)
        port = Port(
            series=target.label,
            digest=_digest(series),
            tag=new.tag_name,
            commit=new.tag.commit,
            branch=user.branch(),
            start=tip,
            refs={name: recorded(user, name) for name in OUR_REFS},
            base=tip,
            tip=tip,
            clone=str(clone) if clone else "",
            wheels=origin.wheels,
            todo=[patch.name for patch in series.patches],
        )
        _go_on(transaction, target, series, port)
        return _end(target, user, port, console)


def go_on(path: Path, console: Console, *, wheels: bool = False) -> Outcome:
    """What the user made of the conflict becomes the commit of its patch; then as `begin`. With
    `wheels` the index is asked for the official ones at the end, however the port began."""
    with (
        _resumed(path, console) as (user, target, port, since),
        _transaction(user, target, port.tag, since) as transaction,
    ):
        port.wheels |= wheels
        if port.stopped:
            series = _series(target, port)
            _take_resolved(transaction, port, series)
            _go_on(transaction, target, series, port)
        return _end(target, user, port, console)


def skip(path: Path, console: Console, *, wheels: bool = False) -> Outcome:
    """Leave out the patch that needs a person; then as `go_on`."""
    with _resumed(path, console) as (user, target, port, since):
        port.wheels |= wheels
        if port.stopped is None:
            raise TreeStateError(
                f"nothing was skipped in {path} because no patch needs a person; run `lmsbuild "
                "port --continue` there"
            )
        series = _series(target, port)
        with _transaction(user, target, port.tag, since) as transaction:
            check_only_laid(user, _at(port))
            laid = port.laid
            _take(port, SKIPPED)
            _go_on(transaction, target, series, port, laid)
            return _end(target, user, port, console)


def abort(path: Path, console: Console) -> Aborted:
    """The checkout as it was before the port."""
    with _resumed(path, console) as (user, target, port, since):
        with _transaction(user, target, port.tag, since) as transaction:
            check_only_laid(user, _at(port))
            switch(transaction, port.tip, port.start, port.laid, Layout())
            transaction.remove_beside(porting.FILE)
            transaction.move_refs(port.start, **port.refs)
            transaction.commit()
        return Aborted(user.path, port.series, port.tag, port.start)


# One transaction.


@contextmanager
def _transaction(
    user: Repository, target: Target, tag: str, since: Seen
) -> Iterator[CheckoutTransaction]:
    command = f"port {target.label} {tag}"
    with CheckoutTransaction.on(user, command, since=since, tag=target.label) as transaction:
        yield transaction


def _resumed(
    path: Path, console: Console
) -> contextlib.AbstractContextManager[tuple[Repository, Target, Port, Seen]]:
    idle, begin = "no port is under way", "begin with `lmsbuild port FROM TO`"
    return picking.resumed(path, porting.under_way, idle, begin, console)


def _digest(series: Series) -> str:
    return sha256_value([patch.sha256 for patch in series.patches])


def _series(target: Target, port: Port) -> Series:
    series = series_of(target)
    if _digest(series) != port.digest:
        raise MismatchError(
            f"the port of {port.series} cannot go on because its patches changed since it began; "
            "put them back, or run `lmsbuild port --abort` and begin anew"
        )
    return series


def _take(port: Port, state: str) -> None:
    """A person has decided on the patch that the port stopped at."""
    assert port.stopped is not None
    port.done.append(Ported(port.stopped.patch, state, port.stopped.notes))
    port.todo, port.stopped, port.laid, port.barred = port.todo[1:], None, [], []
    port.names = {}


def _go_on(
    transaction: CheckoutTransaction, target: Target, series: Series, port: Port,
    laid: Sequence[str] = (),
) -> None:  # fmt: skip
    """The patches that are still to be done, onto `port.tip`, which the checkout has but for the
    files `laid`, and the switch to what they give."""
    shadow, user = transaction.shadow, transaction.user
    since = port.tip
    bring_blobs(user, port.base, list(_whole(series).before))
    with contextlib.ExitStack() as stack:
        there = port.clone and is_repository(Path(port.clone))  # it may be gone since
        clone = stack.enter_context(open_at(Path(port.clone))) if there else None
        lenders = [shadow.repository, *([clone] if clone else [])]
        home = home_of(target, lenders)
        room = stack.enter_context(scratch(*lenders, *([home] if home else [])))
        found = ground(room, target, series, Origin(shadow.repository, port.base), clone)
        standing = _commits(shadow, found, series, port)
        layout = lay_out(shadow, found.versions, standing) if standing else Layout()
    port.laid = layout.paths
    port.barred = [file.at for file in standing.files if file.obstacle] if standing else []
    port.names = {file.path: file.at for file in standing.files} if standing else {}
    switch(transaction, since, port.tip, laid, layout)
    transaction.put_beside(porting.FILE, port.content)
    kept = {} if standing else {"applied": port.tip}
    transaction.move_refs(port.tip, base=port.base, **kept)
    shadow.hand_over()
    transaction.commit()


def _whole(series: Series) -> Series:
    """The patches that change something."""
    return Series([patch for patch in series.patches if not is_empty(patch)])


def _commits(shadow: Shadow, found: Ground, series: Series, port: Port) -> Standing | None:
    """Commit the patches of `port.todo` up to the first that needs a person, and give that one's
    standing."""
    writer = Writer(shadow, found.versions.room, port.tip)
    paths = [*found.tree, *found.names.values(), *_whole(series).before]
    tree = entries(shadow.repository, port.tip, list(dict.fromkeys(paths)))
    found = replace(found, obstacles=obstacles(shadow.repository, port.tip, paths))
    patches = {patch.name: patch for patch in series.patches}
    while port.todo:
        standing = found.stand(patches[port.todo[0]], tree)
        drifted = [file for file in standing.files if file.state != APPLIED]
        drifted.sort(key=lambda file: file not in standing.stops)  # why a person is needed is first
        notes = [reason for file in drifted for reason in found.drift(file).reasons]
        ported = Ported(standing.patch.name, standing.state, notes)
        if standing.stops:
            port.stopped = ported
            return standing
        if standing.state not in (EMPTY, UPSTREAM):
            after = {file.at: file.after for file in standing.files if file.after is not None}
            changes = {at: entry for at, entry in after.items() if entry != tree.get(at, ABSENT)}
            mail = standing.patch.mail.moved({file.path: file.at for file in standing.files})
            port.tip = writer.commit(changes, port.tip, mail)
            tree = standing.onto(tree)
        port.done.append(ported)
        port.todo = port.todo[1:]
    return None


# What a person did.


def _take_resolved(transaction: CheckoutTransaction, port: Port, series: Series) -> None:
    """What the index has is the patch's commit, or what the user committed on top is."""
    assert port.stopped is not None
    user, shadow = transaction.user, transaction.shadow
    tree, tip = resolved(transaction, _at(port))
    barred = obstacles(shadow.repository, tree, port.barred)
    if barred and tip == port.tip:
        raise TreeStateError(
            f"the port in {user.path} cannot go on because {'; '.join(barred.values())}, so a part "
            "of the patch is nowhere; make room for it, or commit there what is to stand for the "
            "patch, and run `lmsbuild port --continue`"
        )
    if tree != user.tree_id(tip).hex():
        patch = next(patch for patch in series.patches if patch.name == port.stopped.patch)
        tip = commit(shadow, tree, tip, patch.mail.moved(port.names))
        shadow.hand_over()  # the user's repository has to read it
    port.tip = tip
    _take(port, RESOLVED)


def _at(port: Port) -> Stop:
    patch = port.stopped.patch if port.stopped else ""
    return Stop(port.what, "lmsbuild port", patch, port.tip, port.laid, UPSTREAMS)


# The end.


def _end(target: Target, user: Repository, port: Port, console: Console) -> Outcome:
    """Say what needs a person, or write the tag down, while the checkout is locked: no --abort goes
    between. Raises PatchError."""
    new = with_commit(new_tag(target, port.tag), port.commit)
    if port.stopped is not None:
        raise _stop(user, port)
    line = Line(new, user, port.base, port.tip)
    wheels = look_up(target, new.tag.version, console) if port.wheels else Wheels()
    files = record(target, line, wheels)
    told = unknown(target, line, wheels)
    porting.place(user).unlink(missing_ok=True)
    return Outcome(user.path, port.series, port.tag, port.tip, port.done, files, told)


def _stop(user: Repository, port: Port) -> PatchError:
    assert port.stopped is not None
    why = port.stopped.notes[0] if port.stopped.notes else port.stopped.state
    files = ", ".join(port.laid) or "nothing"
    return PatchError(
        f"{port.stopped.patch} needs a person because {why}; in {user.path}, where {files} is laid "
        "out, make it right, `git add` it and run `lmsbuild port --continue` (or --skip, --abort)",
        path=user.path, patch=port.stopped.patch, patches=[*port.done, port.stopped],
        files=port.laid, todo=port.todo,
    )  # fmt: skip
