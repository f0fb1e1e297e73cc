# SPDX-License-Identifier: Apache-2.0
"""A series on another tree than its tag's: how each patch stands there, and what upstream did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmsbuild.base.errors import TreeStateError
from lmsbuild.base.git import Entry, Repository, entries, obstacles
from lmsbuild.checkout.history import Commit, Fate, History
from lmsbuild.checkout.replay import Origin, find_origin
from lmsbuild.series.format import fetch_blobs
from lmsbuild.series.merge import Versions
from lmsbuild.series.patchstate import DELETED, NOT_REACHED, UPSTREAM, Conflict, is_empty
from lmsbuild.series.scratch import Scratch
from lmsbuild.series.series import NO_BLOB, Patch, Series
from lmsbuild.series.standing import FileStanding, Standing, stand
from lmsbuild.tags.frameworks import Target


@dataclass(frozen=True)
class Broken:
    """A hunk that git refuses, and the commit of upstream's that is why, where it can be told."""

    conflict: Conflict
    commit: Commit | None

    def __str__(self) -> str:
        by = f", since commit {self.commit}" if self.commit else ""
        return f"{self.conflict.why}{by}"


@dataclass(frozen=True)
class FileDrift:
    """What upstream did to one file that a patch touches."""

    path: str
    at: str  # its name in the tree; "" for one that is not there
    state: str
    offsets: dict[int, int]  # hunk -> lines it lies further down
    broken: list[Broken] = field(default_factory=list)
    commit: Commit | None = None  # that renamed or removed it

    @property
    def reasons(self) -> list[str]:
        by = f": commit {self.commit}" if self.commit else ""
        told = []
        if self.at and self.at != self.path:
            told.append(f"{self.path} is called {self.at} there{by}")
        elif not self.at:
            told.append(f"{self.path} is not there{by}")
        told = [*(str(broken) for broken in self.broken), *told]
        if self.state == UPSTREAM:
            told = [f"{self.path} has its change already"]
        if self.state == NOT_REACHED:
            told = [f"{self.path} was not tried because an earlier patch needs a person there"]
        return told


@dataclass(frozen=True)
class Ground:
    """One tree that a series is to stand on: the files of it that the patches touch."""

    versions: Versions
    history: History
    tree: dict[str, Entry]
    fates: dict[str, Fate]  # of the files that it has not under the patches' names
    obstacles: dict[str, str]  # paths of the patches that can be no file of it, and why

    @property
    def names(self) -> dict[str, str]:
        return {fate.path: fate.to for fate in self.fates.values() if fate.to}

    def stand(self, patch: Patch, tree: dict[str, Entry] | None = None) -> Standing:
        return stand(
            self.versions, self.tree if tree is None else tree, patch, self.names, self.obstacles
        )

    def drift(self, file: FileStanding) -> FileDrift:
        """What upstream did, for one file of a patch that does not simply apply."""
        fate = self.fates.get(file.path)
        lost = file.state == DELETED
        if file.obstacle:
            by = fate.commit if fate else None
            broken = [Broken(conflict, by) for conflict in file.conflicts]
        else:
            broken = [Broken(c, self.history.broke(file.path, file.at, c)) for c in file.conflicts]
        return FileDrift(
            path=file.path,
            at="" if lost else file.at,
            state=file.state,
            offsets=file.offsets,
            broken=broken,
            commit=fate.commit if fate and (lost or file.at != file.path) else None,
        )


def ground(
    room: Scratch, target: Target, series: Series, code: Origin, clone: Repository | None = None
) -> Ground:
    """The tree of `code` for the series of `target`. `room` reads the objects of `code`, and of
    `home_of` the series; `clone` may have more of the history. Raises TreeStateError when a blob
    that a patch touches is not at hand."""
    repository = code.repository
    series = Series([patch for patch in series.patches if not is_empty(patch)])
    paths = [path for path, blob in series.before.items() if blob != NO_BLOB]
    if clone is None or clone.commit_id(code.revision) is None:
        clone = repository
    before = _home(target, clone, room)
    history = History(clone, before, code.revision, room, tuple(paths))
    there = entries(repository, code.revision, list(series.before))
    fates = {path: history.fate(path) for path in paths if path not in there}
    there.update(entries(repository, code.revision, [f.to for f in fates.values() if f.to]))
    barred = obstacles(repository, code.revision, list(series.before))
    there = {path: entry for path, entry in there.items() if path not in barred}
    fetch_blobs(repository, there)
    return Ground(Versions(room, series), history, there, fates, barred)


def home_of(target: Target, others: Sequence[Repository]) -> Repository | None:
    """A repository with the tag's own code, none where one of `others` has it."""
    if any(_commit(target, each) for each in others):
        return None
    origin = find_origin(target)
    return origin.repository if origin else None


def _commit(target: Target, repository: Repository) -> str | None:
    names = target.tag.commit, f"refs/tags/{target.tag_name}"
    return next((found for name in names if (found := repository.commit_id(name))), None)


def _home(target: Target, repository: Repository, room: Scratch) -> str | None:
    """The commit of the tag's own code: upstream's, else the one that stands for it in `room`."""
    found = _commit(target, repository)
    if found is not None:
        return found
    try:
        origin = find_origin(target)
    except TreeStateError:
        return None
    if origin is None or room.repository.commit_id(origin.revision) is None:
        return None
    return origin.revision
