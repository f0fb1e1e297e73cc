# SPDX-License-Identifier: Apache-2.0
"""A repository of our own that stands beside a checkout while a series is put on it.

It reads the checkout's objects and nothing else of it: no setting, attribute, filter, hook or ref
of the user's repository has a part in what happens here. `git am` runs in a work tree of its own;
the checkout's index and files are looked at as bytes, without conversion.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmsbuild.base.git import Entry, Repository, entries
from lmsbuild.series.format import fetch_blobs
from lmsbuild.series.scratch import create

# Wins over every .gitattributes: bytes stay as they are.
_ATTRIBUTES = "* -text !eol -filter -ident !working-tree-encoding -crlf\n"
# An object that a partial clone lacks is one that exists; it is not fetched from here.
_CONFIG = """[core]
\trepositoryFormatVersion = 1
[extensions]
\tpartialClone = user
[remote "user"]
\tpromisor = true
\turl = /dev/null
"""


class Shadow:
    """`user` is the checkout; `folder` is empty and taken over."""

    def __init__(self, user: Repository, folder: Path) -> None:
        self.user = user
        self.folder = folder / "git"
        tree = folder / "tree"
        for place in (self.folder, tree):
            place.mkdir(parents=True)
        create(self.folder, user)
        with (self.folder / "config").open("a", encoding="utf-8") as config:
            config.write(_CONFIG)
        (self.folder / "info").mkdir(exist_ok=True)
        (self.folder / "info" / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")
        shallow = user.file("shallow")
        if shallow.is_file():
            shutil.copy2(shallow, self.folder)
        for shared in user.file("index").parent.glob("sharedindex.*"):
            (self.folder / shared.name).symlink_to(shared)
        self._index = folder / "index"
        self.repository = self._with(self._index, tree)

    def _with(self, index: Path, tree: Path) -> Repository:
        variables = {"GIT_INDEX_FILE": str(index), "GIT_NO_LAZY_FETCH": "1"}
        return Repository(self.folder, tree, variables=variables, keep=self.user.git.keep)

    def over(self, index: Path) -> Repository:
        """The user's files, with a copy of the user's index."""
        return self._with(index, self.user.path)

    def close(self) -> None:
        self.repository.close()

    def stand_on(self, commit: str) -> None:
        """Make `commit` the HEAD and the index of the work tree of our own, which stays empty:
        git takes a file out of the index when a patch needs it."""
        # By the user's repository: only it can fetch the trees that a treeless clone lacks.
        theirs = self.user.variant(as_user=True, variables={"GIT_INDEX_FILE": str(self._index)})
        theirs.git.run("read-tree", commit)
        git = self.repository.git
        git.run("update-ref", "--no-deref", "HEAD", commit)
        names = git.run("ls-files", "-z").stdout
        git.run("update-index", "-z", "--skip-worktree", "--stdin", stdin=names)

    def contents(self, entries: Mapping[str, Entry]) -> dict[str, bytes]:
        """The bytes of the blobs of `entries`."""
        return {path: self.repository.blob(entry.blob) for path, entry in entries.items()}

    def hand_over(self) -> None:
        """Copy the objects that were made here into the user's repository."""
        objects = self.folder / "objects"
        ids = [file.parent.name + file.name for file in objects.glob("??/*")]
        request = "".join(f"{name}\n" for name in ids).encode()
        pack = self.repository.git.run("pack-objects", "-q", "--stdout", stdin=request).stdout
        self.user.git.run("unpack-objects", "-q", stdin=pack)


def bring_blobs(user: Repository, commit: str, paths: Sequence[str]) -> None:
    """Have the blobs of `paths` in `commit`. Raises TreeStateError when they cannot be had."""
    found = entries(user, commit, paths)
    # The network is reached the user's way.
    with user.variant(as_user=True) as asking:
        if user.git.ok("config", "--get-regexp", r"^remote\..*\.promisor$"):
            # A diff of contents fetches all that a partial clone lacks at once.
            empty = user.git.run("hash-object", "-t", "tree", "--stdin", stdin=b"").stdout
            asking.git.run(
                "diff-tree", "-r", "--numstat", "--no-renames", empty.decode().strip(), commit,
                "--", *found, check=False,
            )  # fmt: skip
        fetch_blobs(asking, found)
