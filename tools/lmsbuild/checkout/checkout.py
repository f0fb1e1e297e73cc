# SPDX-License-Identifier: Apache-2.0
"""A framework checkout: finding it, making it, and the refs that lmsbuild keeps in it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmsbuild.base import use
from lmsbuild.base.console import Console, Task
from lmsbuild.base.errors import FileError, GitError, TreeStateError
from lmsbuild.base.git import (
    NOTHING,
    Repository,
    checkout_git,
    checkout_top,
    entries,
    has_git,
    open_at,
)
from lmsbuild.base.project import find_project, full_path, make_folder
from lmsbuild.checkout.source import Source, absent, check, check_reference, obtain
from lmsbuild.checkout.switch import REFS, recorded
from lmsbuild.series.series import check_preimage, series_of
from lmsbuild.tags.frameworks import Target

if TYPE_CHECKING:
    from lmsbuild.base.lockfile import Lock

PORT = "`lmsbuild port`"
ARRANGE = "an arrangement of patches"
_UNDER_WAY = {
    "rebase-apply": "`git am` (or a rebase)",
    "rebase-merge": "a rebase",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "lmsbuild/port.json": PORT,
    "lmsbuild/arranging.json": ARRANGE,
}
_NEW = ".lmsbuild-new-"  # beside a checkout, while it is made; its name and "-" follow
_REMOVED = "-removed"  # at the end of the name of what `clean` is about to delete


@dataclass(frozen=True)
class Checkout:
    path: Path
    commit: str
    route: str  # where its code came from; "present" when it was there already
    why: str


def is_framework(target: Target, path: Path) -> bool:
    """A folder of this framework, told by its files; a sparse checkout may lack them on the disk.

    Raises TreeStateError when its commit would have to tell, and git cannot read that.
    """
    names = target.framework.recognise
    there = [(path / name).exists() for name in names]
    if all(there) or not has_git(path):
        return all(there)
    try:
        user = checkout_git(path)
    except (FileError, TreeStateError):
        if any(there):
            raise
        return False  # somebody else's
    assert user is not None
    with user:
        return user.commit_id("HEAD") is not None and (
            len(entries(user, "HEAD", names)) == len(names)
        )


def standing_in(target: Target) -> Path | None:
    """The clone of this framework that the user stands in. Raises TreeStateError when git does not
    accept it, so that no other is taken for it."""
    top = checkout_top(Path.cwd())
    if top is None or not is_framework(target, top):
        return None
    user = checkout_git(top)
    assert user is not None
    user.close()
    return top


def is_there(path: Path) -> bool:
    """Whether there is anything at `path`, where a checkout is or would be fetched to."""
    return path.exists() and any(path.iterdir())


def default_path(target: Target, into: Path | None) -> Path:
    return full_path(into) if into else target.work / "source"


def hold(path: Path) -> None:
    """Have `clean` leave the checkout at `path`, if it is in the work folder, until this process
    ends."""
    folder = path.resolve().parent
    if folder.parent == find_project().work.resolve() and os.access(folder, os.W_OK):
        use.hold(folder)


def in_work_folder(target: Target) -> Path | None:
    """The checkout of the tag in the work folder, held, if there is one."""
    path = default_path(target, None)
    hold(path)
    return path if is_framework(target, path) else None


def under_way(user: Repository) -> str | None:
    """What git itself has not finished in the checkout, in words."""
    return next((what for name, what in _UNDER_WAY.items() if user.file(name).exists()), None)


def check_nothing_under_way(user: Repository) -> None:
    what = under_way(user)
    if what:
        raise TreeStateError(
            f"{user.path} cannot be worked on because {what} is under way there; finish or abort "
            "that first"
        )


def check_clean(user: Repository, changes: Sequence[str], failed: str, remedy: str) -> None:
    """Raise TreeStateError when of `changes`, which git without settings sees, some are changes for
    the user's own git as well: line ends and filters make an unchanged file look changed to one who
    does not know them, and the other way round."""
    if changes:
        try:
            theirs = {entry[3:] for entry in user.variant(as_user=True).changes()}
            changes = [entry for entry in changes if entry[3:] in theirs]
        except GitError as error:
            if error.misconfigured:
                raise
    if changes:
        shown = ", ".join(entry[3:] for entry in changes[:5])
        more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise TreeStateError(
            f"{failed} because {user.path} is not clean ({shown}{more}); {remedy}", changes=changes
        )


def overlooked(user: Repository) -> list[str]:
    """The files that git was told to overlook (`update-index --assume-unchanged` and
    `--skip-worktree`), that are there, and are not as the index has them."""
    listed = user.git.run("ls-files", "-v", "--stage", "-z").stdout
    as_user = user.variant(as_user=True)
    found = []
    for entry in listed.decode(errors="surrogateescape").split("\0")[:-1]:
        facts, _, name = entry.partition("\t")
        flag, _, blob, _ = facts.split(" ")
        file = user.path / name
        hidden = (flag.islower() or flag == "S") and file.is_file() and not file.is_symlink()
        if hidden and as_user.git.text("hash-object", "--", name) != blob:
            found.append(name)
    return found


def working_path(target: Target, into: Path | None) -> Path:
    """What a command works on: `into`, else the clone the user stands in, else the work folder."""
    return default_path(target, into or standing_in(target))


def fetch(
    target: Target,
    wanted: str,
    into: Path | None,
    console: Console,
    reference: Path | None = None,
) -> Checkout:
    """Put the tag's source at `into` (default: the work folder); a fitting one is left as is.

    `reference`: see source.obtain.
    """
    check(wanted)
    if reference is not None:
        check_reference(reference)
    path = default_path(target, into)
    if path.is_mount() and not is_there(path):
        raise FileError(
            f"{path} cannot become a checkout because a disk is mounted there; give a folder below "
            "it with --into"
        )
    with _place(path):
        if is_there(path):
            return _present(target, path, wanted, reference)
        for left in leftovers(path.parent):
            if lock_of(left) == _lock_file(path):
                shutil.rmtree(left)
        source = obtain(target, wanted, console, reference)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{_NEW}{path.name}-") as folder:
            fresh = Path(folder) / "source"
            with console.task(f"checking out {target.label}") as task:
                _check_out(target, source, fresh, task, console)
            if path.exists():
                path.rmdir()
            shutil.move(fresh, path)
    return Checkout(path, source.commit, source.route, source.why)


@contextmanager
def _place(path: Path) -> Iterator[None]:
    """The lock of a checkout, whose folder is made if need be. What was made for one that is not
    there in the end goes again."""
    made = [folder for folder in path.parents if not folder.exists()]
    make_folder(path.parent)
    hold(path)
    with _lock(_lock_file(path)) as lock:
        try:
            yield
        except BaseException:
            if not is_there(path):
                lock.remove()
                with contextlib.suppress(OSError):  # it has something else by now
                    for folder in made:
                        folder.rmdir()
            raise


def leftovers(folder: Path) -> list[Path]:
    """What a killed `fetch` into `folder`, or `clean` left, or one at work has."""
    return sorted(folder.glob(f"{_NEW}*"))


def lock_of(left: Path) -> Path:
    """The lock file of the checkout that is made in a leftover, or was removed as it."""
    name, _, _ = left.name.removeprefix(_NEW).rpartition("-")
    return _lock_file(left.with_name(name or "source"))  # which was not in it once


def removed(path: Path) -> Path:
    """What `clean` makes of `path` in one step, so that a kill leaves a leftover and no half."""
    return path.with_name(f"{_NEW}{path.name}{_REMOVED}")


def abandon(target: Target, *, dry_run: bool = False) -> list[Path]:
    """Remove what a killed `fetch` into the work folder left, and name it; nothing of one that is
    at work."""
    found = [left for left in leftovers(target.work) if not left.name.endswith(_REMOVED)]
    return [left for left in found if _abandoned(left, dry_run=dry_run)]


def _abandoned(left: Path, *, dry_run: bool) -> bool:
    try:
        with _lock(lock_of(left)).acquire(timeout=0):
            if not left.exists():
                return False  # `clean` was there first
            if not dry_run:
                shutil.rmtree(left)
            return True
    except TimeoutError:
        return False


def _lock_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _lock(file: Path) -> Lock:
    from lmsbuild.base.lockfile import Lock  # of no command that finds its checkout at hand

    return Lock(file)


def _present(target: Target, path: Path, wanted: str, reference: Path | None) -> Checkout:
    user = checkout_git(path)
    if user is None or user.path != path.resolve() or not is_framework(target, path):
        raise TreeStateError(
            f"{path} cannot take the source of {target.label} because it is not empty and no "
            f"clone of {target.framework_name}; choose another folder with --into"
        )
    base = recorded(user, "base")
    if base != NOTHING:
        check_preimage(target, user, base, str(path))
    else:
        # Not made by `fetch`: it may be a clone that has the series, or a part of it, already.
        series_of(target).applied(user)
    why = "it is there already"
    unused = [wanted] if wanted != "auto" else []
    unused += [str(reference)] if reference else []
    if unused:
        named = " and ".join(map(shlex.quote, unused))
        why += f", and {named} {'was' if len(unused) == 1 else 'were'} not looked at"
    return Checkout(path, user.tip(), "present", why)


def _take_objects(made: Repository, source: Source) -> None:
    """As fetch, which refuses a source that lacks a file."""
    # Not made a partial clone of upstream: `git status` would need upstream for a .gitignore.
    packs = made.file("objects/pack")
    packs.mkdir(parents=True, exist_ok=True)
    for file in (source.repository / "objects" / "pack").iterdir():
        shutil.copyfile(file, packs / file.name)
    made.file("shallow").write_text(f"{source.commit}\n", encoding="utf-8")


def _check_out(target: Target, source: Source, fresh: Path, task: Task, console: Console) -> None:
    fresh.mkdir()
    with Repository.create(fresh / ".git", fresh) as made, open_at(source.repository) as given:
        shallow = given.file("shallow").is_file() or source.route != "path"
        origin = made.create_remote("origin", given.path.resolve().as_uri())
        without = absent(given) if source.route != "path" else []
        if without:
            _take_objects(made, source)
            patterns = ["/*", *(f"!/{path}" for path in without)]
            made.git.run("sparse-checkout", "set", "--no-cone", *patterns)
        else:
            try:
                options = {"depth": 1} if shallow else {}
                made.fetch("origin", source.commit, task, no_tags=True, **options)
            except GitError as error:
                if error.lost is None or shallow:
                    raise
                console.warn(
                    f"the checkout of {target.label} will have no history because {given.path} "
                    f"lacks object {error.lost} of it; give a full clone if it should have one"
                )
                made.fetch("origin", source.commit, task, no_tags=True, depth=1)
        made.git.run("checkout", "-q", "-b", "lms", source.commit)
        made.git.run("update-ref", f"{REFS}base", source.commit)
        origin.set_url(target.framework.url)
