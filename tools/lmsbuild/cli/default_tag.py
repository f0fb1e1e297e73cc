# SPDX-License-Identifier: Apache-2.0
"""The TAG of a command line that names none.

Imported when one is needed: most command lines name theirs, and git takes a moment to import.
"""

from __future__ import annotations

from pathlib import Path

from lmsbuild.base.console import Console
from lmsbuild.base.errors import TreeStateError, UsageError
from lmsbuild.base.git import NOTHING
from lmsbuild.base.project import Project, find_project
from lmsbuild.checkout.checkout import default_path
from lmsbuild.checkout.switch import recorded
from lmsbuild.tags.frameworks import targets
from lmsbuild.trials.suite import suite_names
from lmsbuild.upkeep.status import Place, places


def default_tag(command: str, into: Path | None, console: Console) -> str:
    """framework:tag of the checkout at `into`, else of the one the user stands in if lmsbuild made
    it, else of the only one in `work/`, which is told. Raises UsageError, listing the choices."""
    project = find_project()
    damaged: list[str] = []
    found = places(project, None, into, damaged)
    for place in found:
        if (into is not None or _stands_in(place)) and _is_own(place):
            return place.target.label
    if damaged:  # it may be the one that is meant
        raise TreeStateError(damaged[0])
    kept = [place for place in found if _is_kept(place)]
    if into is None and len(kept) == 1:
        label = kept[0].target.label
        console.tell(f"{label}: the TAG of the only checkout in {project.work}")
        return label
    raise UsageError(_which(command, project, into, kept))


def _is_own(place: Place) -> bool:
    return recorded(place.user, "base") != NOTHING


def _is_kept(place: Place) -> bool:
    """Is it in the work folder, be it by a link?"""
    return default_path(place.target, None).resolve() == place.user.path


def _stands_in(place: Place) -> bool:
    return Path.cwd().resolve().is_relative_to(place.user.path)


def _which(command: str, project: Project, into: Path | None, kept: list[Place]) -> str:
    if into is not None:
        why = f"{into} is no checkout that lmsbuild made"
    elif kept:
        why = f"{len(kept)} checkouts stand in {project.work} and you stand in none"
    else:
        why = f"you stand in no checkout that lmsbuild made and {project.work} has none"
    choices = [place.target.label for place in kept] or [t.label for t in targets(project)]
    return (
        f"`{command}` cannot start because TAG is missing and {why}; name one of "
        f"{', '.join(choices)} (see `{command} --help`)"
    )


def is_suite(word: str) -> bool:
    """Is it a suite of some tag, where a TAG could stand?"""
    return any(word in suite_names(target) for target in targets(find_project()))
