# SPDX-License-Identifier: Apache-2.0
"""A series: the runtime patches of a framework, then the hook patches of one tag.

Patches carry full blob ids (`index <pre>..<post>`), so which of them a tree already has is
read from the tree itself, without a state file and without guessing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from lmsbuild.errors import ConfigError, MismatchError, TreeStateError
from lmsbuild.frameworks import Target
from lmsbuild.git import Git
from lmsbuild.hashing import sha256_file

NO_BLOB = "0" * 40
_INDEX = re.compile(r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})", re.MULTILINE)
_DIFF = re.compile(r"^diff --git a/(.+) b/(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class FileChange:
    """One file of one patch; NO_BLOB stands for a file that is not there."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Patch:
    path: Path

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @cached_property
    def text(self) -> str:
        return self.path.read_bytes().decode("utf-8", errors="surrogateescape")

    @cached_property
    def sha256(self) -> str:
        return sha256_file(self.path)

    @cached_property
    def subject(self) -> str:
        match = re.search(r"^Subject: (?:\[PATCH\] )?(.*(?:\n[ \t].*)*)", self.text, re.MULTILINE)
        return re.sub(r"\n[ \t]+", " ", match[1]).strip() if match else self.path.stem

    @cached_property
    def changes(self) -> list[FileChange]:
        """Every file the patch touches. Raises ConfigError for a patch without full blob ids."""
        starts = [match.start() for match in _DIFF.finditer(self.text)]
        found = []
        for start, end in zip(starts, [*starts[1:], len(self.text)], strict=True):
            part = self.text[start:end]
            names = _DIFF.match(part)
            ids = _INDEX.search(part)
            if names is None or ids is None:
                raise ConfigError(
                    f"{self.name} cannot be used because {part.splitlines()[0]!r} has no full "
                    "blob ids; write it with `lmsbuild refresh` (or `git format-patch "
                    "--full-index`)"
                )
            found.append(FileChange(names[2], ids[1], ids[2]))
        if not found:
            raise ConfigError(f"{self.name} cannot be used because it changes no file; remove it")
        return found

    def hunk(self, path: str, number: int) -> str:
        """The header of the `number`th hunk (from 1) for `path`, or "" if there is none."""
        try:
            for file in PatchSet(self.text):
                if file.path == path and number <= len(file):
                    hunk = file[number - 1]
                    return (
                        f"@@ -{hunk.source_start},{hunk.source_length} "
                        f"+{hunk.target_start},{hunk.target_length} @@ {hunk.section_header}"
                    ).rstrip()
        except UnidiffParseError:
            pass
        return ""


@dataclass(frozen=True)
class Series:
    patches: list[Patch]

    @cached_property
    def before(self) -> dict[str, str]:
        """The blob of every touched file before the first patch that touches it."""
        first: dict[str, str] = {}
        for patch in self.patches:
            for change in patch.changes:
                first.setdefault(change.path, change.before)
        return first

    def after(self, count: int | None = None) -> dict[str, str]:
        """The blob of every touched file after the first `count` patches (all by default)."""
        state = dict(self.before)
        for patch in self.patches[: len(self.patches) if count is None else count]:
            for change in patch.changes:
                state[change.path] = change.after
        return state

    def applied(self, git: Git, revision: str = "HEAD") -> int:
        """How many of the patches `revision` has.

        Raises TreeStateError when it has no prefix of the series: other code, or another
        version of the series.
        """
        paths = list(self.before)
        blobs = git.blobs(revision, paths)
        tree = {path: blobs.get(path, NO_BLOB) for path in paths}
        nearest: list[str] = paths
        expected = self.before
        for count in range(len(self.patches), -1, -1):
            state = self.after(count)
            differing = [path for path in paths if state[path] != tree[path]]
            if not differing:
                return count
            if len(differing) < len(nearest):
                nearest, expected = differing, state
        wrong = nearest[0]
        raise TreeStateError(
            f"{wrong} in {git.path} is neither as upstream has it nor as the series leaves it "
            f"because its blob is {tree[wrong]}, not {expected[wrong]}; use a checkout of the "
            "tag itself (an older version of the series must be taken off first)",
            file=wrong,
        )


def patch_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.patch"))


def series_of(target: Target) -> Series:
    """The series of a tag. Raises ConfigError when there is none."""
    files = patch_files(target.runtime_patches) + patch_files(target.tag_patches)
    if not files:
        raise ConfigError(
            f"{target.label} cannot be patched because {target.tag_patches} has no patches; "
            "write them with `lmsbuild refresh`"
        )
    return Series([Patch(path) for path in files])


def export(target: Target) -> bytes:
    """The whole series as one mail file for `git am`."""
    return b"".join(patch.path.read_bytes() for patch in series_of(target).patches)


def export_name(target: Target) -> str:
    return f"{target.framework_name}_{target.tag_name}_large_model_support.patch"


def check_preimage(target: Target, git: Git, revision: str, what: str) -> None:
    """Raise MismatchError unless every recorded file is in `revision` as recorded."""
    recorded = target.tag.preimage
    found = git.blobs(revision, list(recorded))
    for path, blob in recorded.items():
        if found.get(path) != blob:
            raise MismatchError(
                f"{what} is not the source of {target.label} because {path} has blob "
                f"{found.get(path, 'none')}, not {blob}; use another source",
                file=path,
                found=found.get(path),
                recorded=blob,
            )


def names(patches: Sequence[Patch]) -> list[str]:
    return [patch.name for patch in patches]
