# SPDX-License-Identifier: Apache-2.0
"""Files of trees, and what differs between two trees: read from the objects alone, so that no
setting, attribute or index takes part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmsbuild.base.git.repository import NOTHING, Repository

_FOLDER, _SUBMODULE = 0o040000, 0o160000


@dataclass(frozen=True)
class Entry:
    """A file of a tree."""

    mode: str
    blob: str


@dataclass(frozen=True)
class Raw:
    """One changed path between two trees, without its content."""

    path: str
    before: Entry
    after: Entry


ABSENT = Entry("000000", NOTHING)


def entries(
    repository: Repository, revision: str, paths: Sequence[str] | None = None
) -> dict[str, Entry]:
    """The files of a revision; all of them, or those of `paths` that exist, in their order."""
    tree = repository.tree_id(revision)
    if paths is None:
        return dict(_files(repository, tree, ""))
    found = ((path, _file(repository, tree, path)) for path in paths)
    return {path: entry for path, entry in found if entry is not None}


def obstacles(repository: Repository, revision: str, paths: Sequence[str]) -> dict[str, str]:
    """Those of `paths` that can be no file of a revision, and why, in words."""
    tree = repository.tree_id(revision)
    found = ((path, _obstacle(repository, tree, path)) for path in paths)
    return {path: why for path, why in found if why}


def folder(repository: Repository, revision: str, path: str) -> dict[str, Entry]:
    """The files directly in a folder (without its path), none when there is no such folder."""
    tree: bytes | None = repository.tree_id(revision)
    for step in filter(None, path.split("/")):
        mode, name = repository.listing(tree).get(step, (0, None)) if tree else (0, None)
        tree = name if mode == _FOLDER else None
    if tree is None:
        return {}
    return {
        name: Entry(f"{mode:06o}", blob.hex())
        for name, (mode, blob) in repository.listing(tree).items()
        if mode != _FOLDER
    }


def changed(repository: Repository, before: str, after: str) -> list[Raw]:
    """The paths in which two trees differ, in git's order."""
    trees = repository.tree_id(before), repository.tree_id(after)
    return sorted(_differing(repository, *trees, ""), key=lambda raw: _bytes(raw.path))


def _bytes(path: str) -> bytes:
    return path.encode(errors="surrogateescape")


def _file(repository: Repository, tree: bytes, path: str) -> Entry | None:
    *folders, name = path.split("/")
    for step in folders:
        mode, found = repository.listing(tree).get(step, (0, b""))
        if mode != _FOLDER:
            return None
        tree = found
    mode, blob = repository.listing(tree).get(name, (0, b""))
    return None if mode in (0, _FOLDER) else Entry(f"{mode:06o}", blob.hex())


def _obstacle(repository: Repository, tree: bytes, path: str) -> str:
    *folders, name = path.split("/")
    for depth, step in enumerate(folders, start=1):
        mode, found = repository.listing(tree).get(step, (0, b""))
        if mode == 0:
            return ""
        if mode != _FOLDER:
            kind = "a submodule" if mode == _SUBMODULE else "no folder"
            return f"{'/'.join(folders[:depth])} is {kind} there"
        tree = found
    mode, _ = repository.listing(tree).get(name, (0, b""))
    kinds = {_FOLDER: "a folder", _SUBMODULE: "a submodule"}
    return f"{path} is {kinds[mode]} there" if mode in kinds else ""


def _files(repository: Repository, tree: bytes, prefix: str) -> Iterator[tuple[str, Entry]]:
    for name, (mode, found) in repository.listing(tree).items():
        if mode == _FOLDER:
            yield from _files(repository, found, f"{prefix}{name}/")
        else:
            yield prefix + name, Entry(f"{mode:06o}", found.hex())


def _differing(
    repository: Repository, before: bytes | None, after: bytes | None, prefix: str
) -> Iterator[Raw]:
    if before == after:
        return
    old, new = (
        repository.listing(tree) if tree else dict[str, tuple[int, bytes]]()
        for tree in (before, after)
    )
    for name in old.keys() | new.keys():
        one, other = old.get(name), new.get(name)
        if one == other:
            continue
        path = prefix + name
        yield from _differing(repository, _tree(one), _tree(other), f"{path}/")
        if _entry(one) != _entry(other):
            yield Raw(path, _entry(one), _entry(other))


def _tree(found: tuple[int, bytes] | None) -> bytes | None:
    return found[1] if found and found[0] == _FOLDER else None


def _entry(found: tuple[int, bytes] | None) -> Entry:
    if found is None or found[0] == _FOLDER:
        return ABSENT
    return Entry(f"{found[0]:06o}", found[1].hex())
