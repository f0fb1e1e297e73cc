# SPDX-License-Identifier: Apache-2.0
"""A bare repository of our own over another one's objects.

Nothing of the other repository but its objects takes part: neither its configuration,
attributes, drivers, hooks, replace refs and mailmap, nor its index and work tree. So a diff made
here depends on the two trees alone, and nothing done here can change the other repository.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.base.git import Git

DIFF_OPTIONS = (
    "-p",
    "-r",
    "-U3",
    "--full-index",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--no-indent-heuristic",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-relative",
    "--ignore-submodules=none",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


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


@dataclass(frozen=True)
class Scratch:
    git: Git

    def add_blob(self, content: bytes) -> str:
        return self.git.run("hash-object", "-w", "--stdin", stdin=content).stdout.decode().strip()

    def tree(self, entries: Mapping[str, Entry]) -> str:
        """A tree of exactly these files. Their blobs need not be there."""
        self.git.run("read-tree", "--empty")
        lines = (f"{e.mode} {e.blob}\t{path}\0" for path, e in entries.items())
        listing = "".join(lines).encode(errors="surrogateescape")
        self.git.run("update-index", "-z", "--index-info", stdin=listing)
        return self.git.text("write-tree", "--missing-ok")

    def changed(self, before: str, after: str) -> list[Raw]:
        """The paths in which two trees differ, in git's order."""
        return changed(self.git, before, after)

    def diff(self, before: str, after: str, paths: Sequence[str] | None = None) -> bytes:
        """The change between two trees as a patch, the same bytes everywhere."""
        if paths is not None and not paths:
            return b""
        return self.git.run(
            "-c", "core.quotePath=false", "--literal-pathspecs",
            "diff-tree", *DIFF_OPTIONS, before, after, "--", *(paths or ()),
        ).stdout  # fmt: skip

    def apply(self, tree: str, patch: bytes) -> str:
        """The tree with a patch applied by git's own engine. Raises GitError."""
        # A damaged patch makes some versions of git abort, and then they leave their lock.
        (self.git.path / "index.lock").unlink(missing_ok=True)
        self.git.run("read-tree", tree)
        self.git.run("apply", "--cached", "--whitespace=nowarn", "-", stdin=patch)
        return self.git.text("write-tree", "--missing-ok")

    def entries(self, tree: str, paths: Sequence[str] | None = None) -> dict[str, Entry]:
        return entries(self.git, tree, paths)


def create(folder: Path, objects: Git | None) -> None:
    """Make the empty folder a bare repository that reads the objects of `objects`."""
    Git(folder).run("init", "--bare", "-q", "--template=", ".")
    with (folder / "config").open("a", encoding="utf-8") as config:
        config.write("[core]\n\tfsync = none\n")  # it does not outlive this process
    if objects is not None:
        store = Path(objects.text("rev-parse", "--git-path", "objects"))
        info = folder / "objects" / "info"
        info.mkdir(exist_ok=True)
        (info / "alternates").write_bytes(os.fsencode((objects.path / store).resolve()) + b"\n")


@contextmanager
def scratch(objects: Git | None = None) -> Iterator[Scratch]:
    """A scratch repository that reads the objects of `objects`; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as name:
        create(Path(name), objects)
        # The environment wins over whatever git would find by looking around.
        yield Scratch(Git(Path(name), {"GIT_DIR": name}))


def entries(git: Git, revision: str, paths: Sequence[str] | None = None) -> dict[str, Entry]:
    """Mode and blob of the files of a revision; all of them, or those of `paths` that exist."""
    if paths is not None and not paths:
        return {}
    listing = git.run(
        "--no-replace-objects", "--literal-pathspecs",
        "ls-tree", "-z", "-r", "--full-tree", revision, "--", *(paths or ()),
    ).stdout.decode(errors="surrogateescape")  # fmt: skip
    found = {}
    for line in listing.split("\0"):
        if line:
            meta, path = line.split("\t", 1)
            mode, _, blob = meta.split()
            found[path] = Entry(mode, blob)
    return found


def changed(git: Git, before: str, after: str) -> list[Raw]:
    """The paths in which two trees differ, read from the trees alone."""
    output = git.run(
        "--no-replace-objects", "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev",
        "--no-relative", "--ignore-submodules=none", before, after,
    ).stdout.decode(errors="surrogateescape")  # fmt: skip
    fields = [field for field in output.split("\0") if field]
    found = []
    for meta, path in zip(fields[::2], fields[1::2], strict=True):
        match = re.match(r":(\d{6}) (\d{6}) ([0-9a-f]+) ([0-9a-f]+) ", meta)
        assert match is not None, meta
        found.append(Raw(path, Entry(match[1], match[3]), Entry(match[2], match[4])))
    return found
