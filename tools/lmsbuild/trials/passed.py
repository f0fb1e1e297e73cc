# SPDX-License-Identifier: Apache-2.0
"""What passed of the whole matrices, when and on which commit: tests/passed.toml.

The matrices take hours and are run in parts, so that nobody could tell otherwise what was ever run.
The runner writes an entry when a part passed; nobody else does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import tomlkit
from filelock import FileLock

from lmsbuild.base.errors import ConfigError, TreeStateError
from lmsbuild.base.git import checkout_git
from lmsbuild.base.hashing import write_atomic
from lmsbuild.base.project import Project, make_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENGINE = "engine"  # what is tested where it is no tag: lms/core
_HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Which parts of the whole matrices passed, when and on which commit. Written by
# `lmsbuild test --record` and `tests/engine/negative.py --record`, shown by `lmsbuild tags`.
"""


@dataclass(frozen=True)
class Part:
    """One part of a matrix, all of whose tests passed or were skipped."""

    of: str  # a tag (pytorch:v2.6.0), a release of a package (torch_lms:2.8.0) or ENGINE
    matrix: str  # "full", or the suites that were named
    part: int  # of `parts`, from 1
    parts: int
    commit: str  # of the project
    on: date
    passed: int
    skipped: int


def file_of(project: Project) -> Path:
    return project.root / "tests" / "passed.toml"


def read(project: Project) -> list[Part]:
    """Raises ConfigError."""
    file = file_of(project)
    if not file.is_file():
        return []
    try:
        entries: list[dict[str, Any]] = tomllib.loads(file.read_text("utf-8")).get("passed", [])
        return [Part(**entry) for entry in entries]
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be read because {error}; take the file of the last commit: nothing but "
            "--record writes it"
        ) from error


def commit_to_record(project: Project) -> str:
    """The commit that is about to be tested. Raises TreeStateError when there is none, or the files
    are others than it has."""
    ours = checkout_git(project.root)
    if ours is None:
        raise TreeStateError(
            f"what passes cannot be recorded because {project.root} is no checkout of git; leave "
            "--record out, or run it in a clone of the project"
        )
    own = str(file_of(project).relative_to(project.root))
    changed = [entry[3:] for entry in ours.changes() if entry[3:] != own]
    if changed:
        raise TreeStateError(
            f"what passes cannot be recorded because {changed[0]} is not as committed; commit "
            "first, or leave --record out"
        )
    return ours.tip()


class Recorder:
    """Made before a part is run: raises TreeStateError when it could not be recorded."""

    def __init__(self, project: Project, of: str, matrix: str, shard: tuple[int, int]) -> None:
        self._project = project
        self._of, self._matrix, self._shard = of, matrix, shard
        self._commit = commit_to_record(project)

    def passed(self, passed: int, skipped: int) -> Part:
        """Record it. Raises TreeStateError when the files are others now, or all was skipped."""
        if not passed:
            raise TreeStateError(
                "nothing was recorded because every test was skipped; see the report for what each "
                "of them lacks"
            )
        if commit_to_record(self._project) != self._commit:
            raise TreeStateError(
                "what passed was not recorded because another commit was checked out meanwhile; "
                "run it again, in a worktree that nothing else uses"
            )
        on = datetime.now(timezone.utc).date()
        part = Part(self._of, self._matrix, *self._shard, self._commit, on, passed, skipped)
        make_folder(self._project.work)
        with FileLock(self._project.work / ".passed.lock"):
            record(self._project, part)
        return part


def record(project: Project, new: Part) -> None:
    """Add an entry; the parts that it stands for go."""
    _write(project, [*(old for old in read(project) if not _replaced(old, new)), new])
    parts = read(project)
    mine = [p for p in parts if _key(p) == _key(new) and p.parts == new.parts]
    if len(mine) == new.parts:  # whole, in this division: those of another are older
        _write(project, [p for p in parts if _key(p) != _key(new) or p.parts == new.parts])


def _key(part: Part) -> tuple[str, str]:
    return part.of, part.matrix


def _replaced(old: Part, new: Part) -> bool:
    return (*_key(old), old.part, old.parts) == (*_key(new), new.part, new.parts)


def _write(project: Project, parts: Iterable[Part]) -> None:
    listed = tomlkit.aot()
    for part in sorted(parts, key=lambda p: (p.of, p.matrix, p.parts, p.part)):
        listed.append(tomlkit.item(asdict(part)))
    text = tomlkit.dumps({"passed": listed})
    write_atomic(file_of(project), f"{_HEAD}\n{text}".encode())


def summary(parts: Sequence[Part]) -> list[str]:
    """A line for each matrix: how much of it passed, on which commits, and when."""
    lines = []
    for of, matrix, count in dict.fromkeys((p.of, p.matrix, p.parts) for p in parts):
        mine = [p for p in parts if (p.of, p.matrix, p.parts) == (of, matrix, count)]
        much = "whole" if len(mine) == count else f"{len(mine)} of {count} parts"
        days = sorted({p.on.isoformat() for p in mine})
        commits = ", ".join(dict.fromkeys(p.commit[:8] for p in mine))
        tests = sum(p.passed for p in mine)
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        lines.append(f"{of} {matrix}: {much} ({tests} passed) on {commits}, {when}")
    return lines
