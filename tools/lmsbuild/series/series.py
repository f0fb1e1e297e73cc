# SPDX-License-Identifier: Apache-2.0
"""A series: the runtime patches of a framework, then the hook patches of one tag.

Patches carry full blob ids (`index <pre>..<post>`), so which of them a tree already has is
read from the tree itself, without a state file and without guessing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from lmsbuild.base.errors import ConfigError, MismatchError, TreeStateError, UsageError
from lmsbuild.base.filenames import check_regular, inner_path, link_target
from lmsbuild.base.git import Repository, entries
from lmsbuild.base.hashing import sha256_bytes
from lmsbuild.base.project import Project
from lmsbuild.base.transaction import PROJECT_STATE, FileTransaction
from lmsbuild.series import binary
from lmsbuild.series.mail import Mail, parse, quoted
from lmsbuild.tags.frameworks import Target

NO_BLOB = "0" * 40
FILE_MODES = ("100644", "100755")
LINK_MODE = "120000"
_EMPTY = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # the blob of a file without content
_INDEX = re.compile(r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: (\d{6}))?$", re.MULTILINE)
_MODE = re.compile(r"^(?:new file|new|deleted file|old) mode (\d{6})$", re.MULTILINE)
# A series holds no renames, so both names are the same one.
_DIFF = re.compile(r"^diff --git a/(.+) b/\1$", re.MULTILINE)


@dataclass(frozen=True)
class FileChange:
    """One file of one patch; NO_BLOB stands for a file that is not there."""

    path: str
    before: str
    after: str
    mode: str = "100644"  # after the patch; before it for a file that goes
    mode_before: str = "100644"  # likewise the other way round

    @property
    def changes_mode(self) -> bool:
        return NO_BLOB not in (self.before, self.after) and self.mode != self.mode_before


@dataclass(frozen=True)
class Line:
    """One line of a hunk. `kind` is " ", "+", "-", or "\\" for the note of a missing line end."""

    kind: str
    text: str  # without its line end
    at: int  # line in the patch file, from 1
    source: int | None  # line in the file before the patch, from 1
    target: int | None  # line in the file after the patch, from 1


@dataclass(frozen=True, kw_only=True)
class Hunk:
    path: str
    number: int  # from 1, within its file
    source_start: int
    source_length: int
    target_start: int
    target_length: int
    section: str
    lines: tuple[Line, ...]

    @property
    def header(self) -> str:
        """As git writes it."""
        ranges = [
            f"{start}" if length == 1 else f"{start},{length}"
            for start, length in (
                (self.source_start, self.source_length),
                (self.target_start, self.target_length),
            )
        ]
        return f"@@ -{ranges[0]} +{ranges[1]} @@ {self.section}".rstrip()

    def texts(self, *kinds: str) -> list[str]:
        return [line.text for line in self.lines if line.kind in kinds]


@dataclass(frozen=True)
class Patch:
    path: Path
    content: bytes | None = None  # when it is not, or not yet, what the file has

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @cached_property
    def data(self) -> bytes:
        if self.content is not None:
            return self.content
        try:
            check_regular(self.path)
        except ValueError as error:
            raise ConfigError(
                f"{self.name} cannot be used because {error}; remove it, or put the patch there"
            ) from error
        return self.path.read_bytes()

    @cached_property
    def text(self) -> str:
        return self.data.decode("utf-8", errors="surrogateescape")

    @cached_property
    def sha256(self) -> str:
        return sha256_bytes(self.data)

    @cached_property
    def mail(self) -> Mail:
        """Author, date and message. Raises ConfigError when the file is no mail."""
        try:
            return parse(self.text)
        except ValueError as error:
            raise ConfigError(
                f"{self.name} cannot be used because {error}; write it with `lmsbuild refresh`"
            ) from error

    @property
    def subject(self) -> str:
        return self.mail.subject

    @property
    def whereabouts(self) -> str:
        """As of its mail; "" for what cannot be read."""
        try:
            return self.mail.whereabouts
        except ConfigError:
            return ""

    @cached_property
    def diff_start(self) -> int:
        """Where in `text` the diff begins."""
        match = re.search(r"^diff --git ", self.text, re.MULTILINE)
        if match is None:
            raise ConfigError(f"{self.name} cannot be used because it changes no file; remove it")
        return match.start()

    @property
    def diff(self) -> str:
        return self.text[self.diff_start :]

    @cached_property
    def _parts(self) -> dict[str, tuple[FileChange, str]]:
        starts = [m.start() for m in re.finditer(r"^diff --git ", self.diff, re.MULTILINE)]
        found = {}
        for start, end in zip(starts, [*starts[1:], len(self.diff)], strict=True):
            part = self.diff[start:end]
            head = re.split(r"^@@ ", part, maxsplit=1, flags=re.MULTILINE)[0]
            names = _DIFF.match(part)
            ids = _INDEX.search(head)
            if names is None or ids is None:
                reason = "no full blob ids" if names else "two names (a rename?) or a quoted one"
                if "\r\n" in part:
                    reason = "CRLF at its end, which no patch of a series has"
                raise ConfigError(
                    f"{self.name} cannot be used because {part.splitlines()[0]!r} has {reason}; "
                    "take it into a checkout with `lmsbuild import` or `git am`, and write it with "
                    "`lmsbuild refresh`"
                )
            try:
                inner_path(names[1])
            except ValueError as error:
                raise ConfigError(
                    f"{self.name} cannot be used because the path {error}; remove that file from "
                    "the patch"
                ) from error
            modes = [ids[3]] if ids[3] else _MODE.findall(head)
            odd = next((m for m in modes if m not in (*FILE_MODES, LINK_MODE)), None)
            if odd or len({mode == LINK_MODE for mode in modes}) > 1:
                raise ConfigError(
                    f"{self.name} cannot be used because it makes {names[1]} something else than "
                    f"a plain file (mode {odd or LINK_MODE}); have it add plain files, and links "
                    "by patches of their own"
                )
            modes = modes or ["100644"]
            change = FileChange(names[1], ids[1], ids[2], modes[-1], modes[0])
            if change.mode == LINK_MODE and change.after != NO_BLOB:
                self._check_link(change, part)
            if change.path in found:
                raise ConfigError(
                    f"{self.name} cannot be used because it has {change.path} twice; take it into "
                    "a checkout with `lmsbuild import` or `git am`, and write it with `lmsbuild "
                    "refresh`"
                )
            found[change.path] = change, part
        return found

    def _check_link(self, change: FileChange, part: str) -> None:
        lines = part.rstrip("\n").partition("\n@@ ")[2].split("\n")[1:]
        target = "\n".join(line[1:] for line in lines if line.startswith("+"))
        try:
            if not lines or not lines[-1].startswith("\\"):
                raise ValueError(f"{target!r} ends with a line end")
            link_target(change.path, target)
        except ValueError as error:
            raise ConfigError(
                f"{self.name} cannot be used because it makes {change.path} something else than a "
                f"plain file: a link, and {error}; have links lead to files of the tree"
            ) from error

    @property
    def changes(self) -> list[FileChange]:
        """Every file the patch touches. Raises ConfigError for a patch without full blob ids."""
        return [change for change, _ in self._parts.values()]

    def part(self, path: str) -> str:
        """The diff of one file."""
        return self._parts[path][1]

    @cached_property
    def hunks(self) -> list[Hunk]:
        """Every hunk, in order. Raises ConfigError when a hunk is not as long as it says."""
        parts = tuple((path, part) for path, (_, part) in self._parts.items())
        try:
            return list(_hunks(parts, self.text.count("\n", 0, self.diff_start)))
        except UnidiffParseError as error:
            raise ConfigError(
                f"{self.name} cannot be used because its hunks do not add up "
                f"({str(error).strip()}); write it with `lmsbuild refresh`"
            ) from error

    def binary(self, path: str) -> tuple[bytes, bytes] | None:
        """A binary file before and after, None for a text. Raises ConfigError for a damaged one."""
        part = self.part(path)
        if f"\n{binary.MARK}" not in part:
            return None
        try:
            return binary.read(part)
        except ValueError as error:
            raise ConfigError(
                f"{self.name} cannot be used because the diff of {path} cannot be read: {error}; "
                "write it with `lmsbuild refresh`"
            ) from error

    def hunks_of(self, path: str) -> list[Hunk]:
        return [hunk for hunk in self.hunks if hunk.path == path]

    def check(self) -> None:
        """Raise ConfigError for a file that is damaged, as far as it alone can tell."""
        _ = self.mail
        whole = {hunk.path for hunk in self.hunks}
        why = "" if self.data.endswith(b"\n") else "its last line is cut off"
        for change in self.changes:
            part = self.part(change.path)
            names = re.findall(r"^(?:---|\+\+\+) (.*?)\t?$", part.split("\n@@ ")[0], re.MULTILINE)
            if set(names) - {f"a/{change.path}", f"b/{change.path}", "/dev/null"}:
                why = f"the diff of {change.path} has the names {', '.join(map(repr, names))}"
            ids = {change.before, change.after}
            bare = len(ids) == 1 or ids == {NO_BLOB, _EMPTY} or "\nGIT binary patch\n" in part
            if change.path not in whole and not bare:
                why = f"the diff of {change.path} has no hunks"
        if why:
            raise ConfigError(
                f"{self.name} cannot be used because {why}; write it with `lmsbuild refresh`"
            )


@dataclass(frozen=True)
class Series:
    patches: list[Patch]

    def check(self) -> None:
        """Raise ConfigError for a file that is damaged, as far as it alone can tell."""
        for patch in self.patches:
            patch.check()

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

    def modes(self, count: int | None = None) -> dict[str, str]:
        """The modes after the first `count` patches (all by default) of the files whose mode some
        patch changes; "" for a file that is not there."""
        told = {c.path for patch in self.patches for c in patch.changes if c.changes_mode}
        count = len(self.patches) if count is None else count
        state: dict[str, str] = {}
        for number, patch in enumerate(self.patches):
            for change in patch.changes:
                if change.path in told and number < count:
                    state[change.path] = change.mode if change.after != NO_BLOB else ""
                elif change.path in told:
                    before = change.mode_before if change.before != NO_BLOB else ""
                    state.setdefault(change.path, before)
        return state

    def applied(self, repository: Repository, revision: str = "HEAD") -> int:
        """How many of the patches `revision` has.

        Raises TreeStateError when it has no prefix of the series: other code, or another
        version of the series.
        """
        paths = list(self.before)
        found = entries(repository, revision, paths)
        tree = {path: found[path].blob if path in found else NO_BLOB for path in paths}
        nearest: list[str] = paths
        expected = self.before
        for count in range(len(self.patches), -1, -1):
            state, modes = self.after(count), self.modes(count)
            differing = [
                path
                for path in paths
                if state[path] != tree[path]
                or modes.get(path, "")
                != (found[path].mode if path in found and path in modes else "")
            ]
            if not differing:
                return count
            if len(differing) < len(nearest):
                nearest, expected = differing, state
        wrong = nearest[0]
        why = f"its blob is {tree[wrong]}, not {expected[wrong]}"
        if tree[wrong] == expected[wrong]:
            why = f"its mode is {found[wrong].mode}, not {self.modes(0)[wrong]}"
        raise TreeStateError(
            f"{wrong} in {repository.path} is neither as upstream has it nor as the series leaves "
            f"it because {why}; run `lmsbuild refresh` "
            "if its commits are a change of the series, else use a checkout of the tag itself",
            file=wrong,
        )


@functools.lru_cache(maxsize=16)  # tags of a framework share the longest patch
def _hunks(parts: tuple[tuple[str, str], ...], above: int) -> tuple[Hunk, ...]:
    """Those of the diffs of files, as path and text, that have `above` lines before them."""
    found: list[Hunk] = []
    for path, part in parts:
        found += _hunks_of_file(path, part, above)
        above += part.count("\n")
    return tuple(found)


def _hunks_of_file(path: str, part: str, above: int) -> Iterator[Hunk]:
    """Without its first lines: only who knows that both names are one can tell them apart in
    `a/b b/c b/b b/c`."""
    names = re.search("^--- ", part, re.MULTILINE)
    if names is None:
        return
    above += part.count("\n", 0, names.start())
    for file in PatchSet(part[names.start() :]):
        for number, hunk in enumerate(file, 1):
            yield Hunk(
                path=path,
                number=number,
                source_start=hunk.source_start,
                source_length=hunk.source_length,
                target_start=hunk.target_start,
                target_length=hunk.target_length,
                section=hunk.section_header,
                lines=tuple(
                    Line(
                        line.line_type,
                        line.value.removesuffix("\n"),
                        (line.diff_line_no or 0) + above,
                        line.source_line_no,
                        line.target_line_no,
                    )
                    for line in hunk
                ),
            )


def patch_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.patch"))


def check_folders(target: Target, what: str) -> None:
    """Raise UsageError, `what` being what cannot be done, unless the folders that patches are
    written to are the project's own: a link leads anywhere."""
    own = target.tag_patches
    for folder in (own.parent, target.runtime_patches, own):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UsageError(
                f"{what} because {folder}, where it is written down, is no folder; remove it"
            )


def series_of(target: Target, *, whole: bool = True) -> Series:
    """The series of a tag. Raises ConfigError when there is none and, if it is to be `whole`, when
    files of it are missing, and as check_settled."""
    if whole:
        check_settled(target.project)
    if not target.patches:
        raise ConfigError(
            f"{target.label} cannot be patched because {target.tag_patches} has no patches; "
            "write them with `lmsbuild refresh`"
        )
    if whole:
        _check_numbers(target)
    return Series([Patch(path) for path in target.patches])


def check_settled(project: Project) -> None:
    """Raise UnfinishedError where a command that writes patches was stopped in the middle of that,
    BusyError where one is: they are neither the old series nor the new one."""
    FileTransaction.check_none_unfinished(project.root, project.root / PROJECT_STATE)


def missing(target: Target) -> list[str]:
    """What files of the series are missing, as far as the numbers of the others tell."""
    problems = []
    for folder, least in ((target.runtime_patches, 1), (target.tag_patches, 0)):
        numbers = [path.name.partition("-")[0] for path in patch_files(folder)]
        there = {int(number) for number in numbers if number.isdecimal()}
        last = max(there, default=least)
        lost = next((n for n in range(1, last + 1) if n not in there), None)
        if lost is not None:
            problems.append(
                f"the series of {target.label} is not whole because patch {lost:04} of {folder} is "
                "missing; put the file back, as `git restore` does (to take a patch out there is "
                "`lmsbuild drop`)"
            )
    return problems


def _check_numbers(target: Target) -> None:
    gaps = missing(target)
    if gaps:
        raise ConfigError(gaps[0])


def check_whole(target: Target, series: Series) -> None:
    """Raise ConfigError where a patch file is missing. That the last one is no number tells, but a
    file of upstream's that is recorded and that no patch touches."""
    _check_numbers(target)
    lost = sorted(target.tag.preimage.keys() - series.before.keys())
    if lost:
        raise ConfigError(
            f"the series of {target.label} is not whole because no patch of it touches {lost[0]}, "
            f"which `preimage` of {target.file} records; put the patch back, as `git restore` "
            "does, or take the entry out"
        )


def export(target: Target) -> bytes:
    """The whole series as one mail file for `git am`, which needs no option for it."""
    patches = (patch.data for patch in series_of(target).patches)
    return b"".join(quoted(data) if b"\r\n" in data else data for data in patches)


def export_name(target: Target) -> str:
    return f"{target.framework_name}_{target.tag_name}_large_model_support.patch"


def check_preimage(target: Target, repository: Repository, revision: str, what: str) -> None:
    """Raise MismatchError unless every recorded file is in `revision` as recorded."""
    recorded = target.tag.preimage
    there = entries(repository, revision, list(recorded))
    found = {path: entry.blob for path, entry in there.items()}
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
