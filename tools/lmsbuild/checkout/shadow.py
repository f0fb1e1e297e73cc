# SPDX-License-Identifier: Apache-2.0
"""A repository of our own that stands beside a checkout while a series is put on it.

It reads the checkout's objects and nothing else of it: no setting, attribute, filter, hook or ref
of the user's repository has a part in what happens here. `git am` runs in a work tree of its own;
the checkout's index and files are looked at as bytes, without conversion.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmsbuild.base.git import Git
from lmsbuild.series.format import fetch_blobs
from lmsbuild.series.scratch import Entry, create, entries

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

    def __init__(self, user: Git, folder: Path) -> None:
        self.user = user
        self.repository = folder / "git"
        self.tree = folder / "tree"
        for place in (self.repository, self.tree):
            place.mkdir(parents=True)
        create(self.repository, user)
        with (self.repository / "config").open("a", encoding="utf-8") as config:
            config.write(_CONFIG)
        (self.repository / "info").mkdir(exist_ok=True)
        (self.repository / "info" / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")
        shallow = git_path(user, "shallow")
        if shallow.is_file():
            shutil.copy2(shallow, self.repository)
        for shared in git_path(user, "index").parent.glob("sharedindex.*"):
            (self.repository / shared.name).symlink_to(shared)
        self.git = self._with(folder / "index", self.tree)

    def _with(self, index: Path, tree: Path) -> Git:
        return Git(
            tree,
            {
                "GIT_DIR": str(self.repository),
                "GIT_WORK_TREE": str(tree),
                "GIT_INDEX_FILE": str(index),
                "GIT_NO_LAZY_FETCH": "1",
            },
            keep=self.user.keep,
        )

    def over(self, index: Path) -> Git:
        """git on the user's files, with a copy of the user's index."""
        return self._with(index, self.user.path)

    def stand_on(self, commit: str) -> None:
        """Make `commit` the HEAD and the index of the work tree of our own, which stays empty:
        git takes a file out of the index when a patch needs it."""
        # By the user's repository: only it can fetch the trees that a treeless clone lacks.
        index = self.git.extra_env["GIT_INDEX_FILE"]
        Git(self.user.path, {**self.user.extra_env, "GIT_INDEX_FILE": index}, as_user=True).run(
            "read-tree", commit
        )
        self.git.run("update-ref", "--no-deref", "HEAD", commit)
        names = self.git.run("ls-files", "-z").stdout
        self.git.run("update-index", "-z", "--skip-worktree", "--stdin", stdin=names)

    def contents(self, entries: Mapping[str, Entry]) -> dict[str, bytes]:
        """The bytes of the blobs of `entries`."""
        ids = list(dict.fromkeys(entry.blob for entry in entries.values()))
        request = "".join(f"{blob}\n" for blob in ids).encode()
        answer = self.git.run("cat-file", "--batch", stdin=request).stdout
        found: dict[str, bytes] = {}
        start = 0
        for blob in ids:
            end = answer.index(b"\n", start)
            size = int(answer[start:end].split()[2])
            found[blob] = answer[end + 1 : end + 1 + size]
            start = end + 1 + size + 1
        return {path: found[entry.blob] for path, entry in entries.items()}

    def hand_over(self) -> None:
        """Copy the objects that were made here into the user's repository."""
        objects = self.repository / "objects"
        ids = [file.parent.name + file.name for file in objects.glob("??/*")]
        request = "".join(f"{name}\n" for name in ids).encode()
        pack = self.git.run("pack-objects", "-q", "--stdout", stdin=request).stdout
        self.user.run("unpack-objects", "-q", stdin=pack)


def git_path(git: Git, name: str) -> Path:
    """Where `git` keeps `name`; not the same folder in a linked worktree."""
    found = git.run("rev-parse", "--git-path", name).stdout
    return git.path / os.fsdecode(found.rstrip(b"\n"))


def bring_blobs(user: Git, commit: str, paths: Sequence[str]) -> None:
    """Have the blobs of `paths` in `commit`. Raises TreeStateError when they cannot be had."""
    found = entries(user, commit, paths)
    asking = Git(user.path, user.extra_env, as_user=True)  # the network is reached the user's way
    if user.ok("config", "--get-regexp", r"^remote\..*\.promisor$"):
        # A diff of contents fetches all that a partial clone lacks at once.
        empty = user.run("hash-object", "-t", "tree", "--stdin", stdin=b"").stdout.decode().strip()
        asking.run(
            "diff-tree", "-r", "--numstat", "--no-renames", empty, commit, "--", *found, check=False
        )
    fetch_blobs(asking, found)
