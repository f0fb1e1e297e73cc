# SPDX-License-Identifier: Apache-2.0
"""What can be removed: leftovers of killed runs, the cache, the work folders of tags.

Nothing that a running process holds is removed, and no checkout that has work of the user's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from filelock import Timeout

from lmsbuild.base import cache, use
from lmsbuild.base.errors import FileError, GitError, TreeStateError
from lmsbuild.base.git import NOTHING, Repository, checkout_git, has_git
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import cache_dir
from lmsbuild.checkout import checkout
from lmsbuild.checkout.arranging import popped
from lmsbuild.checkout.checkout import overlooked
from lmsbuild.checkout.switch import REFS, recorded
from lmsbuild.places import environment
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel import publish
from lmsbuild.wheel.plugin import key_of


@dataclass(frozen=True)
class Item:
    """Something to remove. `kept` is the reason why it stays, "" if it goes."""

    path: Path
    what: str  # leftover, cache or work
    title: str
    bytes: int
    used: float  # seconds since the epoch
    kept: str = ""
    # Gives why it stays after all, "" when it is gone.
    remove: Callable[[], str] = field(default=lambda: IN_USE, repr=False, compare=False)

    def facts(self) -> dict[str, object]:
        return {
            "path": str(self.path),
            "what": self.what,
            "title": self.title,
            "bytes": self.bytes,
            "kept": self.kept,
        }


def clean(items: list[Item], older_than: float | None, *, dry_run: bool) -> list[Item]:
    """Remove the items that were last used over `older_than` days ago; gives each with what became
    of it."""
    done = []
    for item in items:
        if older_than is not None and item.used > time.time() - older_than * 86400:
            item = replace(item, kept=f"used within the last {older_than:g} days")
        elif not item.kept and not dry_run:
            item = replace(item, kept=item.remove())
        done.append(item)
    return done


IN_USE = "in use"
CONDA_LEFTOVERS = "conda/.build-*"  # not of lmsbuild.conda: its import takes a second


def leftovers(targets: list[Target]) -> list[Item]:
    """What killed runs left."""
    found = [_plain(path, "leftover", "temporary") for path in cache.leftovers()]
    found += [
        _plain(note, "leftover", "hash of a file that is gone")
        for note in (cache_dir() / "hashes").glob("*.json")
        if not _file_of(note).exists()
    ]
    for target in targets:
        for path in checkout.leftovers(target.work):
            lock = checkout.lock_of(path)
            found.append(_plain(path, "leftover", f"{target.label}: unfinished", lock))
        for wheels in sorted(target.work.glob("wheels*")):
            title = f"{target.label}: unfinished wheel"
            lock = wheels / ".lock"
            found += [_plain(p, "leftover", title, lock) for p in publish.leftovers(wheels)]
        for path in sorted(target.work.glob(CONDA_LEFTOVERS)):
            lock = path.parent / ".lock"
            found.append(_plain(path, "leftover", f"{target.label}: unfinished package", lock))
        for path in sorted(target.work.glob("env-*")):
            if not environment.is_finished(path):
                lock = target.work / f".{path.name}.lock"
                found.append(_plain(path, "leftover", f"{target.label}: unfinished", lock))
    return found


def cached(target: Target | None) -> list[Item]:
    """The entries of the cache, or those made for one tag."""
    found = [
        Item(
            entry.path, "cache", entry.title, entry.bytes, entry.used,
            remove=lambda entry=entry: "" if cache.remove(entry) else IN_USE,  # type: ignore[misc]
        )
        for entry in cache.entries()
        if target is None or entry.tag == target.label
    ]  # fmt: skip
    if target is None:
        folder = cache_dir() / "partial"
        for path in folder.glob("*"):
            item = _plain(path, "cache", "unfinished download")
            found.append(replace(item, remove=partial(_remove_locked, path)))
    return found


def worked(targets: list[Target], *, force: bool) -> list[Item]:
    """Checkouts, environments, wheels and results of tags."""
    found = []
    for target in targets:
        folder = target.work
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.name.startswith("."):
                continue
            lock = (
                path / ".lock"
                if path.name.startswith(("wheels", "conda"))
                else folder / f".{path.name}.lock"
            )
            title = f"{target.label}: {path.name}"
            reason = partial(_reason, target, path, force=force)
            item = _plain(path, "work", title, lock)
            remove = partial(_unused, path, reason, item.remove)
            found.append(replace(item, kept=reason(), remove=remove))
    return found


def _reason(target: Target, path: Path, *, force: bool) -> str:
    """Why something in the folder of a tag stays, "" for what may go."""
    if force:
        return ""
    checkout = path.name == "source" or has_git(path)
    return users_work(path) if checkout else _foreign(target, path)


# What the commands put into the folder of a tag, beside checkouts.
_MADE = (
    *("env-*", "full-py*", "wheels", "wheels-*", "conda"),
    *("plugin", "releases", "reports", "bench", "demo"),
)


def _foreign(target: Target, path: Path) -> str:
    """Why what no command has put there stays, "" for what one has."""
    if not any(fnmatchcase(path.name, pattern) for pattern in _MADE):
        return "not made by lmsbuild; give --force to remove it all the same"
    files = sorted(path.iterdir()) if path.name.startswith("wheels") and path.is_dir() else []
    other = next((file.name for file in files if not _is_built(target, file)), None)
    if other is None:
        return ""
    return f"{other} in it is not made by lmsbuild; give --force to remove it all the same"


def _is_built(target: Target, file: Path) -> bool:
    """Of a folder of wheels: is it what a build puts there?"""
    plugin = target.framework.plugin
    sdist = plugin is not None and fnmatchcase(file.name, f"{plugin.name}-*.tar.gz")
    if sdist or file.name.startswith(".") or file.name.endswith(f".whl{publish.BESIDE}"):
        return True
    return file.with_name(f"{file.name}{publish.BESIDE}").is_file() or bool(key_of(file))


def users_work(checkout: Path) -> str:
    """What of the user's would be lost with a checkout, "" for nothing."""
    try:
        # Without one git would go on to a repository further up.
        user = checkout_git(checkout) if has_git(checkout) else None
        if user is None:
            if checkout.is_dir() and not any(checkout.iterdir()):
                return ""
            return (
                "it has no repository (.git), so what is yours in it cannot be told; give --force "
                "to remove it all the same"
            )
        changes = user.changes()
        if changes:
            return f"{changes[0][3:]} is not committed; give --force to remove it all the same"
        unseen = _unseen(user)
        if unseen:
            return f"{unseen}; give --force to remove it all the same"
        off = popped(user)
        if off:
            return f"has popped patches ({off[0].name}); give --force to remove it all the same"
        base, before, applied = (recorded(user, name) for name in ("base", "before", "applied"))
        if base == NOTHING:
            return "not made by lmsbuild; give --force to remove it all the same"
        series: set[str] = set()
        if applied != NOTHING:
            known = before if before != NOTHING else base
            series.update(user.commits(known, applied))
        own = ["--exclude=refs/lmsbuild/*", f"--exclude={REFS}*", "--all", "HEAD"]
        # Not iter_commits, which puts "--" between such options.
        for commit in user.git.text("rev-list", *own, "--not", base).splitlines():
            if commit not in series:
                subject = user.commit(commit).summary
                return (
                    f"has your commit {commit[:12]} ({subject!s}); give --force to remove it all "
                    "the same"
                )
        return ""
    except (FileError, GitError, TreeStateError) as error:
        return f"{error.message}, or give --force to remove it all the same"


def _unseen(user: Repository) -> str:
    """What `git status` does not show: edits that it was told to overlook, linked worktrees, and
    other repositories in folders that it ignores."""
    for name in overlooked(user):
        return f"{name} is not committed (git was told to overlook that)"
    for line in user.git.text("worktree", "list", "--porcelain").splitlines():
        place = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and place.is_dir() and not place.samefile(user.path):
            return f"has the linked worktree {place}"
    ignored = ("--others", "--ignored", "--exclude-standard", "--directory", "-z")
    listed = user.git.run("ls-files", *ignored).stdout
    for name in listed.decode(errors="surrogateescape").split("\0")[:-1]:
        for found in (user.path / name).rglob(".git") if name.endswith("/") else ():
            return f"has another repository, {found.parent.relative_to(user.path)}"
    return ""


def _unused(path: Path, reason: Callable[[], str], remove: Callable[[], str]) -> str:
    """Remove `path`, unless a process works in its folder, or there is a reason by now: many others
    may have been looked at since it was listed. Another `clean` may have removed it."""
    with use.alone(path.parent) as free:
        if not free:
            return IN_USE
        return reason() or remove() if os.path.lexists(path) else ""


def _file_of(note: Path) -> Path:
    try:
        return Path(json.loads(note.read_text(encoding="utf-8"))["seen"][0])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return note.with_name("damaged")


def _plain(path: Path, what: str, title: str, lock: Path | None = None) -> Item:
    """A file or folder that one lock file, if any, protects."""
    stats = list(_stats(path))
    return Item(
        path,
        what,
        title,
        sum(stat.st_size for stat in stats),
        max((stat.st_mtime for stat in stats), default=0.0),
        remove=lambda: _remove(path, lock),
    )


def _stats(path: Path) -> Iterator[os.stat_result]:
    """Of all that is there, and no link followed; another may be removing it."""
    with contextlib.suppress(FileNotFoundError):
        yield path.lstat()
        for file in path.iterdir() if path.is_dir() and not path.is_symlink() else ():
            yield from _stats(file)


def _remove(path: Path, lock: Path | None) -> str:
    if lock is None:
        _delete(path)
        return ""
    try:
        with Lock(lock, timeout=0), contextlib.suppress(FileNotFoundError):
            _delete(path if path.name.startswith(".") else path.rename(checkout.removed(path)))
    except Timeout:
        return IN_USE
    return ""


def _remove_locked(folder: Path) -> str:
    """A folder that is its own lock."""
    try:
        handle = cache.open_locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDONLY)
    except BlockingIOError:
        return IN_USE
    except FileNotFoundError:
        return ""
    try:
        _delete(folder)
    finally:
        os.close(handle)
    return ""


def _delete(path: Path) -> None:
    """Whatever is there; another `clean` may be at it as well."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
