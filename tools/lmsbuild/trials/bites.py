# SPDX-License-Identifier: Apache-2.0
"""Which safeguards bite: of the negative matrix, what is recorded and what is not.

It is recorded by safeguard and not by part: parts that were run on different commits need not hold
every safeguard between them. A record is about the entry as it was then.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import tomli

from lmsbuild.base.errors import ConfigError
from lmsbuild.base.project import Project

ENGINE = "engine"  # what is tested where it is no tag: lms/core
# What has safeguards, and the kind of those: the file of tests/safeguards.
KINDS = {ENGINE: "engine", "pytorch": "torch", "torch_lms": "plugin", "tensorflow": "tensorflow"}
SUITE = "negative"
_CASE = re.compile(r"test_without_it_its_test_fails\[(.+)\]")
_SAID = ("id", "why", "since")  # of an entry, what has no part in how it is turned off
_NAMED = 3  # commits that a line names


@dataclass(frozen=True)
class Bite:
    """A safeguard whose test passed with it and failed without it."""

    commit: str  # of the project
    on: date
    entry: str  # the digest of the safeguard's entry then


@dataclass(frozen=True)
class Entry:
    digest: str
    since: tuple[int, ...]


@dataclass(frozen=True)
class Standing:
    """How the safeguards of a tag, a package's release or the core stand."""

    of: str
    entries: int
    bite: dict[str, Bite]  # by id, those whose entry is as it was then
    missing: list[str]  # ids of the others

    @property
    def line(self) -> str:
        where = where_and_when((b.commit, b.on) for b in self.bite.values())
        also = f", {where}" if where else ""
        return f"{self.of} {SUITE}: {len(self.bite)} of {self.entries} bite{also}"


def kind_of(of: str) -> str:
    return KINDS[of.partition(":")[0]]


def id_of(case: str) -> str | None:
    """Of a test of the suite `negative`, the safeguard that it turns off."""
    found = _CASE.fullmatch(case)
    return found[1] if found else None


def entries(project: Project, kind: str) -> dict[str, Entry]:
    """The safeguards of a kind, by id; of a project that has none of it, none. Raises
    ConfigError."""
    file = project.root / "tests" / "safeguards" / f"{kind}.toml"
    if not file.exists():
        return {}
    try:
        found: list[dict[str, Any]] = tomli.loads(file.read_text("utf-8"))["safeguard"]
        return {e["id"]: Entry(digest(e), tuple(e.get("since", ()))) for e in found}
    except (OSError, tomli.TOMLDecodeError, KeyError) as error:
        raise ConfigError(f"{file} cannot be read because {error}; mend it") from error


def digest(entry: Mapping[str, Any]) -> str:
    """Changes with what is turned off, how, and which test must fail then."""
    shown = {name: value for name, value in entry.items() if name not in _SAID}
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:12]


def standing(project: Project, of: str, recorded: Mapping[str, Bite]) -> Standing:
    """Raises ConfigError."""
    version = tuple(int(n) for n in re.findall(r"\d+", of.partition(":")[2])[:2])
    found = {
        name: entry for name, entry in entries(project, kind_of(of)).items()
        if not version or entry.since <= version
    }  # fmt: skip
    bite = {
        name: recorded[name] for name, entry in found.items()
        if name in recorded and recorded[name].entry == entry.digest
    }  # fmt: skip
    return Standing(of, len(found), bite, [name for name in found if name not in bite])


def standings(project: Project, recorded: Mapping[str, Mapping[str, Bite]]) -> list[Standing]:
    """Of all that has a record; and of a kind without one, so that this shows. Raises
    ConfigError."""
    kinds = {kind_of(of) for of in recorded}
    never = [name for name, kind in KINDS.items() if kind not in kinds]
    found = [standing(project, of, recorded.get(of, {})) for of in (*sorted(recorded), *never)]
    return [each for each in found if each.entries]


def where_and_when(runs: Iterable[tuple[str, date]]) -> str:
    """`on 5cfd9241, 2026-11-24`, or commits in the order of their days and the first and last."""
    ordered = sorted({(on.isoformat(), commit[:8]) for commit, on in runs})
    if not ordered:
        return ""
    commits = list(dict.fromkeys(commit for _, commit in ordered))
    named = ", ".join(commits) if len(commits) <= _NAMED else f"{len(commits)} commits"
    first, last = ordered[0][0], ordered[-1][0]
    return f"on {named}, {first}" + (f" to {last}" if last != first else "")
