# SPDX-License-Identifier: Apache-2.0
"""git, with everything a user's configuration or environment could change shut out.

A plain subprocess: only here can GIT_* variables be removed, and only so are results the same
on every machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmsbuild.base import log
from lmsbuild.base.errors import GitError, MissingToolError, TreeStateError

NAME = "LMS maintainers"
EMAIL = "maintainers@lms.invalid"
DATE = "2026-01-01T00:00:00+0000"

# Command-line settings win over those in a repository's own .git/config.
_NEUTRAL = {
    "am.keepcr": "true",
    "am.messageId": "false",
    "am.threeWay": "false",
    "advice.detachedHead": "false",
    "advice.graftFileDeprecated": "false",
    "apply.ignoreWhitespace": "false",
    "apply.whitespace": "nowarn",
    "commit.gpgSign": "false",
    "commit.cleanup": "verbatim",
    "core.abbrev": "40",
    "core.attributesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.editor": "true",
    "core.eol": "lf",
    "core.excludesFile": "/dev/null",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.quotePath": "true",
    "core.safecrlf": "false",
    "diff.ignoreSubmodules": "none",
    "diff.mnemonicPrefix": "false",
    "diff.noprefix": "false",
    "diff.renames": "false",
    "diff.suppressBlankEmpty": "false",
    "gc.auto": "0",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "init.defaultBranch": "main",
    "log.showSignature": "false",
    "mailinfo.scissors": "false",
    "maintenance.auto": "false",
    "protocol.file.allow": "always",
    "rerere.enabled": "false",
    "tag.gpgSign": "false",
    "user.useConfigOnly": "false",
}


# What holds even where the user's own settings do: nothing asks, runs or rewrites by itself.
_QUIET = {
    "advice.detachedHead": "false",
    "advice.graftFileDeprecated": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "gc.auto": "0",
    "maintenance.auto": "false",
}
_ALWAYS = {
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_USERS = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")


def users_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment with the settings a user may have, and no other GIT_ variable."""
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("GIT_") or key in _USERS
    }
    return {**env, **_ALWAYS, "LC_ALL": "C", "LANGUAGE": "C", **(extra or {})}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without its git settings, with fixed identities and dates."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env.update(
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_SYSTEM=os.devnull,
        GIT_CONFIG_NOSYSTEM="1",
        GIT_ATTR_NOSYSTEM="1",
        **_ALWAYS,
        GIT_AUTHOR_NAME=NAME,
        GIT_AUTHOR_EMAIL=EMAIL,
        GIT_AUTHOR_DATE=DATE,
        GIT_COMMITTER_NAME=NAME,
        GIT_COMMITTER_EMAIL=EMAIL,
        GIT_COMMITTER_DATE=DATE,
        HOME=os.devnull,
        XDG_CONFIG_HOME=os.devnull,
        LC_ALL="C",
        LANGUAGE="C",
        TZ="UTC",
    )
    # A proxy or certificate set for the whole machine is part of reaching the network.
    for key in ("GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_PROXY_COMMAND"):
        if key in os.environ:
            env[key] = os.environ[key]
    if os.environ.get("LMSBUILD_OFFLINE") == "1":
        env["GIT_ALLOW_PROTOCOL"] = "file"
    env.update(extra or {})
    return env


@dataclass(frozen=True)
class Git:
    """git in one folder (a work tree, or a bare repository).

    With `as_user` the user's settings hold: what the user's own git would say. Descriptors in
    `keep` stay open in the child.
    """

    path: Path
    extra_env: dict[str, str] = field(default_factory=dict)
    as_user: bool = False
    keep: tuple[int, ...] = ()

    def run(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one command; raises GitError when it fails and `check` is set."""
        # The user named this folder, so its owner is not a reason to refuse it.
        settings = {
            **(_QUIET if self.as_user else _NEUTRAL),
            "safe.directory": str(self.path.resolve()),
        }
        command = ["git"]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*command, *arguments],
                cwd=self.path,
                env=(users_environment if self.as_user else environment)(self.extra_env),
                pass_fds=self.keep,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except FileNotFoundError as error:
            if not self.path.is_dir():
                raise GitError(arguments, f"{self.path} is no folder") from error
            raise MissingToolError(
                "git cannot be run because it is not installed; run `lmsbuild doctor`"
            ) from error
        output = (done.stdout + done.stderr).decode(errors="replace")
        log.process(["git", *arguments], done.returncode, output, time.monotonic() - began)
        if check and done.returncode != 0:
            if done.returncode < 0:
                output += f"\nfatal: ended by {signal.Signals(-done.returncode).name}"
            raise GitError(arguments, output, self.path)
        return done

    def text(self, *arguments: str) -> str:
        """Standard output without the last line end."""
        return self.run(*arguments).stdout.decode(errors="surrogateescape").rstrip("\n")

    def ok(self, *arguments: str) -> bool:
        return self.run(*arguments, check=False).returncode == 0

    def head(self) -> str:
        return self.text("rev-parse", "--verify", "HEAD^{commit}")

    def blobs(self, revision: str, paths: Sequence[str]) -> dict[str, str]:
        """Blob ids of those of `paths` that exist as files in `revision`."""
        if not paths:
            return {}
        listing = self.run("ls-tree", "-z", "-r", revision, "--", *paths).stdout
        found: dict[str, str] = {}
        for entry in listing.decode(errors="surrogateescape").split("\0"):
            if entry:
                meta, path = entry.split("\t", 1)
                found[path] = meta.split()[2]
        return {path: found[path] for path in paths if path in found}

    def changes(self) -> list[str]:
        """`git status --porcelain` entries: tracked changes and untracked files."""
        output = self.run(
            "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames"
        ).stdout
        return [entry for entry in output.decode(errors="surrogateescape").split("\0") if entry]

    def git_dir(self) -> Path:
        return Path(self.text("rev-parse", "--absolute-git-dir"))


def toplevel(path: Path) -> Path | None:
    """The work tree that `path` lies in, if any: the nearest folder with a `.git` that git accepts.

    Not asked of git, whose answer depends on core.worktree and core.bare.
    """
    place = path.resolve()
    for folder in (place, *place.parents):
        if (folder / ".git").exists() and _pinned(folder).ok("rev-parse", "--git-dir"):
            return folder
    return None


def check_sound(path: Path) -> None:
    """Raise TreeStateError when `path` has a `.git` that git does not accept."""
    if not (path / ".git").exists():
        return
    done = _pinned(path).run("rev-parse", "--git-dir", check=False)
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise TreeStateError(
            f"{path} cannot be worked on because its .git is damaged (git says: {reason[-1]}); "
            "repair it, or move the folder away and fetch anew"
        )


def checkout_git(path: Path) -> Git | None:
    """git in the checkout that `path` lies in, with repository and work tree pinned."""
    top = toplevel(path)
    if top is None:
        return None
    git_dir = _pinned(top).text("rev-parse", "--absolute-git-dir")
    return Git(top, {"GIT_DIR": git_dir, "GIT_WORK_TREE": str(top)})


def _pinned(top: Path) -> Git:
    return Git(top, {"GIT_DIR": str(top / ".git"), "GIT_WORK_TREE": str(top)})
