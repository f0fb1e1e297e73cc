# SPDX-License-Identifier: Apache-2.0
"""A series as commits without upstream's code: what the patches do not show of a file stands there
as lines of our own, away from every change. So series are compared wherever the code is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmsbuild.base.errors import ConfigError
from lmsbuild.base.git import Entry
from lmsbuild.series.mail import Mail
from lmsbuild.series.scratch import Scratch
from lmsbuild.series.series import NO_BLOB, FileChange, Hunk, Patch


@dataclass(eq=False)
class _Line:
    """A line of a file, the same one in every version that has it."""

    number: int
    text: str | None = None  # None until a patch shows it
    end: str = "\n"

    def __str__(self) -> str:
        return f"~{self.number}~\n" if self.text is None else self.text + self.end


@dataclass
class _Version:
    mode: str
    lines: list[_Line]
    content: bytes | None = None  # of a binary file

    @property
    def data(self) -> bytes:
        if self.content is not None:
            return self.content
        return "".join(map(str, self.lines)).encode(errors="surrogateescape")


@dataclass
class _File:
    """The versions of a file: number of the patch that leaves it so (0: the tag's) -> version, None
    for no file."""

    versions: dict[int, _Version | None] = field(default_factory=dict)
    made: int = 0  # lines of our own

    def after(self, number: int) -> _Version | None:
        return self.versions[max(each for each in self.versions if each <= number)]

    def take(self, number: int, patch: Patch, change: FileChange) -> None:
        sides = patch.binary(change.path)
        if not self.versions:
            content = sides[0] if sides else None
            there = change.before != NO_BLOB
            self.versions[0] = _Version(change.mode_before, [], content) if there else None
        before = self.after(number - 1)
        after = _Version(change.mode, list(before.lines) if before else [])
        if sides:
            after.content = sides[1]
        for hunk in patch.hunks_of(change.path):
            self._take_hunk(after.lines, patch, hunk)
        self.versions[number] = None if change.after == NO_BLOB else after

    def _take_hunk(self, lines: list[_Line], patch: Patch, hunk: Hunk) -> None:
        at = hunk.target_start - (hunk.target_length > 0)
        self._reach(lines, at + hunk.source_length)
        last = _Line(0)
        for line in hunk.lines:
            if line.kind == "\\":
                last.end = ""
            elif line.kind == "+":
                last = _Line(0, line.text)
                lines.insert(at, last)
                at += 1
            else:
                last = lines[at]
                if last.text not in (None, line.text):
                    raise ConfigError(
                        f"{patch.name} cannot be compared because {hunk.path} is not as the patch "
                        f"before leaves it ({line.text!r}, not {last.text!r}); write it anew with "
                        "`lmsbuild refresh`"
                    )
                last.text = line.text
                if line.kind == "-":
                    del lines[at]
                else:
                    at += 1

    def _reach(self, lines: list[_Line], length: int) -> None:
        """Have so many lines: what lies further down than any patch looked is in all versions."""
        versions = [version.lines for version in self.versions.values() if version]
        for _ in range(length - len(lines)):
            self.made += 1
            line = _Line(self.made)
            for each in (lines, *versions):
                each.append(line)


def sketch(room: Scratch, patches: Sequence[Patch]) -> list[str]:
    """Commits of the patches, each on the one before: that of the tag's code first. Raises
    ConfigError for patches that do not follow from each other."""
    files: dict[str, _File] = {}
    for number, patch in enumerate(patches, 1):
        for change in patch.changes:
            files.setdefault(change.path, _File()).take(number, patch, change)
    root = Mail("A", "a@b", "Thu, 1 Jan 2026 00:00:00 +0000", "The tag's code")
    commits: list[str] = []
    for number, mail in enumerate([root, *(patch.mail for patch in patches)]):
        there = {path: file.after(number) for path, file in files.items()}
        tree = room.tree(
            {
                path: Entry(version.mode, room.add_blob(version.data))
                for path, version in there.items()
                if version
            }
        )
        variables = {"GIT_AUTHOR_NAME": mail.author, "GIT_AUTHOR_EMAIL": mail.email}
        git = room.repository.variant(variables=variables).git
        parent = ("-p", commits[-1]) if commits else ()
        text = f"{mail.message}\n".encode(errors="surrogateescape")
        made = git.run("commit-tree", tree, *parent, stdin=text).stdout
        commits.append(made.decode().strip())
    return commits
