# SPDX-License-Identifier: Apache-2.0
"""A checkout switched to another commit, with a patch laid out in it that needs a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lmsbuild.base.git import ABSENT, Entry, Raw, changed, entries
from lmsbuild.base.transaction import Content
from lmsbuild.checkout.shadow import Shadow
from lmsbuild.checkout.switch import CheckoutTransaction, check_unchanged
from lmsbuild.series.merge import Versions
from lmsbuild.series.scratch import Scratch
from lmsbuild.series.series import NO_BLOB, FileChange
from lmsbuild.series.standing import FileStanding, Standing


@dataclass
class Layout:
    """A patch that needs a person, as the checkout is to have it: what stands is staged, a file in
    conflict has both sides in it, and the index their three versions, as after a merge of git's."""

    staged: dict[str, Entry] = field(default_factory=dict)
    files: dict[str, Content] = field(default_factory=dict)
    sides: dict[str, list[Entry | None]] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        return list(dict.fromkeys([*self.staged, *self.files, *self.sides]))


def lay_out(shadow: Shadow, versions: Versions, standing: Standing) -> Layout:
    layout = Layout()
    changes = {change.path: change for change in standing.patch.changes}
    made = [file.after for file in standing.files if file.after is not None]
    bring(shadow, versions.room, made)
    for file in standing.files:
        if file.obstacle:
            continue  # what is there stays; only a person can say where this goes
        if file.after is not None:
            layout.staged[file.at] = file.after
        else:
            _lay_out_file(shadow, versions, file, changes[file.path], layout)
    return layout


def _lay_out_file(
    shadow: Shadow, versions: Versions, file: FileStanding, change: FileChange, layout: Layout
) -> None:
    def version(content: bytes | None) -> Entry | None:
        return None if content is None else Entry(mode, shadow.repository.add_blob(content))

    ours = file.before
    mode = ours.mode if ours else change.mode
    base = None if change.before == NO_BLOB else version(versions.content(change.before))
    theirs = None if change.after == NO_BLOB else version(versions.content(change.after))
    if file.merged is not None:
        layout.files[file.at] = Content(file.merged.text, int(mode, 8))
    elif ours is None and theirs is not None:
        # As git lays out a change of a file that the other side removed.
        layout.files[file.at] = Content(shadow.repository.blob(theirs.blob), int(mode, 8))
    if base or theirs:
        layout.sides[file.at] = [base, ours, theirs]


def switch(
    transaction: CheckoutTransaction, since: str, to: str, laid: Sequence[str], layout: Layout
) -> None:
    """Make the checkout, which has the commit `since` but for the files `laid`, have `to` and the
    `layout`."""
    shadow = transaction.shadow
    changes = {raw.path: raw for raw in changed(shadow.repository, since, to)}
    others = list(dict.fromkeys([*laid, *layout.paths]))
    before = entries(shadow.repository, since, others)
    after = {**entries(shadow.repository, to, others), **layout.staged}
    for path in others:
        changes[path] = Raw(path, before.get(path, ABSENT), after.get(path, ABSENT))
    checked = [raw for raw in changes.values() if raw.path not in laid and raw.before != raw.after]
    contents = shadow.contents({p: r.after for p, r in changes.items() if r.after != ABSENT})
    transaction.switch_to(checked, contents)
    for path in laid:
        entry = changes[path].after
        if entry == ABSENT:
            transaction.remove(path)
        else:
            transaction.put(path, Content(contents[path], int(entry.mode, 8)))
    for path, content in layout.files.items():
        if path not in laid:
            transaction.expect(path, check_unchanged(transaction.user, changes[path]))
        transaction.put(path, content)
    transaction.put_index(list(changes.values()), layout.sides)


def bring(shadow: Shadow, room: Scratch, made: Iterable[Entry]) -> None:
    """What the scratch repository made, for commits of the shadow's."""
    for entry in made:
        if entry != ABSENT:
            shadow.repository.add_blob(room.repository.blob(entry.blob))
