# SPDX-License-Identifier: Apache-2.0
"""A series put, patch by patch, on the tag's own code in a scratch repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmsbuild.base.errors import GitError, TreeStateError
from lmsbuild.base.git import ABSENT, Repository, entries, open_at
from lmsbuild.base.project import full_path
from lmsbuild.checkout.checkout import in_work_folder, standing_in
from lmsbuild.checkout.source import cached
from lmsbuild.checkout.switch import recorded
from lmsbuild.series.format import fetch_blobs
from lmsbuild.series.scratch import Scratch
from lmsbuild.series.series import Patch, Series
from lmsbuild.series.standing import refused
from lmsbuild.tags.frameworks import Target


@dataclass(frozen=True)
class Origin:
    """A repository that has the tag's code, and the revision that is it."""

    repository: Repository
    revision: str


def find_origin(target: Target, path: Path | None = None) -> Origin | None:
    """The tag's code at `path`, else where the user stands, in the work folder or the cache.

    Downloads nothing: of these a partial clone that lacks files of it is passed over. Raises
    TreeStateError when a given `path` does not have it.
    """
    if path is not None:
        origin = _origin(target, full_path(path))
        if origin is None:
            raise TreeStateError(
                f"{path} cannot be checked against because it has no commit that is "
                f"{target.label}; run `lmsbuild apply {target.tag_name} --into {path}` or fetch "
                "the tag there"
            )
        return origin
    found = [standing_in(target), in_work_folder(target), *cached(target)]
    places = [place for place in found if place is not None]
    return next((origin for place in places if (origin := _whole(target, place))), None)


def _whole(target: Target, place: Path) -> Origin | None:
    try:
        origin = _origin(target, place)
        if origin is not None:
            paths = list(target.tag.preimage)
            for entry in entries(origin.repository, origin.revision, paths).values():
                origin.repository.blob(entry.blob)
    except GitError:
        return None
    return origin


def _origin(target: Target, path: Path) -> Origin | None:
    if not path.is_dir():
        return None
    try:
        repository = open_at(path)
    except GitError:
        return None
    tag = f"refs/tags/{target.tag_name}"
    for name in (target.tag.commit, tag, recorded(repository, "base"), "refs/heads/base"):
        # A clone may have the refs of another tag, whose files hardly fit. One that does not fit is
        # for `verify` to tell.
        commit = repository.commit_id(name)
        if commit is not None:
            found = entries(repository, commit, list(target.tag.preimage))
            matching = sum(found.get(p, ABSENT).blob == b for p, b in target.tag.preimage.items())
            if 2 * matching >= len(target.tag.preimage):
                return Origin(repository, commit)
    return None


@dataclass
class Step:
    """One patch of a replay. The trees hold the files that the series touches, no others."""

    patch: Patch
    before: str
    after: str
    problems: list[str] = field(default_factory=list)  # "X because Y; do Z"


def replay(room: Scratch, series: Series, origin: Origin) -> list[Step]:
    """Apply each patch to what the one before left; a file that fails is left out afterwards.

    `room` reads the objects of `origin`. Raises TreeStateError when a blob cannot be had.
    """
    paths = list(series.before)
    fetch_blobs(origin.repository, entries(origin.repository, origin.revision, paths))
    tree = room.tree(room.entries(origin.revision, paths))
    lost: dict[str, Patch] = {}
    steps = []
    for patch in series.patches:
        step = Step(patch, tree, tree)
        steps.append(step)
        wanted = [change for change in patch.changes if change.path not in lost]
        for change in patch.changes:
            if change.path in lost:
                step.problems.append(
                    f"{patch.name} was not tried on {change.path} because "
                    f"{lost[change.path].name} does not apply there; repair that one first"
                )
        if len(wanted) == len(patch.changes):
            try:
                tree = step.after = room.apply(tree, patch.diff.encode(errors="surrogateescape"))
                continue
            except GitError:
                pass  # now file by file, to tell them all
        for change in wanted:
            try:
                part = patch.part(change.path).encode(errors="surrogateescape")
                tree = step.after = room.apply(tree, part)
            except GitError as error:
                lost[change.path] = patch
                step.problems += _stale(room, patch, part, error.output)
    return steps


def _stale(room: Scratch, patch: Patch, part: bytes, output: str) -> list[str]:
    """Why `part` of the patch does not apply to the index, every hunk that does not."""
    conflicts = refused(room, patch, part, output)
    if conflicts:
        todo = "rebase that commit on the tag's code and run `lmsbuild refresh`"
        return [f"{patch.name} is stale because {conflict.why}; {todo}" for conflict in conflicts]
    said = (output.strip().splitlines() or ["nothing"])[-1]
    return [
        f"{patch.name} is damaged because git gives up on it ({said}); write it anew with "
        "`lmsbuild refresh`"
    ]


def contents(room: Scratch, tree: str, paths: Sequence[str]) -> dict[str, bytes]:
    """The files `paths` of a tree, those that it has."""
    return {
        path: room.repository.blob(entry.blob) for path, entry in room.entries(tree, paths).items()
    }
