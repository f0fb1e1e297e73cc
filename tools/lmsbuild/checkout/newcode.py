# SPDX-License-Identifier: Apache-2.0
"""The code of a tag that is not supported yet: where it is to come from, and whether it is that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lmsbuild.base.errors import GitError, SourceError, TreeStateError
from lmsbuild.base.git import NOTHING, Repository, open_at
from lmsbuild.base.project import full_path
from lmsbuild.checkout.checkout import default_path
from lmsbuild.checkout.source import ask, is_archive, is_repository
from lmsbuild.checkout.switch import recorded
from lmsbuild.tags.frameworks import Target


@dataclass(frozen=True)
class Wanted:
    """Where the tag's code is to come from: as for `fetch`."""

    source: str
    reference: Path | None
    wheels: bool = False  # the index is asked for the official wheels, too


def clone_of(origin: Wanted) -> Path | None:
    """A clone that may have the history between the tags."""
    given = full_path(origin.source)
    if "://" not in origin.source and is_repository(given):
        return given
    return full_path(origin.reference) if origin.reference else None


def upstreams_commit(new: Target, wanted: str, clone: Path | None) -> str:
    """Upstream's commit of a tag, NOTHING where the source does not say."""
    if clone is not None and clone == full_path(wanted):
        with open_at(clone) as given:
            found = given.commit_id(f"refs/tags/{new.tag_name}")
        if found is None:
            raise SourceError(
                f"{clone} cannot give the source of {new.label} because it has no such tag; fetch "
                f"it there (`git fetch origin tag {new.tag_name}`), or use another clone"
            )
        return found
    url = new.framework.url if wanted in ("auto", "git") else wanted
    if is_archive(url) or ("://" not in url and not url.startswith("git@")):
        return NOTHING
    try:
        return ask(url, new.tag_name)
    except GitError as error:
        raise SourceError(
            f"{new.tag_name} was not fetched from {url} because git says: {error.reason}; give a "
            "clone, an unpacked tree or a tarball with --source PATH"
        ) from error


def with_commit(new: Target, commit: str) -> Target:
    return replace(new, tag=new.tag.model_copy(update={"commit": commit}))


def checked_out(new: Target, user: Repository, clone: Path | None, into: Path | None) -> str:
    """Upstream's commit of the tag that is checked out. Raises TreeStateError when another is."""
    tip = user.tip()
    names = [user.commit_id(f"refs/tags/{new.tag_name}")]
    if clone is not None:
        with open_at(clone) as given:
            names.append(given.commit_id(f"refs/tags/{new.tag_name}"))
    if tip in (new.tag.commit, *names):
        return tip
    # What was fetched into the tag's own folder is the tag, though a tarball does not say which
    # commit of upstream's.
    own = into is None or full_path(into) == default_path(new, None)
    if tip == recorded(user, "base") and (own or new.tag.commit != NOTHING or not any(names)):
        return new.tag.commit
    raise TreeStateError(
        f"{user.path} cannot be ported to because {new.tag_name} is not what is checked out there "
        f"({tip[:12]}); run `git checkout {new.tag_name}`, or give another folder with --into"
    )
