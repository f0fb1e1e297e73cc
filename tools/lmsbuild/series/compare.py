# SPDX-License-Identifier: Apache-2.0
"""Two series patch by patch: of two tags, or of one at two moments of this project's history."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.base.errors import ConfigError, GitError, UsageError
from lmsbuild.base.git import Repository, folder, open_at
from lmsbuild.base.project import Project
from lmsbuild.series.scratch import scratch
from lmsbuild.series.series import Patch, patch_files
from lmsbuild.series.sketch import sketch
from lmsbuild.tags.frameworks import resolve

STATES = {"=": "the same", "!": "changed", "<": "only in the first", ">": "only in the second"}
_PAIR = re.compile(r"^ *(\d+|-): +\S+ ([=!<>]) +(\d+|-): +\S+ (.*)$")
_LIKE = 90  # per cent of a patch that may differ from its pair: tags lie years apart
_INDENT = 4  # of what differs, below a pair
# No line is the heading of a hunk: which lines a sketch has above one depends on the other patches.
_NO_HEADINGS = "diff.default.xfuncname=.^"


@dataclass(frozen=True)
class Pair:
    """A patch of the first series and the one of the second that is most like it; None for none."""

    first: str | None
    second: str | None
    state: str
    diff: str  # of the two patches: lines of patches after a sign for which of them has it


@dataclass(frozen=True)
class Version:
    label: str
    patches: list[Patch]


def version(project: Project, spec: str) -> Version:
    """The hooks of `TAG`, as they are in the files, or of `TAG@REVISION`, as they were in that
    revision of this project's repository. Raises UsageError."""
    name, _, revision = spec.partition("@")
    target = resolve(project, name)
    if not revision:
        return Version(target.label, [Patch(path) for path in patch_files(target.tag_patches)])
    label = f"{target.label}@{revision}"
    try:
        with open_at(project.root) as repository:
            commit = repository.commit_id(revision)
            if commit is None:
                raise UsageError(
                    f"{spec} cannot be compared because {repository.path} has no revision "
                    f"{revision!r}; see `git log`"
                )
            return Version(label, _at(repository, commit, target.tag_patches))
    except GitError as error:
        raise UsageError(
            f"{spec} cannot be compared because {project.root} is in no git repository; leave "
            f"@{revision} out"
        ) from error


def _at(repository: Repository, commit: str, place: Path) -> list[Patch]:
    path = place.resolve().relative_to(repository.path.resolve()).as_posix()
    found = folder(repository, commit, path)
    return [
        Patch(place / name, repository.blob(entry.blob))
        for name, entry in sorted(found.items())
        if name.endswith(".patch")
    ]


def compare(first: Version, second: Version) -> list[Pair]:
    """By git's range-diff. Raises ConfigError for a series without hooks, or a damaged one."""
    for each in (first, second):
        if not each.patches:
            raise ConfigError(
                f"{each.label} cannot be compared because it has no hooks; name another"
            )
    with scratch() as room:
        ranges = [sketch(room, each.patches) for each in (first, second)]
        words = [f"{commits[0]}..{commits[-1]}" for commits in ranges]
        done = room.repository.git.run(
            "-c",
            "core.quotePath=false",
            "-c",
            _NO_HEADINGS,
            "range-diff",
            "--no-color",
            f"--creation-factor={_LIKE}",
            "--abbrev=40",
            *words,
        )
    return _pairs(done.stdout.decode(errors="surrogateescape"), first.patches, second.patches)


def _pairs(text: str, first: Sequence[Patch], second: Sequence[Patch]) -> list[Pair]:
    found: list[Pair] = []
    for line in text.splitlines():
        head = _PAIR.match(line)
        if head is None:
            last = found[-1]
            diff = f"{last.diff}{line[_INDENT:]}\n"
            found[-1] = Pair(last.first, last.second, last.state, diff)
            continue
        names = [
            None if number == "-" else patches[int(number) - 1].name
            for number, patches in ((head[1], first), (head[3], second))
        ]
        found.append(Pair(names[0], names[1], STATES[head[2]], ""))
    return found
