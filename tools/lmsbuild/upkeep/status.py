# SPDX-License-Identifier: Apache-2.0
"""Where checkouts and the project stand: what is applied, what is unfinished, what to do next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lmsbuild.base.errors import (
    ConfigError,
    FileError,
    GitError,
    LmsbuildError,
    TreeStateError,
    UnknownTagError,
)
from lmsbuild.base.git import (
    NOTHING,
    Repository,
    checkout_git,
    checkout_top,
    entries,
    has_git,
)
from lmsbuild.base.project import Project, full_path
from lmsbuild.base.transaction import (
    PREPARING,
    PROJECT_STATE,
    FileTransaction,
    Holder,
    Journal,
)
from lmsbuild.checkout import checkout, porting
from lmsbuild.checkout.apply import check_undo, is_own, user_commits
from lmsbuild.checkout.arranging import popped
from lmsbuild.checkout.checkout import ARRANGE, PORT, default_path, is_framework, under_way
from lmsbuild.checkout.edits import REFRESHED, Line
from lmsbuild.checkout.switch import (
    CheckoutTransaction,
    last_of,
    recorded,
    state_of,
)
from lmsbuild.series.patchstate import APPLIED
from lmsbuild.series.series import Series, check_whole, series_of
from lmsbuild.tags.frameworks import Target, resolve, targets
from lmsbuild.upkeep.listed import FILE_ONLY, NOT_APPLIED, Listed, by_commits, by_files, of_port
from lmsbuild.wheel.publish import abandon, of_series, published


@dataclass(frozen=True)
class Unfinished:
    """A command that was stopped. `state` says how far it came."""

    command: str
    started: str
    state: str
    next: str


@dataclass(frozen=True)
class CheckoutStatus:
    tag: str
    port_of: str | None  # the tag whose series is being ported to it
    path: Path
    branch: str
    head: str
    patches: list[Listed]
    other: str | None  # why the code is neither with nor without the series
    damage: str | None  # a patch file that cannot be read, or that is missing
    changes: list[str]  # `git status` entries
    edited: list[str]  # files of the series that commits changed and no refresh took yet
    on_top: list[str]  # the user's commits since the last apply
    popped: list[str]  # patches that are off it for now
    refreshed: bool  # all commits are in the patches already
    under_way: str | None  # what git has not finished
    running: Holder | None
    unfinished: Unfinished | None
    undo: str | None  # what `undo` would take back
    undo_blocked: str | None  # why it would refuse to
    next: str


@dataclass(frozen=True)
class ProjectStatus:
    path: Path
    running: Holder | None
    unfinished: Unfinished | None
    undo: str | None
    wheels: list[Path]  # folders in which a build was killed
    fetches: list[Path]  # what a killed `fetch` left


@dataclass(frozen=True)
class Status:
    project: ProjectStatus
    checkouts: list[CheckoutStatus] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # why others cannot be looked at


@dataclass(frozen=True)
class Place:
    """A checkout that a command without a path means."""

    target: Target
    user: Repository


def places(
    project: Project,
    tag: str | None,
    into: Path | None,
    damaged: list[str] | None = None,
    *,
    one: bool = False,
) -> list[Place]:
    """The checkouts of `tag`, or of all tags: at `into`, else where the user stands, else in the
    work folder; with `one`, none but that where the user stands, if that is one. Raises
    TreeStateError when `into` is no checkout of the framework, and for one that git does not
    accept; with a list `damaged`, those of the work folder are told there instead."""
    try:
        wanted = [resolve(project, tag)] if tag else targets(project)
    except UnknownTagError:
        goals = [place for place in _ported(project, targets(project), []) if _goes_to(place, tag)]
        if into is not None or not goals:
            raise
        return goals
    if into is not None:
        path = full_path(into)
        found = [place for target in wanted if (place := _place(target, path))]
        if not found:
            raise TreeStateError(
                f"{path} cannot be looked at because it is no checkout of a supported framework; "
                "give the folder of one, or none"
            )
        return [_fitting(found)]
    here = checkout_top(Path.cwd())
    if here == project.root.resolve():
        here = None  # which is no framework: git need not be asked
    standing = [
        place
        for target in wanted
        if here and is_framework(target, here) and (place := _place(target, here))
    ]
    chosen = [_fitting(standing)] if standing else []
    if chosen and (tag or one):
        return chosen
    for target in wanted:
        try:
            place = _place(target, default_path(target, None))
        except (FileError, TreeStateError) as error:
            if damaged is None:
                raise
            damaged.append(error.message)
            continue
        if place and all(place.user.path != other.user.path for other in chosen):
            chosen.append(place)
    return chosen if tag else [*chosen, *_ported(project, wanted, chosen)]


def _ported(project: Project, wanted: list[Target], others: list[Place]) -> list[Place]:
    """The checkouts in the work folder where a port is under way, or was stopped: their tags are
    not supported yet."""
    known = {place.user.path for place in others}
    found = []
    for path in sorted(project.work.glob("*/source")):
        state = path / ".git" / "lmsbuild"
        journal = Journal.load(state / "work")
        stopped = journal is not None and journal.kind == "port"
        if path.resolve() not in known and (stopped or (state / "port.json").is_file()):
            places = [place for target in wanted if (place := _place(target, path))]
            found += [_fitting(places)] if places else []
    return found


def _goes_to(place: Place, spec: str | None) -> bool:
    """Whether the port in a checkout of the work folder is to the tag that the user calls so."""
    framework, _, name = (spec or "").rpartition(":")
    theirs = place.target.framework_name
    goal = place.user.path.parent.name.removeprefix(f"{theirs}-")
    return framework in ("", theirs) and name in (goal, goal.removeprefix("v"))


def _place(target: Target, path: Path) -> Place | None:
    try:
        # Not a repository that the folder only lies in.
        user = checkout_git(path) if has_git(path) else None
        return Place(target, user) if user is not None and is_framework(target, path) else None
    except (FileError, GitError, TreeStateError):
        if has_git(path):
            raise
        return None  # `clean` has removed it just now


def _fitting(found: list[Place]) -> Place:
    """Of the tags of one framework the one that the checkout is of."""
    for place in found:
        state = state_of(place.user)
        for folder in (state / "work", state / "last"):
            journal = Journal.load(folder)
            if journal and journal.data.get("tag") == place.target.label:
                return place
    for place in found:  # before the series, which fits a release with the same files as well
        if recorded(place.user, "base") == place.target.tag.commit:
            return place
    for place in found:
        if default_path(place.target, None).resolve() == place.user.path:
            return place
    for place in found:
        try:
            series_of(place.target, whole=False).applied(place.user)
        except LmsbuildError:
            continue
        return place
    return found[0]


def status(project: Project, tag: str | None, into: Path | None) -> Status:
    """Of what `places` finds. Changes nothing."""
    damaged: list[str] = []
    checkouts = []
    for place in places(project, tag, into, damaged):
        try:
            checkouts.append(checkout_status(place))
        except (FileError, GitError, TreeStateError) as error:
            if into is not None:
                raise
            if has_git(place.user.path):
                damaged.append(error.message)
    return Status(project_status(project), checkouts, damaged)


def project_status(project: Project) -> ProjectStatus:
    root, state = project.root, project.root / PROJECT_STATE
    running, stopped = FileTransaction.look(root, state)
    last = FileTransaction.last(root, state)
    return ProjectStatus(
        path=root,
        running=running,
        unfinished=_unfinished(stopped),
        undo=last.command if last else None,
        wheels=[folder for folder in wheel_folders(project) if abandon(folder, dry_run=True)],
        fetches=[
            left for target in targets(project) for left in checkout.abandon(target, dry_run=True)
        ],
    )


def wheel_folders(project: Project) -> list[Path]:
    return [target.work / "wheels" for target in targets(project)]


def checkout_status(place: Place) -> CheckoutStatus:
    target, user = place.target, place.user
    series = series_of(target, whole=False)
    own = is_own(target, user)
    applied = recorded(user, "applied")
    refreshed = own and applied != user.tip()
    patches, other, edited = _patches(series, user, own=own)
    off = popped(user)
    base = recorded(user, "base")
    line = Line(target, user, base, user.tip())
    if base != NOTHING and (off or base != line.tip):
        listed = by_commits(line, series, off, newer=_is_taken(series, line))
        if listed is not None:
            patches, other = listed, other if own else None  # the code of its own commits
    port = porting.under_way(user)
    if port is not None:
        patches = of_port(port)
    last = last_of(user)
    changes = _users_changes(user)
    # At last, so that what one who began meanwhile has half done is not told as the user's.
    running, stopped = CheckoutTransaction.look(user.path, state_of(user))
    unfinished = _unfinished(stopped)
    if unfinished and unfinished.state == HALF:
        changes = []
    what = under_way(user)
    damage = _refusal(series.check) if other else None
    lost = None if damage else _refusal(lambda: check_whole(target, series))
    if damage or lost:
        other = None
    elif other and own:
        other = "an older version of the series is applied"
    top = user_commits(user, str(last.data["head"])) if last else []
    if running:
        following = f"wait for {running}"
    elif unfinished:
        following = unfinished.next
    elif what == PORT:
        other = None  # neither the one tag's code nor the other's yet
        following = "lmsbuild port --continue, --skip or --abort"
    elif what == ARRANGE:
        following = "lmsbuild apply --continue, --skip or --abort"
    elif what:
        following = f"finish or abort {what} with git"
    elif off and not changes:
        other = None
        following = f"lmsbuild push {target.tag_name} --all, then refresh"
    elif changes:
        following = "commit, stash or remove the changes"
        if not other and any(patch.state == APPLIED for patch in patches):
            following += f", or lmsbuild refresh {target.tag_name} --patch (puts them into one)"
    elif damage and own:
        following = f"lmsbuild refresh {target.tag_name} (writes the patches anew)"
    elif damage:
        following = "correct that file"
    elif lost:
        following = "put that file back"
    elif other and own:
        following = f"lmsbuild apply {target.tag_name} (replaces it)"
    elif other:
        following = f"lmsbuild refresh {target.tag_name}, or take the other commits off"
    elif not edited and any(patch.state == NOT_APPLIED for patch in patches):
        following = f"lmsbuild apply {target.tag_name}"
    elif refreshed:
        following = f"lmsbuild verify {target.tag_name}, then lint and wheel"
    elif (
        edited
        or top
        or any(patch.state == FILE_ONLY for patch in patches)
        or (applied != NOTHING and not own)
    ):
        following = f"lmsbuild refresh {target.tag_name} (puts your commits into the patches)"
    elif not target.pythons:
        following = f"complete {target.file}, which names no official wheel, then lmsbuild verify "
        following += f"{target.tag_name}, lint and wheel"
    elif any(published(target.work / "wheels", of_series(target, series))):
        following = f"lmsbuild test {target.tag_name} (there is a wheel of it)"
    else:
        following = f"lmsbuild wheel {target.tag_name}"
    return CheckoutStatus(
        tag=f"{target.framework_name}:{port.tag}" if port else target.label,
        port_of=port.series if port else None,
        path=user.path, branch=user.branch(), head=user.tip(),
        patches=patches, other=other, damage=damage or lost, changes=changes, edited=edited,
        on_top=top,
        popped=[step.name for step in off], refreshed=refreshed, under_way=what,
        running=running, unfinished=unfinished,
        undo=last.command if last else None,
        undo_blocked=_blocked(user, last) if not (running or unfinished) else None,
        next=following,
    )  # fmt: skip


def _blocked(user: Repository, last: Journal | None) -> str | None:
    try:
        if last is not None:
            check_undo(user, last)
    except TreeStateError as error:
        return error.message
    return None


HALF = "stopped in the middle of its switch"


def _unfinished(pending: FileTransaction | None) -> Unfinished | None:
    if pending is None:
        return None
    journal = pending.journal
    if journal.phase == PREPARING:
        state, following = "stopped before it changed anything", "lmsbuild abort cleans up"
    elif pending.complete():
        state, following = "done but for its clean-up", "lmsbuild abort cleans up"
    else:
        state, following = HALF, "lmsbuild abort puts everything back"
    return Unfinished(journal.command, journal.started, state, following)


def _patches(
    series: Series, user: Repository, *, own: bool
) -> tuple[list[Listed], str | None, list[str]]:
    """The patch files, or why the code is other code; and the files that commits of the user's
    edit."""
    edited: list[str] = []
    try:
        count = series.applied(user)
    except LmsbuildError as error:
        noted = None if own else _noted(series, user)
        if noted is None:
            return [], error.message, []
        count, tip = noted
        now, then = (entries(user, commit, list(series.before)) for commit in ("HEAD", tip))
        edited = [path for path in series.before if now.get(path) != then.get(path)]
    return by_files(series, count), None, edited


def _refusal(check: Callable[[], None]) -> str | None:
    """Why a check of the series refuses it, if it does."""
    try:
        check()
    except ConfigError as error:
        return error.message
    return None


def _is_taken(series: Series, line: Line) -> bool:
    """Is HEAD what `apply` or `refresh` left last? Then what the files have besides is newer."""
    user, refreshed = line.repository, recorded(line.repository, REFRESHED)
    if line.tip == refreshed:
        return True
    if line.tip != recorded(user, "applied"):
        return False
    try:  # a refresh after that may have taken more, which is off the checkout since
        return refreshed == NOTHING or series.applied(user, refreshed) < len(series.patches)
    except TreeStateError:
        return True


def _noted(series: Series, user: Repository) -> tuple[int, str] | None:
    """How many patches were on the checkout when `refresh` or `apply` last left it, and the commit
    it was left at; None when HEAD does not come from there."""
    base = recorded(user, "base")
    if base == NOTHING or not user.holds(base):
        return None
    for name in (REFRESHED, "applied"):
        tip = recorded(user, name)
        if tip == NOTHING:
            continue
        try:
            return series.applied(user, tip), tip
        except LmsbuildError:
            continue
    return None


def _users_changes(user: Repository) -> list[str]:
    return user.variant(as_user=True).changes()
