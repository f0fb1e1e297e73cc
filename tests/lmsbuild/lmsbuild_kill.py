# SPDX-License-Identifier: Apache-2.0
"""Kill the real command line at a chosen step, from outside: nothing in it knows of the tests.

A step is a git call (a `git` found first on PATH kills its caller) or a change of a file below
the test's folder (an audit hook kills its own process).
"""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from lmsbuild_processes import run
from lmsbuild_world import plain_git

from lmsbuild.base.transaction import fingerprint

_HOOK = """
import os, signal, sys

_root, _at, _log = os.environ["KILL_ROOT"], int(os.environ["KILL_AT"]), os.environ["KILL_LOG"]
_changing = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod"}
_writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_count = 0


def _hook(event, arguments):
    global _count
    if event == "open":
        if not isinstance(arguments[2], int) or not arguments[2] & _writing:
            return
    elif event not in _changing:
        return
    path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
    if isinstance(path, int):
        return
    # A relative name is what rmtree says of a file in a folder that it holds open.
    path = os.fsdecode(path)
    if os.path.isabs(path) and not path.startswith(_root) or "/logs" in path:
        return
    _count += 1
    if _at == 0:
        descriptor = os.open(_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{event} {path.replace(_root, '')}\\n".encode(errors="replace"))
        os.close(descriptor)
    elif _count == _at:
        os.kill(os.getpid(), signal.SIGKILL)


def _quiet(event, arguments):
    if not (event == "open" and arguments[0] == _log):
        _hook(event, arguments)


sys.addaudithook(_quiet)
"""

_GIT = """#!/bin/sh
count=$(($(cat "$KILL_COUNT" 2>/dev/null || echo 0) + 1))
echo $count > "$KILL_COUNT"
echo "$*" >> "$KILL_LOG"
[ "$count" = "$KILL_AT" ] || exec "$KILL_GIT" "$@"
case $KILL_MODE in
before) kill -9 $PPID ;;
after) "$KILL_GIT" "$@"; kill -9 $PPID ;;
# The caller dies, git goes on and is done a little later.
orphan)
    case "$*" in
    *--batch*) echo > "$KILL_COUNT.in" ;; # what it is asked has no end while the caller lives
    *) cat > "$KILL_COUNT.in" ;;
    esac
    kill -9 $PPID
    sleep 2
    "$KILL_GIT" "$@" < "$KILL_COUNT.in"
    touch "$KILL_COUNT.over" ;;
# Both die while git holds the locks of the refs that it is about to move.
both)
    exec 3<&0
    { echo start; cat <&3; echo prepare; sleep 9; } | "$KILL_GIT" "$@" >"$KILL_COUNT.said" &
    until grep -q prepare "$KILL_COUNT.said"; do sleep 0.05; done
    kill -9 $! $PPID ;;
esac
"""


@dataclass(frozen=True)
class Killer:
    """Runs `lmsbuild ARGUMENTS` as a process of its own in `folder`."""

    folder: Path  # for what the killer itself needs
    root: Path  # changes of files below it are steps

    def at_file(self, number: int, arguments: list[str], cwd: Path) -> bool:
        """Kill before the `number`th change of a file; was it killed?"""
        env = {
            "KILL_ROOT": str(self.root),
            "KILL_AT": str(number),
            "KILL_LOG": str(self.folder / "files.log"),
        }
        return run(*arguments, cwd=cwd, env=env, before=_HOOK)[0] == -signal.SIGKILL

    def at_git(self, number: int, mode: str, arguments: list[str], cwd: Path) -> bool:
        """Kill at the `number`th git call; was it killed?"""
        found = shutil.which("git")
        assert found
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        wrapper = programs / "git"
        wrapper.write_text(_GIT)
        wrapper.chmod(0o755)
        count = self.folder / "count"
        count.unlink(missing_ok=True)
        env = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "KILL_GIT": found,
            "KILL_AT": str(number),
            "KILL_MODE": mode,
            "KILL_COUNT": str(count),
            "KILL_LOG": str(self.folder / "git.log"),
        }
        return run(*arguments, cwd=cwd, env=env)[0] == -signal.SIGKILL

    def file_steps(self, arguments: list[str], cwd: Path) -> list[str]:
        """The changes of files that an undisturbed run makes."""
        assert not self.at_file(0, arguments, cwd)
        return (self.folder / "files.log").read_text().splitlines()

    def git_steps(self, arguments: list[str], cwd: Path) -> list[str]:
        log = self.folder / "git.log"
        log.unlink(missing_ok=True)
        assert not self.at_git(0, "", arguments, cwd)
        return log.read_text().splitlines()


def snapshot(checkout: Path) -> dict[str, str]:
    """All that a user has in a checkout: refs, index, files, settings. Not objects and reflogs."""
    git_dir = Path(plain_git(checkout, "rev-parse", "--absolute-git-dir"))
    found = {"index file": str(fingerprint(git_dir / "index"))}
    found["refs"] = plain_git(checkout, "for-each-ref") + (git_dir / "HEAD").read_text()
    for path in sorted(git_dir.rglob("*")):
        name = path.relative_to(git_dir).as_posix()
        kept = name.startswith(("objects", "logs", "lmsbuild", "refs")) or name in ("HEAD", "index")
        if not kept and path.is_file():
            found[f".git/{name}"] = str(fingerprint(path))
    for path in sorted(checkout.rglob("*")):
        name = path.relative_to(checkout).as_posix()
        if not name.startswith(".git/") and name != ".git":
            found[name] = f"{path.lstat().st_mode:o} {fingerprint(path)}"
    return found
