# SPDX-License-Identifier: Apache-2.0
"""What a checkout knows of patches that are popped, and of an arrangement that is under way.

Both files change with the checkout, in the same transaction: so they are never of different
moments, whenever the process is killed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmsbuild.base.errors import ConfigError, TreeStateError
from lmsbuild.base.filenames import inner_path
from lmsbuild.base.git import ABSENT, Repository, entries
from lmsbuild.base.transaction import Content
from lmsbuild.checkout.layout import Layout, bring, switch
from lmsbuild.checkout.notes import check_ids, check_refs, note, noted
from lmsbuild.checkout.switch import CheckoutTransaction
from lmsbuild.series.patchstate import PatchState
from lmsbuild.series.scratch import scratch
from lmsbuild.series.series import Patch

POPPED = "lmsbuild/popped.json"  # below the checkout's git folder
FILE = "lmsbuild/arranging.json"
SCHEMA = 1


@dataclass(frozen=True)
class Step:
    """A patch that is on the checkout, is to be put on it, or is popped."""

    name: str  # as its file would be called: with its folder and number
    text: str = ""  # "" for what `commit` says
    commit: str = ""  # that it is on the checkout, or was when it was popped
    fold: bool = False  # it becomes a part of the one before it,
    message: str = ""  # which has this message then

    @property
    def patch(self) -> Patch:
        return Patch(Path(self.name), self.text.encode(errors="surrogateescape"))


@dataclass
class Arranging:
    """The way of a checkout to another arrangement of its patches."""

    command: str  # without lmsbuild
    label: str  # framework:tag
    branch: str
    base: str  # the tag's code
    start: str  # HEAD before
    refs: dict[str, str]  # of ours, before
    before: list[dict[str, Any]]  # the steps that were popped before
    changes: str  # a patch: what was in the files and not committed
    tip: str  # HEAD as it was left
    wanted: list[Step] = field(default_factory=list)  # are still to be put on
    popped: list[Step] = field(default_factory=list)  # stay off then
    done: list[PatchState] = field(default_factory=list)
    stopped: PatchState | None = None  # the first of `wanted`
    notes: list[str] = field(default_factory=list)  # why it needs a person
    laid: list[str] = field(default_factory=list)  # files of it that were put into the checkout

    @property
    def what(self) -> str:
        return f"`lmsbuild {self.command}`"

    @property
    def title(self) -> str:
        return f"arranging the patches of {self.label}"

    @property
    def content(self) -> Content:
        return note(SCHEMA, dataclasses.asdict(self))


def under_way(user: Repository) -> Arranging | None:
    """The arrangement that stopped at a patch that needs a person. Raises UnfinishedError."""
    return noted(place(user), SCHEMA, _built)


def _built(value: dict[str, Any]) -> Arranging:
    for name in ("wanted", "popped"):
        value[name] = steps(value[name])
    steps(value["before"])
    value["done"] = [PatchState(**each) for each in value["done"]]
    value["stopped"] = PatchState(**value["stopped"])
    if not value["wanted"]:
        raise ValueError("it does not say which patch needs a person")
    check_ids(*(value[name] for name in ("base", "start", "tip")))
    check_refs(value["refs"])
    for path in value["laid"]:
        inner_path(path)
    return Arranging(**value)


def place(user: Repository) -> Path:
    return user.file(FILE)


def popped(user: Repository) -> list[Step]:
    """The patches that were popped, the next one first. Raises UnfinishedError."""
    return noted(user.file(POPPED), SCHEMA, lambda value: steps(value["steps"])) or []


def steps(values: Sequence[dict[str, Any]]) -> list[Step]:
    """Raises ValueError for what `put_popped` and the like did not write."""
    found = [Step(**each) for each in values]
    for step in found:
        inner_path(step.name)
        try:
            _ = step.patch.mail
        except ConfigError as error:
            raise ValueError(error.message) from error
    return found


def check_none_popped(user: Repository, what: str) -> None:
    """Raise TreeStateError, `what` being what cannot be done."""
    off = popped(user)
    if off:
        names = ", ".join(step.name for step in off[:3])
        raise TreeStateError(
            f"{what} because patches of {user.path} are popped ({names}); put them on with "
            "`lmsbuild push --all` first",
            popped=[step.name for step in off],
        )


def put_popped(transaction: CheckoutTransaction, off: Sequence[Step]) -> None:
    if off:
        content = note(SCHEMA, {"steps": [dataclasses.asdict(step) for step in off]})
        transaction.put_beside(POPPED, content)
    else:
        transaction.remove_beside(POPPED)


def restore(
    transaction: CheckoutTransaction, since: str, to: str, laid: Sequence[str], changes: str
) -> None:
    """Make the checkout, which has the commit `since` but for the files `laid`, have `to`, and
    `changes` in its files: not committed, as they were."""
    layout = Layout()
    if changes:
        patch = Step("changes", changes).patch
        shadow = transaction.shadow
        before = entries(shadow.repository, to, [change.path for change in patch.changes])
        with scratch(shadow.repository) as room:
            made = room.apply(room.tree(before), patch.diff.encode(errors="surrogateescape"))
            after = room.entries(made)
            bring(shadow, room, after.values())
        for change in patch.changes:
            entry = after.get(change.path, ABSENT)
            if change.path in before and entry != ABSENT:
                content = shadow.repository.blob(entry.blob)
                layout.files[change.path] = Content(content, int(entry.mode, 8))
            else:  # git knows of it only when it is staged
                layout.staged[change.path] = entry
    switch(transaction, since, to, laid, layout)
