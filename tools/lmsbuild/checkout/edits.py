# SPDX-License-Identifier: Apache-2.0
"""What the commits of a checkout say: the hooks of a tag, and edits of runtime files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from lmsbuild.base.errors import ConfigError, TreeStateError
from lmsbuild.base.git import (
    NOTHING,
    Entry,
    Repository,
    changed,
    checkout_git,
    entries,
    folder,
)
from lmsbuild.base.refusals import Refusals
from lmsbuild.checkout import made
from lmsbuild.checkout.arranging import check_none_popped
from lmsbuild.checkout.checkout import check_clean, check_nothing_under_way, hold, is_framework
from lmsbuild.checkout.switch import looking, recorded
from lmsbuild.series.format import fetch_blobs, format_patches, mail_of
from lmsbuild.series.mail import Mail
from lmsbuild.series.series import FileChange, Patch, check_preimage, patch_files
from lmsbuild.tags.frameworks import Target
from lmsbuild.tags.runtimefiles import source_of

REFRESHED = "refreshed"  # the ref of HEAD when `refresh` last took its commits
_UNFINISHED = ("fixup! ", "squash! ", "amend! ")  # subjects of git's own
SEARCHED = 200  # commits looked at for the runtime commit


@dataclass(frozen=True)
class Line:
    """A line of commits on the tag's code: `base`..`tip`, all of them the series."""

    target: Target
    repository: Repository
    base: str
    tip: str

    def is_runtime(self, path: str) -> bool:
        """Does the file belong below lms/? Upstream's own files never do."""
        if source_of(self.target, path) is None:
            return False
        return not entries(self.repository, self.base, [path])

    @cached_property
    def hooks(self) -> dict[str, bytes]:
        """The hook patches: file name -> content. Runtime files are left out of them."""
        found = made.known(self.target.project, self.key, self.target.tag_patches)
        if found is not None:
            return found
        return format_patches(
            self.repository, self.base, self.tip, lambda path: not self.is_runtime(path)
        )

    @cached_property
    def key(self) -> str:
        """Of what is made of these commits."""
        layout = [entry.model_dump(mode="json") for entry in self.target.framework.layout]
        return made.key_of("hooks", self.base, self.tip, layout)

    @cached_property
    def runtime(self) -> dict[str, str]:
        """The runtime files at the tip: path -> blob id. Raises TreeStateError for odd modes."""
        found = {p: e for p, e in self._candidates().items() if self.is_runtime(p)}
        odd = next((path for path, entry in found.items() if entry.mode != "100644"), None)
        if odd:
            raise TreeStateError(
                f"{self.repository.path} cannot be refreshed from because {odd} is executable or a "
                "link, which a runtime file cannot be; commit it as an ordinary file"
            )
        return {path: entry.blob for path, entry in found.items()}

    def _candidates(self) -> dict[str, Entry]:
        """The files at the tip in the folders that the runtime's go to."""
        places = {PurePosixPath(entry.target) for entry in self.target.framework.layout}
        return {
            str(place / name): entry
            for place in sorted(places)
            for name, entry in folder(self.repository, self.tip, str(place)).items()
        }

    def runtime_in_commit(self, subject: str) -> dict[str, str] | None:
        """The runtime files as the runtime commit made them, if there is one of this subject."""
        for commit in self.repository.commits(self.base, self.tip):
            if mail_of(self.repository, commit).subject == subject:
                return Line(self.target, self.repository, self.base, commit).runtime
        return None

    def content(self, path: str) -> bytes:
        """A runtime file at the tip."""
        fetch_blobs(self.repository, entries(self.repository, self.tip, [path]))
        return self.repository.blob(self.runtime[path])

    def notes(self, runtime_subject: str) -> list[str]:
        """What becomes of commits that edit runtime files. Raises TreeStateError when the runtime
        commit itself has hooks."""
        told = []
        for commit in self.repository.commits(self.base, self.tip):
            paths = [raw.path for raw in changed(self.repository, f"{commit}~1", commit)]
            ours = [path for path in paths if self.is_runtime(path)]
            subject = mail_of(self.repository, commit).subject
            hooks = [path for path in paths if path not in ours]
            if subject == runtime_subject:
                if hooks:
                    raise TreeStateError(
                        f"{self.repository.path} cannot be refreshed from because its runtime "
                        f"commit {commit[:12]} also changes {hooks[0]}, a hook; move that into a "
                        "commit of its own (`git rebase -i`)"
                    )
            elif ours and hooks:
                told.append(
                    f"commit {commit[:12]} ({subject}) is split: {', '.join(ours)} into lms/, the "
                    "rest into its patch"
                )
            elif not paths:
                told.append(
                    f"commit {commit[:12]} ({subject}) changes nothing and becomes no patch"
                )
            elif ours:
                told.append(f"commit {commit[:12]} ({subject}) goes into lms/ and becomes no patch")
        return told

    def check_finished(self) -> None:
        """Raise TreeStateError for commits that are meant to become a part of another."""
        refusals = Refusals(TreeStateError)
        for commit in self.repository.commits(self.base, self.tip):
            subject = mail_of(self.repository, commit).subject
            paths = [raw.path for raw in changed(self.repository, f"{commit}~1", commit)]
            hooks = not all(self.is_runtime(path) for path in paths)
            if subject.startswith(_UNFINISHED) and hooks:
                with refusals.gathered():
                    raise TreeStateError(
                        f"commit {commit[:12]} ({subject}) cannot become a patch because it is "
                        "meant for another commit; put it there with `git rebase -i --autosquash`, "
                        "or reword it"
                    )
        refusals.check()

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that the tip has not."""
        there = entries(self.repository, self.tip, paths)
        return [path for path in paths if path not in there]

    def preimage(self) -> dict[str, str]:
        """The blob that upstream has for every file that some hook touches."""
        touched = {
            raw.path
            for commit in self.repository.commits(self.base, self.tip)
            for raw in changed(self.repository, f"{commit}~1", commit)
        }
        before = entries(self.repository, self.base, sorted(touched))
        return {path: entry.blob for path, entry in before.items()}


def read_checkout(target: Target, path: Path, runtime_subject: str) -> Line:
    """The commits of the checkout at `path`. Raises TreeStateError, saying all that is not fit,
    MismatchError when its base is not the tag's code."""
    hold(path)
    user = checkout_git(path) if path.is_dir() else None
    if user is None or not is_framework(target, user.path):
        raise TreeStateError(
            f"{path} cannot be refreshed from because it is no clone of "
            f"{target.framework_name}; run `lmsbuild apply {target.tag_name}` and commit there"
        )
    user.tip()  # before what is missing is told as something else
    with looking(user):
        return _read(target, user, runtime_subject)


def _read(target: Target, user: Repository, runtime_subject: str) -> Line:
    check_nothing_under_way(user)
    check_none_popped(user, f"{user.path} cannot be refreshed from")
    refusals = Refusals(TreeStateError)
    with refusals.gathered():
        remedy = (
            "commit what belongs to the series, stash or remove the rest (--runtime takes nothing "
            "from there)"
        )
        check_clean(user, user.changes(), "nothing was refreshed", remedy)
    line = Line(target, user, _base(user, target, runtime_subject), user.tip())
    check_preimage(target, user, line.base, f"the base of {user.path}")
    merge = next((c for c in user.commits(line.base, line.tip) if user.merges(c)), None)
    with refusals.gathered():
        if merge is not None:
            raise TreeStateError(
                f"{user.path} cannot be refreshed from because commit {merge[:12]} is a "
                "merge; rebase into a line of commits (`git rebase`)"
            )
        _check_commits(line, runtime_subject)
    refusals.check()
    return line


def _check_commits(line: Line, runtime_subject: str) -> None:
    """Raise TreeStateError, saying all of it, for what cannot go into a series."""
    refusals = Refusals(TreeStateError)
    with refusals.gathered():
        if not line.runtime:
            raise TreeStateError(
                f"{line.repository.path} cannot be refreshed from because the series is not "
                f"applied there; run `lmsbuild apply {line.target.tag_name}` there first"
            )
    for check in (
        lambda: line.notes(runtime_subject),
        line.check_finished,
        lambda: line.hooks,
    ):
        with refusals.gathered():
            check()
    refusals.check()


def _base(user: Repository, target: Target, runtime_subject: str) -> str:
    """The tag's code below the series: what `apply` noted, else the runtime commit's parent."""
    noted = recorded(user, "base")
    if noted != NOTHING and user.holds(noted):
        return noted
    log = user.iter_commits("HEAD", first_parent=True, max_count=SEARCHED)
    found = next((commit for commit in log if commit.summary == runtime_subject), None)
    if found is None:
        raise TreeStateError(
            f"{user.path} cannot be refreshed from because none of its last {SEARCHED} commits is "
            f"{runtime_subject!r}; run `lmsbuild apply {target.tag_name}` there first"
        )
    return found.parents[0].hexsha


def earlier(line: Line, runtime: list[Patch], hooks: list[Patch]) -> Line | None:
    """The commits that the patch files on the disk are: as `apply` or `refresh` left them.

    None when neither noted anything on this base.
    """
    noted = []
    for name in (REFRESHED, "applied"):
        tip = recorded(line.repository, name)
        if tip == line.tip or (tip != NOTHING and line.repository.holds(line.base, tip)):
            noted.append(line if tip == line.tip else replace(line, tip=tip))
    wanted = {change.path: change.after for change in changes_of(runtime)}
    noted = list({one.tip: one for one in noted}.values())
    noted = [one for one in noted if one is line or _is_writable(one)]
    same = [one for one in noted if same_series(one.hooks, hooks)]
    whole = [one for one in same if one.runtime == wanted]
    return next(iter([*whole, *same, *reversed(noted)]), None)


def _is_writable(line: Line) -> bool:
    """Can its commits be patches? One that is off the checkout since is no reason to refuse."""
    try:
        _ = line.hooks
    except TreeStateError:
        return False
    return True


def holds_refreshed(target: Target, user: Repository) -> bool:
    """Is HEAD what `refresh` took its commits from, and are the hooks still in the patches?"""
    base, tip = recorded(user, "base"), user.tip()
    if recorded(user, REFRESHED) != tip or NOTHING in (base, tip):
        return False
    hooks = [Patch(path) for path in patch_files(target.tag_patches)]
    return same_series(Line(target, user, base, tip).hooks, hooks)


def same_series(made: dict[str, bytes], disk: list[Patch]) -> bool:
    """Do the patch files hold the same commits, whatever their form? One that cannot be read says
    nothing else."""
    ours = [Patch(Path(name), content) for name, content in sorted(made.items())]
    return len(ours) == len(disk) and all(
        _identity(other) in (None, _identity(one)) for one, other in zip(ours, disk, strict=True)
    )


def _identity(patch: Patch) -> tuple[Mail, list[FileChange]] | None:
    try:
        return patch.mail, patch.changes
    except ConfigError:
        return None


def changes_of(patches: list[Patch]) -> list[FileChange]:
    """What the patches change; nothing when one of them cannot be read."""
    try:
        return [change for patch in patches for change in patch.changes]
    except ConfigError:
        return []
