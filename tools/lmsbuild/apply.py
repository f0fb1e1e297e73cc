# SPDX-License-Identifier: Apache-2.0
"""Put a series on a checkout with `git am`: all of it, or the checkout stays as it was."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.checkout import APPLIED_REF, BASE_REF, is_framework
from lmsbuild.console import Console
from lmsbuild.errors import GitError, LmsbuildError, PatchError, TreeStateError
from lmsbuild.frameworks import Target
from lmsbuild.git import Git, toplevel
from lmsbuild.series import Patch, Series, check_preimage, names, series_of

AM_OPTIONS = (
    "--keep-cr",
    "--keep-non-patch",
    "--whitespace=nowarn",
    "--no-scissors",
    "--no-gpg-sign",
    "--no-3way",
    "--committer-date-is-author-date",
    "--quiet",
)
_UNDER_WAY = {
    "rebase-apply": "`git am` (or a rebase)",
    "rebase-merge": "a rebase",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
}


@dataclass(frozen=True)
class Applied:
    path: Path
    patches: list[str]  # applied by this call
    already: int  # patches that were there
    head: str
    replaced: bool = False  # an older version of the series was taken off first


def apply(target: Target, path: Path, console: Console, dry_run: bool = False) -> Applied:
    """Apply the series of `target` to the checkout at `path`.

    Raises TreeStateError when the checkout is not fit, PatchError when a patch does not apply;
    in both cases the checkout is as it was before.
    """
    git = Git(path)
    _check_tree(target, git)
    series = series_of(target)
    replaced = False
    start = git.head()
    try:
        count = series.applied(git)
    except TreeStateError:
        if not _is_own(git):
            raise
        # Only commits that `apply` made itself lie on the base: an older version of the series.
        base = git.text("rev-parse", BASE_REF)
        check_preimage(target, git, base, str(path))
        count = series.applied(git, base)
        replaced = True
    todo = series.patches[count:]
    if not todo or dry_run:
        return Applied(path, names(todo), count, start, replaced)
    if count == 0:
        base = BASE_REF if replaced else "HEAD"
        check_preimage(target, git, base, str(path))
    with console.task(f"applying {len(todo)} patches to {path}"):
        if replaced:
            git.run("reset", "-q", "--keep", BASE_REF)
        elif count == 0:
            git.run("update-ref", BASE_REF, start)
        try:
            _am(git, todo)
            _check_result(git, series)
        except BaseException:
            _restore(git, start)
            raise
    git.run("update-ref", APPLIED_REF, "HEAD")
    return Applied(path, names(todo), count, git.head(), replaced)


def _is_own(git: Git) -> bool:
    done = git.run("rev-parse", "-q", "--verify", APPLIED_REF, check=False)
    return done.returncode == 0 and done.stdout.decode().strip() == git.head()


def _check_tree(target: Target, git: Git) -> None:
    path = git.path
    if not path.is_dir() or toplevel(path) is None:
        raise TreeStateError(
            f"the series cannot be applied because {path} is no git checkout; run `lmsbuild fetch "
            f"{target.tag_name}` or stand in a clone of {target.framework_name}"
        )
    if not is_framework(target, path):
        raise TreeStateError(
            f"the series cannot be applied because {path} is no clone of "
            f"{target.framework_name} (it lacks one of {', '.join(target.framework.recognise)}); "
            "stand in one or give --into"
        )
    for name, what in _UNDER_WAY.items():
        if (
            Path(git.text("rev-parse", "--git-path", name)).exists()
            or (path / git.text("rev-parse", "--git-path", name)).exists()
        ):
            raise TreeStateError(
                f"the series cannot be applied because {what} is under way in {path}; finish or "
                "abort it first"
            )
    changes = git.changes()
    if changes:
        shown = ", ".join(entry[3:] for entry in changes[:3])
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise TreeStateError(
            f"the series cannot be applied because {path} is not clean ({shown}{more}); commit, "
            "stash or remove these changes first",
            changes=changes,
        )


def _am(git: Git, patches: list[Patch]) -> None:
    try:
        git.run("am", *AM_OPTIONS, "--", *(str(patch.path.resolve()) for patch in patches))
    except GitError as error:
        raise _explain(git, patches, error.output) from error


_FAILED_HUNK = re.compile(r"^error: patch failed: (.+):(\d+)$", re.MULTILINE)
_FAILED_FILE = re.compile(
    r"^error: (.+): (already exists in (?:index|working directory)|does not exist in index|"
    r"does not match index|patch does not apply|No such file or directory)$",
    re.MULTILINE,
)


def _explain(git: Git, patches: list[Patch], output: str) -> LmsbuildError:
    """git's text as patch, file and hunk."""
    number = git.run("rev-parse", "--git-path", "rebase-apply/next").stdout.decode().strip()
    try:
        index = int((git.path / number).read_text()) - 1
    except (OSError, ValueError):
        index = 0
    patch = patches[min(index, len(patches) - 1)]
    hunk = _FAILED_HUNK.search(output)
    if hunk:
        file, line = hunk[1], int(hunk[2])
        position, header = _hunk_at(patch, file, line)
        return PatchError(
            f"{patch.name} does not apply because hunk {position} of {file} (line {line}: "
            f"{header}) finds other code there; use the tag's own source or refresh the patch",
            patch=patch.name, file=file, hunk=position, line=line, output=output,
        )  # fmt: skip
    whole = _FAILED_FILE.search(output)
    if whole:
        return PatchError(
            f"{patch.name} does not apply because {whole[1]} {whole[2]}; use the tag's own source "
            "or refresh the patch",
            patch=patch.name, file=whole[1], output=output,
        )  # fmt: skip
    last = output.strip().splitlines()[-1:] or ["nothing"]
    return PatchError(
        f"{patch.name} does not apply because git says: {last[0]}; check the patch file",
        patch=patch.name,
        output=output,
    )


def _hunk_at(patch: Patch, file: str, line: int) -> tuple[int, str]:
    number = 1
    while header := patch.hunk(file, number):
        if header.startswith(f"@@ -{line},"):
            return number, header
        number += 1
    return 1, patch.hunk(file, 1) or "no text hunk"


def _check_result(git: Git, series: Series) -> None:
    wrong = {
        file
        for file, blob in series.after().items()
        if git.blobs("HEAD", [file]).get(file, "0" * 40) != blob
    }
    if wrong:
        raise PatchError(
            f"the series was taken off again because {sorted(wrong)[0]} did not come out as the "
            "patch says; report this with the version of git"
        )


def _restore(git: Git, start: str) -> None:
    git.run("am", "--abort", check=False)
    if git.head() != start:
        git.run("reset", "-q", "--keep", start, check=False)
    if git.head() != start or git.changes():
        raise TreeStateError(
            f"{git.path} could not be restored because git refused; run `git am --abort; git reset "
            f"--keep {start}` there"
        )
