# SPDX-License-Identifier: Apache-2.0
"""A repository by GitPython's API: objects, trees, refs, remotes and settings.

What that API gets wrong for a user's checkout goes through the command object: refs of a linked
worktree and reftables (it reads loose files of the main repository), an index with extensions or of
version 4 (it loses or refuses them), and settings (it writes values without quoting them).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gitdb

from lmsbuild.base.console import Task
from lmsbuild.base.errors import FileError, GitError, TreeStateError
from lmsbuild.base.git.command import TRUSTING, Git, git
from lmsbuild.base.git.progress import Progress

NOTHING = "0" * 40  # the id of what is not there
_LINE = 200  # commits that are looked at one by one
_ID = re.compile(r"[0-9a-f]{40}")
_PARENT = re.compile(rb"^parent ([0-9a-f]{40})$", re.MULTILINE)

# What the worktrees of a repository share, by the first step of its path.
_SHARED = ("config", "hooks", "info", "objects", "packed-refs", "shallow")
_OF_EACH = ("bisect", "rewritten", "worktree")  # refs that each has of its own
# Reading a partial clone must not make git fetch what it lacks. A git before 2.39.4 knows only the
# second of these.
_ALONE = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}


class _Objects(git.GitCmdObjectDB):
    """Reads by the one process of the command object, and writes loose objects itself: GitPython
    starts a process for each object written."""

    _git: Git

    def stream(self, binsha: bytes) -> gitdb.OStream:
        found = self._git.read(binsha.hex())
        if found is None:
            text = f"fatal: no object {binsha.hex()}"
            raise GitError(("cat-file", binsha.hex()), text, self._git.path)
        _, kind, data = found
        return gitdb.OStream(binsha, kind.encode(), len(data), io.BytesIO(data))

    def info(self, binsha: bytes) -> gitdb.OInfo:
        found = self.stream(binsha)
        return gitdb.OInfo(binsha, found.type, found.size)

    def store(self, istream: gitdb.IStream) -> gitdb.IStream:
        return gitdb.LooseObjectDB.store(self, istream)


class Repository(git.Repo):
    """A repository, and its work tree if it is not a bare one.

    Close it, or use it as a context: a process that reads objects stays until then.
    """

    GitCommandWrapperType = Git  # type: ignore[assignment]
    config_level = ("repository",)  # type: ignore[assignment]  # not the user's, not the system's
    git: Git

    def __enter__(self) -> Repository:
        return self

    def __init__(
        self,
        git_dir: Path,
        work_tree: Path | None = None,
        common_dir: Path | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        as_user: bool = False,
        keep: tuple[int, ...] = (),
    ) -> None:
        # Not super().__init__: it looks around, and believes GIT_ variables and core.worktree.
        self.path = work_tree or git_dir
        self.git_dir = str(git_dir)
        self._common_dir = str(common_dir or git_dir)
        self._working_tree_dir = str(work_tree) if work_tree else None
        self._bare = work_tree is None
        self.working_dir = str(self.path)
        self.variables = dict(variables or {})
        pinned = {"GIT_DIR": self.git_dir}
        if work_tree:
            pinned["GIT_WORK_TREE"] = str(work_tree)
        self.git = Git(self.path, {**pinned, **self.variables}, as_user=as_user, keep=keep)
        self.odb = _Objects(str(self.file("objects")), self.git)
        self._lines: dict[tuple[str, str], list[str]] = {}
        self._trees: dict[str, bytes] = {}
        self._listings: dict[bytes, dict[str, tuple[int, bytes]]] = {}

    @classmethod
    def create(cls, folder: Path, work_tree: Path | None = None) -> Repository:
        """Make a new one, bare unless it gets a work tree."""
        made = cls(folder, work_tree)
        made.path.mkdir(parents=True, exist_ok=True)
        made.git.run("init", "-q", "--template=", *([] if work_tree else ["--bare"]))
        return made

    def variant(
        self,
        work_tree: Path | None = None,
        *,
        as_user: bool = False,
        keep: tuple[int, ...] = (),
        variables: Mapping[str, str] | None = None,
    ) -> Repository:
        """The same one seen otherwise: over other files, with other variables, or as the user's own
        git sees it."""
        tree = work_tree or (Path(self._working_tree_dir) if self._working_tree_dir else None)
        return Repository(
            Path(self.git_dir), tree, Path(self._common_dir),
            variables={**self.variables, **(variables or {})}, as_user=as_user, keep=keep,
        )  # fmt: skip

    def file(self, name: str) -> Path:
        """Where git keeps `name`: not the same folder for everything in a linked worktree."""
        first, *rest = name.split("/")
        shared = first in _SHARED or (first == "refs" and rest and rest[0] not in _OF_EACH)
        return Path(self._common_dir if shared else self.git_dir) / name

    # Objects.

    def commit_id(self, name: str) -> str | None:
        """The commit that `name`, any revision, stands for."""
        found = self.git.read(f"{name}^{{commit}}")
        return found[0] if found else None

    def tip(self) -> str:
        """The commit that is checked out. Raises TreeStateError when there is none."""
        found = self.commit_id("HEAD")
        if found is None:
            raise TreeStateError(
                f"{self.path} cannot be worked on because its HEAD is no commit that is there; "
                "check one out, or see what `git fsck` says"
            )
        return found

    def tree_id(self, revision: str) -> bytes:
        """The tree of a revision, in 20 bytes. Raises GitError when there is none."""
        if revision in self._trees:
            return self._trees[revision]
        found = self.git.read(f"{revision}^{{tree}}")
        if found is not None:
            tree = bytes.fromhex(found[0])
            if _ID.fullmatch(revision):  # and no name, which may move
                self._trees[revision] = tree
            return tree
        commit = self.git.read(f"{revision}^{{commit}}")
        text = "fatal: no such tree"
        if commit is not None:  # its first line is the tree that it lacks
            text = f"fatal: no object {commit[2].split()[1].decode()}"
        raise GitError(("cat-file", revision), text, self.path)

    def listing(self, tree: bytes) -> dict[str, tuple[int, bytes]]:
        """Name -> mode and id of what is directly in a tree. Raises GitError."""
        # Read once: GitPython checks every name of a tree.
        if tree not in self._listings:
            try:
                found = list(git.Tree(self, tree, path=""))
            except (TypeError, ValueError) as error:
                text = f"fatal: tree {tree.hex()} is damaged: {error}"
                raise GitError(("cat-file", tree.hex()), text, self.path) from error
            self._listings[tree] = {_name(str(i.path)): (i.mode, i.binsha) for i in found}
        return self._listings[tree]

    def blob(self, name: str) -> bytes:
        """The content of a blob by its id. Raises GitError when it cannot be had."""
        found = self.git.read(name)
        if found is None:
            raise GitError(("cat-file", name), f"fatal: no object {name}", self.path)
        return found[2]

    def borrow(self, *objects: Path) -> None:
        """Read the objects in these folders too."""
        # Not `alternates`: it cannot write a path that is not UTF-8.
        info = self.file("objects/info")
        info.mkdir(exist_ok=True)
        lines = b""
        for folder in objects:
            path = os.fsencode(folder.resolve())
            if b"\n" in path:  # quoted as git quotes
                inner = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
                path = b'"' + inner + b'"'
            lines += path + b"\n"
        (info / "alternates").write_bytes(lines)

    def commits(self, base: str, tip: str) -> list[str]:
        """The commits base..tip, oldest first."""
        ids = _ID.fullmatch(base) and _ID.fullmatch(tip)
        if ids and (base, tip) in self._lines:
            return self._lines[base, tip]
        commits = self.line(base, tip) if ids else None
        if commits is None:
            found = self.iter_commits(f"{base}..{tip}", reverse=True, topo_order=True)
            commits = [commit.hexsha for commit in found]
        if ids:
            self._lines[base, tip] = commits
        return commits

    def line(self, base: str, tip: str) -> list[str] | None:
        """The same of two ids, read commit by commit, which starts no process; None when the one
        does not lead to the other past `_LINE` commits with one parent each."""
        found: list[str] = []
        while tip != base:
            read = self.git.read(f"{tip}^{{commit}}") if len(found) < _LINE else None
            parents = _PARENT.findall(read[2].partition(b"\n\n")[0]) if read else []
            if len(parents) != 1:
                return None
            found.append(tip)
            tip = parents[0].decode()
        return found[::-1]

    def merges(self, commit: str) -> bool:
        """Has the commit more than one parent?"""
        return len(self.commit(commit).parents) > 1

    def add_blob(self, content: bytes) -> str:
        stored = self.odb.store(gitdb.IStream(b"blob", len(content), io.BytesIO(content)))
        return bytes(stored.binsha).hex()

    # What there is no API for.

    def branch(self) -> str:
        """The full name of the branch that is checked out, `HEAD` when none is."""
        done = self.git.run("symbolic-ref", "-q", "HEAD", check=False)
        return os.fsdecode(done.stdout).strip() or "HEAD"

    def holds(self, commit: str, tip: str = "HEAD") -> bool:
        """Is `commit` the commit `tip` or one of its ancestors?"""
        end = self.commit_id(tip)
        if end is not None and _ID.fullmatch(commit) and self.line(commit, end) is not None:
            return True
        return self.git.ok("merge-base", "--is-ancestor", commit, tip)

    def changes(self) -> list[str]:
        """`git status --porcelain` entries: tracked changes and untracked files."""
        output = self.git.run(
            "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames"
        ).stdout
        return [entry for entry in output.decode(errors="surrogateescape").split("\0") if entry]

    def setting(self, name: str) -> list[str]:
        """The values of a setting, as `git config` reads them."""
        done = self.git.run("config", "--null", "--get-all", name, check=False)
        return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]

    def fetch(self, remote: str, refspec: str, task: Task, **options: Any) -> None:
        """Fetch one thing, with git's progress on `task`. Raises GitError."""
        progress = Progress(task)
        with self._fetching(("fetch", remote, refspec), progress):
            trusting = self.variant(variables=TRUSTING)
            git.Remote(trusting, remote).fetch(refspec, progress=progress, **options)

    def fetch_blobs(self, remote: str, blobs: Sequence[str], task: Task) -> None:
        """Fetch blobs by their ids, all in one request. Raises GitError."""
        if not blobs:
            return
        # Remote.fetch puts what it wants on the command line, which has no room for so many.
        progress = Progress(task)
        with self._fetching(("fetch", "--stdin", remote), progress):
            # It would offer what is here, and the commit is here without its files.
            git_here = self.variant(variables=TRUSTING).git
            running = git_here(c="fetch.negotiationAlgorithm=noop").fetch(
                "--progress", "--no-tags", "--no-write-fetch-head", "--recurse-submodules=no",
                "--filter=blob:none", "--stdin", remote,
                as_process=True, istream=subprocess.PIPE, universal_newlines=True,
            )  # fmt: skip
            with contextlib.suppress(BrokenPipeError), running.stdin:  # it ended, and says why
                running.stdin.write("".join(f"{blob}\n" for blob in blobs))
            git.cmd.handle_process_output(
                running, None, progress.new_message_handler(), decode_streams=False
            )
            running.wait()

    @contextlib.contextmanager
    def _fetching(self, words: Sequence[str], progress: Progress) -> Iterator[None]:
        began = time.monotonic()
        code = 0
        try:
            yield
        except git.GitCommandError as error:
            code = error.status if isinstance(error.status, int) else 1
        self.git.ended(words, code, progress.text.encode(), began, check=True)


def _name(name: str) -> str:
    """GitPython decodes names as the machine does; ours are UTF-8 everywhere."""
    return name if name.isascii() else os.fsencode(name).decode(errors="surrogateescape")


def has_git(folder: Path) -> bool:
    """Is `folder` the top of a checkout? Also when its `.git` leads nowhere: git would go on to the
    next one further up, which nobody asked for. Raises PermissionError when it cannot be told."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (folder / ".git").lstat()
        return True
    return False


def checkout_top(path: Path) -> Path | None:
    """The top of the checkout that `path` lies in, if any; links are followed.

    Not asked of git, whose answer depends on core.worktree and core.bare.
    """
    place = path.resolve()
    return next((folder for folder in (place, *place.parents) if has_git(folder)), None)


def checkout_git(path: Path) -> Repository | None:
    """The checkout that `path` lies in, with repository and work tree pinned. Raises
    TreeStateError for one that is damaged, or whose objects have other ids than the patches,
    FileError for one that may not be read."""
    top = checkout_top(path)
    return _opened(top, top / ".git", top) if top else None


def open_at(path: Path) -> Repository:
    """The repository that is `path`, or that it lies in, to be read: nothing is fetched into it.

    Raises GitError when there is none, TreeStateError as `checkout_git`.
    """
    place = path.absolute()  # git is run in it
    if has_git(place):
        found: Repository | None = _opened(place, place / ".git", place)
    elif is_bare(place):
        found = _opened(place, place, None)
    else:
        found = checkout_git(place)
    if found is None:
        raise GitError(("rev-parse",), "fatal: not a git repository", place)
    return found.variant(variables=_ALONE)


def is_bare(folder: Path) -> bool:
    """One that lacks a part is a damaged one, and not a part of what it lies in."""
    parts = (folder / "HEAD").is_file(), (folder / "objects").is_dir(), (folder / "refs").is_dir()
    return sum(parts) >= 2


def _check_readable(git_dir: Path) -> None:
    """Raise FileError for a part that may not be read: to git it is the same as none."""
    for part in (git_dir, *(git_dir / name for name in ("HEAD", "config", "objects", "refs"))):
        wanted = os.R_OK | os.X_OK if part.is_dir() else os.R_OK
        if part.exists() and not os.access(part, wanted):
            raise FileError.of(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(part)))


def _opened(folder: Path, git_dir: Path, work_tree: Path | None) -> Repository:
    pinned = {"GIT_DIR": str(git_dir)}
    if work_tree:
        pinned["GIT_WORK_TREE"] = str(work_tree)
    git = Git(folder, pinned)
    try:
        words = ("--show-object-format", "--absolute-git-dir", "--git-common-dir")
        said = git.run("rev-parse", *words).stdout.removesuffix(b"\n").split(b"\n")
        form, path, common = said if len(said) == len(words) else _one_by_one(git, words)
    except GitError as error:
        if error.killed:
            raise
        _check_readable(git_dir)
        what = "its .git" if work_tree else "it"
        raise TreeStateError(
            f"{folder} cannot be worked on because {what} is damaged (git says: {error.reason}); "
            "repair it, or move the folder away and fetch anew"
        ) from error
    if form != b"sha1":
        raise TreeStateError(
            f"{folder} cannot be worked on because its objects have {os.fsdecode(form).upper()} "
            "ids and those of the patches are SHA-1; use a clone with --object-format=sha1"
        )
    shared = folder / os.fsdecode(common)
    return Repository(Path(os.fsdecode(path)), work_tree, shared.resolve())


def _one_by_one(git: Git, words: Sequence[str]) -> list[bytes]:
    """What rev-parse says to each: a path may have line breaks in it."""
    return [git.run("rev-parse", word).stdout.removesuffix(b"\n") for word in words]
