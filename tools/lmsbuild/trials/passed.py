# SPDX-License-Identifier: Apache-2.0
"""What passed of the whole matrices, when and on which commit: tests/passed.toml.

The matrices take hours and are run in parts, so that nobody could tell otherwise what was ever run.
The runner writes what passed; nobody else does. A full matrix is noted by its parts, the negative
one by its safeguards (trials/bites.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tomli

from lmsbuild.base.errors import ConfigError, TreeStateError
from lmsbuild.base.hashing import write_atomic
from lmsbuild.base.project import Project, make_folder
from lmsbuild.trials import bites
from lmsbuild.trials.bites import Bite

if TYPE_CHECKING:
    from filelock import BaseFileLock

_HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# What passed of the whole matrices, when and on which commit: parts of the full ones, and the
# safeguards that bite. Written by `lmsbuild test --record` and `tests/engine/negative.py --record`,
# shown by `lmsbuild tags`.
"""


@dataclass(frozen=True)
class Part:
    """One part of a matrix, all of whose tests passed or were skipped."""

    of: str  # a tag (pytorch:v2.6.0), or a release of a package (torch_lms:2.8.0)
    matrix: str  # "full", or the suites that were named
    part: int  # of `parts`, from 1
    parts: int
    by: str  # what puts a test into a part: its "id"; once its place in the "order" of a commit
    commit: str  # of the project
    on: date
    passed: int
    skipped: int

    @property
    def division(self) -> tuple[str, ...]:
        """Parts with the same one divide the matrix. Those by order do so on one commit alone."""
        rest = self.commit if self.by == "order" else ""
        return self.of, self.matrix, str(self.parts), self.by, rest


@dataclass(frozen=True)
class Record:
    parts: list[Part] = field(default_factory=list)
    bites: dict[str, dict[str, Bite]] = field(default_factory=dict)  # by what was tested, by id


_Kind = TypeVar("_Kind", Part, Bite)


def file_of(project: Project) -> Path:
    return project.root / "tests" / "passed.toml"


def read(project: Project) -> Record:
    """Raises ConfigError."""
    file = file_of(project)
    if not file.is_file():
        return Record()
    try:
        found: dict[str, Any] = tomli.loads(file.read_text("utf-8"))
        return Record(
            [_made(Part, entry) for entry in found.get("passed", [])],
            {
                of: {name: _made(Bite, entry) for name, entry in entries.items()}
                for of, entries in found.get("bites", {}).items()
            },
        )
    except (tomli.TOMLDecodeError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file} cannot be read because {error}; take the file of the last commit: nothing but "
            "--record writes it"
        ) from error


def _made(kind: type[_Kind], entry: Mapping[str, Any]) -> _Kind:
    """Raises TypeError for what lacks a field, has another, or one of another type."""
    made = kind(**entry)
    for one in fields(made):
        value = getattr(made, one.name)
        if type(value).__name__ != one.type:
            raise TypeError(f"{one.name} is {value!r}")
    return made


def commit_to_record(project: Project) -> str:
    """The commit that is about to be tested. Raises TreeStateError when there is none, or the files
    are others than it has."""
    from lmsbuild.base.git import checkout_git  # what only reads does without

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
    """Made before anything is run: raises TreeStateError when it could not be recorded."""

    def __init__(self, project: Project, of: str) -> None:
        self._project, self._of = project, of
        self._commit = commit_to_record(project)

    def passed(self, matrix: str, shard: tuple[int, int], *, passed: int, skipped: int) -> Part:
        """Record a part; those that it stands for go.

        Raises TreeStateError when the files are others now, or all was skipped."""
        self._check(found=passed)
        part = Part(
            self._of, matrix, *shard, "id", self._commit, _today(), passed, skipped
        )  # fmt: skip
        with self._lock():
            record = read(self._project)
            _write(self._project, Record(_with(record.parts, part), record.bites))
        return part

    def bites(self, found: Mapping[str, bool]) -> None:
        """Record which safeguards bite, by id; one that does not is struck out.

        Raises TreeStateError as above, also when there is no such safeguard."""
        self._check(found=len(found))
        entries = bites.entries(self._project, bites.kind_of(self._of))
        with self._lock():
            record = read(self._project)
            mine = {**record.bites.get(self._of, {})}
            for name, bite in found.items():
                mine.pop(name, None)
                if bite:
                    mine[name] = Bite(self._commit, _today(), entries[name].digest)
            _write(self._project, Record(record.parts, {**record.bites, self._of: mine}))

    def _check(self, *, found: int) -> None:
        if not found:
            raise TreeStateError(
                "nothing was recorded because every test was skipped; see the report for what each "
                "of them lacks"
            )
        if commit_to_record(self._project) != self._commit:
            raise TreeStateError(
                "what passed was not recorded because another commit was checked out meanwhile; "
                "run it again, in a worktree that nothing else uses"
            )

    def _lock(self) -> BaseFileLock:
        from lmsbuild.base.lockfile import Lock

        make_folder(self._project.work)
        return Lock(self._project.work / ".passed.lock")


def _today() -> date:
    return datetime.now(timezone.utc).date()


def _with(parts: Iterable[Part], new: Part) -> list[Part]:
    def replaced(old: Part) -> bool:
        return (old.division, old.part) == (new.division, new.part)

    parts = [*(old for old in parts if not replaced(old)), new]
    if sum(part.division == new.division for part in parts) < new.parts:
        return parts
    # Whole, in this division: those of another are older.
    key = (new.of, new.matrix)
    return [p for p in parts if (p.of, p.matrix) != key or p.division == new.division]


def _write(project: Project, record: Record) -> None:
    import tomlkit  # what only reads does without

    document = tomlkit.document()
    listed = tomlkit.aot()
    for part in sorted(record.parts, key=lambda p: (*p.division, p.part)):
        listed.append(tomlkit.item(asdict(part)))
    if len(listed):
        document.append("passed", listed)
    tables = tomlkit.table(is_super_table=True)
    for of, found in sorted(record.bites.items()):
        table = tomlkit.table()
        for name, bite in sorted(found.items()):
            line = tomlkit.inline_table()
            line.update(asdict(bite))
            table.append(name, line)
        tables.append(of, table)
    if record.bites:
        document.append("bites", tables)
    write_atomic(file_of(project), f"{_HEAD}\n{tomlkit.dumps(document)}".encode())


def summary(parts: Sequence[Part]) -> list[str]:
    """A line for each division of a full matrix: how much of it passed, where, and when. It is
    whole where all parts are of one commit: those of several have no test that came in between."""
    lines = []
    for division in dict.fromkeys(p.division for p in parts):
        mine = [p for p in parts if p.division == division]
        count = mine[0].parts
        much = f"{len(mine)} of {count} parts"
        if len(mine) == count:
            much = "whole" if len({p.commit for p in mine}) == 1 else f"in {count} parts"
        tests = sum(p.passed for p in mine)
        where = bites.where_and_when((p.commit, p.on) for p in mine)
        lines.append(f"{mine[0].of} {mine[0].matrix}: {much} ({tests} passed), {where}")
    return lines
