# SPDX-License-Identifier: Apache-2.0
"""A bare repository of our own over another one's objects.

Nothing of the other repository but its objects takes part: neither its configuration,
attributes, drivers, hooks, replace refs and mailmap, nor its index and work tree. So a diff made
here depends on the two trees alone, and nothing done here can change the other repository.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.base.errors import GitError
from lmsbuild.base.git import Entry, Raw, Repository, changed, entries, git

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
class Scratch:
    repository: Repository

    def add_blob(self, content: bytes) -> str:
        return self.repository.add_blob(content)

    def tree(self, entries: Mapping[str, Entry]) -> str:
        """A tree of exactly these files. Their blobs need not be there."""
        return self._index(entries).write_tree().hexsha

    def changed(self, before: str, after: str) -> list[Raw]:
        """The paths in which two trees differ, in git's order."""
        return changed(self.repository, before, after)

    def diff(self, before: str, after: str, paths: Sequence[str] | None = None) -> bytes:
        """The change between two trees as a patch, the same bytes everywhere."""
        if paths is not None and not paths:
            return b""
        return self.repository.git.run(
            "-c", "core.quotePath=false", "--literal-pathspecs",
            "diff-tree", *DIFF_OPTIONS, before, after, "--", *(paths or ()),
        ).stdout  # fmt: skip

    def apply(self, tree: str, patch: bytes) -> str:
        """The tree with a patch applied by git's own engine. Raises GitError."""
        return self.applied(tree, patch)[0]

    def applied(self, tree: str, patch: bytes, *options: str) -> tuple[str, str]:
        """The same, and what git says with these `options`."""
        self.stand_on(tree)
        words = ("apply", "--cached", "--whitespace=nowarn", *options, "-")
        done = self.repository.git.run(*words, stdin=patch)
        try:
            made = git.IndexFile(self.repository).write_tree().hexsha
        except UnicodeDecodeError as error:
            text = "fatal: it makes a file whose name is not UTF-8"
            raise GitError(words, text, self.repository.path) from error
        return made, done.stderr.decode(errors="replace")

    def stand_on(self, tree: str) -> None:
        """Make `tree` the index."""
        index = self._index(self.entries(tree))
        # A damaged patch makes some versions of git abort, and then they leave their lock.
        Path(f"{index.path}.lock").unlink(missing_ok=True)
        index.write()

    def entries(self, tree: str, paths: Sequence[str] | None = None) -> dict[str, Entry]:
        return entries(self.repository, tree, paths)

    def _index(self, entries: Mapping[str, Entry]) -> git.IndexFile:
        index = git.IndexFile(self.repository)
        index.entries = {
            (path, 0): git.IndexEntry((int(e.mode, 8), bytes.fromhex(e.blob), 0, path))
            for path, e in entries.items()
        }
        return index


def create(folder: Path, *objects: Repository) -> Repository:
    """Make the empty folder a bare repository that reads the objects of `objects`."""
    made = Repository.create(folder)
    with (folder / "config").open("a", encoding="utf-8") as config:
        config.write("[core]\n\tfsync = none\n")  # it does not outlive this process
    if objects:
        made.borrow(*(each.file("objects") for each in objects))
    return made


@contextmanager
def scratch(*objects: Repository) -> Iterator[Scratch]:
    """A scratch repository that reads the objects of `objects`; gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="lmsbuild-") as name,
        create(Path(name), *objects) as repository,
    ):
        yield Scratch(repository)
