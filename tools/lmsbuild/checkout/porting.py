# SPDX-License-Identifier: Apache-2.0
"""What a checkout knows of a port that is under way: which patches are done, and where it stopped.

The file changes with the checkout, in the same transaction: so the two are never of different
moments, whenever the process is killed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmsbuild.base.filenames import file_name, inner_path
from lmsbuild.base.git import Repository
from lmsbuild.base.transaction import Content
from lmsbuild.checkout.notes import check_ids, check_refs, note, noted

FILE = "lmsbuild/port.json"  # below the checkout's git folder
SCHEMA = 1


@dataclass
class Ported:
    """What became of one patch."""

    patch: str
    state: str
    notes: list[str] = field(default_factory=list)  # what upstream did


@dataclass
class Port:
    series: str  # framework:tag that is ported
    digest: str  # of its patches, which must not change meanwhile
    tag: str  # it goes to
    commit: str  # of upstream's; NOTHING where the source does not say
    branch: str
    start: str  # HEAD before
    refs: dict[str, str]  # of ours, before
    base: str  # the tag's code
    tip: str  # HEAD as it was left
    clone: str  # that has history; "" for none
    wheels: bool = False  # the index is asked for the official wheels at the end
    done: list[Ported] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)
    stopped: Ported | None = None  # the first of `todo`
    laid: list[str] = field(default_factory=list)  # files of it that were put into the checkout
    names: dict[str, str] = field(default_factory=dict)  # of its files: in the patch -> in the tag
    barred: list[str] = field(default_factory=list)  # where the checkout can have no file for it

    @property
    def label(self) -> str:
        return self.series

    @property
    def what(self) -> str:
        return "the port"

    @property
    def title(self) -> str:
        return f"porting {self.series} to {self.tag}"

    @property
    def content(self) -> Content:
        return note(SCHEMA, dataclasses.asdict(self))


def under_way(user: Repository) -> Port | None:
    """The port that is under way in a checkout. Raises UnfinishedError for a file that is damaged
    or of another lmsbuild."""
    return noted(place(user), SCHEMA, _built)


def _built(value: dict[str, Any]) -> Port:
    value["done"] = [Ported(**each) for each in value["done"]]
    value["stopped"] = Ported(**value["stopped"]) if value["stopped"] else None
    port = Port(**value)
    file_name(port.tag)
    check_ids(port.base, port.start, port.tip)
    check_refs(port.refs)
    if port.stopped and port.todo[:1] != [port.stopped.patch]:
        raise ValueError("it does not say which patch needs a person")
    for name in (
        *port.laid,
        *port.names.values(),
        *port.barred,
        *port.todo,
        *(each.patch for each in port.done),
    ):
        inner_path(name)
    return port


def place(user: Repository) -> Path:
    return user.file(FILE)
