# SPDX-License-Identifier: Apache-2.0
"""A series against many tags at once: only the files that it touches are read, from clones and
checkouts that are there. Nothing is downloaded, and nothing changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.errors import GitError, LmsbuildError, SourceError, UsageError
from lmsbuild.base.git import Repository, open_at
from lmsbuild.checkout.checkout import in_work_folder, standing_in
from lmsbuild.checkout.drift import FileDrift, Ground, ground, home_of
from lmsbuild.checkout.replay import Origin, find_origin
from lmsbuild.checkout.source import cached
from lmsbuild.series.patchstate import APPLIED, NOT_REACHED, is_empty
from lmsbuild.series.scratch import scratch
from lmsbuild.series.series import Patch, Series, series_of
from lmsbuild.series.standing import STOPS, Standing
from lmsbuild.tags.frameworks import Target, targets

_GLOB = "*?["


@dataclass(frozen=True)
class Surveyed:
    """One patch on one tag."""

    series: str
    tag: str
    patch: str
    state: str
    files: list[FileDrift]  # those that do not simply apply


@dataclass(frozen=True)
class Survey:
    rows: list[Surveyed]
    missing: dict[str, str]  # tags that were not looked at, and why


def survey(target: Target, tags: Sequence[str], clone: Path | None, console: Console) -> Survey:
    """How each patch of `target` stands on each of `tags` (names, globs or revisions of the clone;
    every supported tag of the framework where there are none).

    Raises SourceError when the code of none of them is at hand.
    """
    series = series_of(target)
    for patch in series.patches:
        if not is_empty(patch):  # which has a state
            patch.check()
    codes: dict[str, Origin] = {}
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        given = _opened(clone) if clone else None
        if given:
            stack.enter_context(given)
        for tag in _named(target, tags, given):
            code = _code(target, tag, given)
            if code is None:
                where = given.path if given else "no checkout and no cache here"
                missing[tag] = f"{where} has {'no such tag' if given else 'its code'}"
            else:
                codes[tag] = code
        if not codes:
            raise SourceError(
                f"{target.label} cannot be surveyed because the code of none of "
                f"{', '.join(missing)} is at hand; name a clone that has them with --source",
                missing=missing,
            )
        repositories = list({id(c.repository): c.repository for c in codes.values()}.values())
        home = home_of(target, repositories)
        room = stack.enter_context(scratch(*repositories, *([home] if home else [])))
        rows: list[Surveyed] = []
        with console.task(f"surveying {target.label}", len(codes)) as task:
            for tag, code in codes.items():
                try:
                    found = ground(room, target, series, code)
                    rows += _rows(target, tag, found, series)
                except (GitError, LmsbuildError) as error:
                    if isinstance(error, GitError) and error.killed:
                        raise
                    missing[tag] = error.message
                task.advance()
        return Survey(rows, missing)


def _opened(clone: Path) -> Repository:
    try:
        return open_at(clone)
    except GitError as error:
        raise SourceError(
            f"{clone} cannot be surveyed because it is no git repository; give a clone of the "
            "framework with --source"
        ) from error


def _named(target: Target, tags: Sequence[str], clone: Repository | None) -> list[str]:
    """The tags that are meant, each once, in order. Raises SourceError for a glob of none."""
    if not tags:
        return [each.tag_name for each in _siblings(target)]
    odd = next((tag for tag in tags if tag.split() != [tag]), None)
    if odd is not None:
        raise UsageError(
            f"{odd!r} cannot be surveyed because no tag is called so; give the name of one"
        )
    names: dict[str, None] = {}
    known = [each.tag_name for each in _siblings(target)] + (_tags(clone) if clone else [])
    for tag in tags:
        found = [tag]
        if any(sign in tag for sign in _GLOB):
            found = [name for name in known if fnmatchcase(name, tag)]
        if not found:
            raise SourceError(
                f"{tag} cannot be surveyed because no tag of {target.framework_name} that is at "
                "hand matches it; name a clone that has such with --source"
            )
        names.update(dict.fromkeys(found))
    return list(names)


def _siblings(target: Target) -> list[Target]:
    every = targets(target.project)
    return [each for each in every if each.framework_name == target.framework_name]


def _tags(clone: Repository) -> list[str]:
    words = ("for-each-ref", "--sort=version:refname", "--format=%(refname:lstrip=2)", "refs/tags")
    return clone.git.text(*words).split("\n")


def _code(target: Target, tag: str, clone: Repository | None) -> Origin | None:
    known = next((each for each in _siblings(target) if each.tag_name == tag), None)
    if clone is not None:
        return _in(clone, ([known.tag.commit] if known else []) + [f"refs/tags/{tag}", tag])
    if known is not None:
        return find_origin(known)
    for place in _places(target):
        with contextlib.suppress(GitError):
            found = _in(open_at(place), [f"refs/tags/{tag}"])
            if found is not None:
                return found
    return None


def _in(repository: Repository, names: Sequence[str]) -> Origin | None:
    for name in names:
        commit = repository.commit_id(name)
        if commit is not None:
            return Origin(repository, commit)
    return None


def _places(target: Target) -> list[Path]:
    """Where there may be tags that are not supported: as `find_origin` looks for those that are."""
    found = [standing_in(target)]
    for each in _siblings(target):
        found += [in_work_folder(each), *cached(each)]
    return [place for place in found if place is not None]


def _rows(target: Target, tag: str, found: Ground, series: Series) -> Iterator[Surveyed]:
    tree = found.tree
    lost: set[str] = set()
    for patch in series.patches:
        standing = _without(found.stand(patch, tree), lost)
        tree = standing.onto(tree)
        lost.update(file.path for file in standing.files if file.state in STOPS)
        files = [found.drift(file) for file in standing.files if file.state != APPLIED]
        yield Surveyed(target.label, tag, patch.name, standing.state, files)


def _without(standing: Standing, lost: set[str]) -> Standing:
    """What is on a file that an earlier patch does not fit says nothing."""
    files = [
        replace(file, state=NOT_REACHED, after=None, conflicts=[]) if file.path in lost else file
        for file in standing.files
    ]
    return Standing(standing.patch, files)


def short(patch: Patch | str) -> str:
    """A patch's folder and number."""
    folder, _, file = (patch if isinstance(patch, str) else patch.name).partition("/")
    return f"{folder}/{file[:4]}"
