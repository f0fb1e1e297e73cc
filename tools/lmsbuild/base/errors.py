# SPDX-License-Identifier: Apache-2.0
"""Every class of failure, with its exit code.

A message has the form "X because Y; do Z". `docs/cli.md` lists the codes from this module.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

_LITTLE = 1 << 13  # bytes of a disk that is as good as full


class LmsbuildError(Exception):
    """Base of all errors a user can meet. `details` is machine-readable (for --json)."""

    exit_code: ClassVar[int] = 1
    meaning: ClassVar[str] = "internal error (a defect of lmsbuild)"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class UsageError(LmsbuildError):
    exit_code = 2
    meaning = "wrong use of the command line"


class UnknownTagError(LmsbuildError):
    exit_code = 3
    meaning = "the tag or framework is not supported"


class ConfigError(LmsbuildError):
    exit_code = 4
    meaning = "a file of the project is invalid, or the project was not found"


class MissingToolError(LmsbuildError):
    exit_code = 5
    meaning = "this machine lacks something that is needed (see `lmsbuild doctor`)"


class SourceError(LmsbuildError):
    exit_code = 6
    meaning = "the source of a tag could not be had"


class MismatchError(LmsbuildError):
    exit_code = 7
    meaning = "a source, wheel or file is not the recorded one"


class TreeStateError(LmsbuildError):
    exit_code = 8
    meaning = "the checkout is not in a state to work on (not clean, wrong tree, `am` under way)"


class PatchError(LmsbuildError):
    exit_code = 9
    meaning = "a patch does not apply"


class DownloadError(LmsbuildError):
    exit_code = 10
    meaning = "a package could not be downloaded"


class CompileError(LmsbuildError):
    exit_code = 11
    meaning = "a source file does not compile or a library does not link"


class WheelError(LmsbuildError):
    exit_code = 12
    meaning = "a wheel is corrupt, or the overlay would not fit the official wheel"


class DemoError(LmsbuildError):
    exit_code = 13
    meaning = "the demonstration did not show what it must"


class SuiteError(LmsbuildError):
    exit_code = 14
    meaning = "tests failed"


# What git says of an object that is not there, or cannot be fetched; or the git that it asks.
_MISSING = re.compile(
    r"^(remote: )?(?:fatal|error): "
    r"(?:could not (?:fetch|read)|unable to (?:read|get)|missing|bad|no)\b"
    r"(?: \w+){0,3} '?([0-9a-f]{40})\b",
    re.MULTILINE | re.IGNORECASE,
)

# What git says of a setting that it cannot read, with the file when it knows it.
_MISCONFIGURED = re.compile(
    r"^fatal: (?:(?:bad (?:config|boolean|numeric)|unable to parse|invalid value for) .*"
    r"|exceeded maximum include depth.*\n.*)",
    re.MULTILINE,
)

_LOCKED = re.compile(r"Unable to create '(.*\.lock)': File exists")


def cat_file(clone: Path, name: str) -> str:
    """The command line with which a user's own git fetches one object into a partial clone."""
    return f"git -C {shlex.quote(str(clone))} cat-file -p {name}"


class GitError(LmsbuildError):
    """A git command failed in the folder `place`. Callers translate it where they know why;
    `output` is git's text."""

    exit_code = 15
    meaning = "a git command failed for a reason that lmsbuild does not know"

    def __init__(
        self,
        arguments: Sequence[str],
        output: str,
        place: Path | None = None,
        *,
        killed: bool = False,
    ) -> None:
        lines = output.strip().splitlines() or ["no message"]
        # What follows such a line is advice.
        last = next((x for x in lines if x.startswith(("fatal:", "error:"))), lines[-1])
        lost, setting = _MISSING.search(output), _MISCONFIGURED.search(output)
        if setting:
            last = " ".join(setting[0].split())
        why, remedy = f"git says: {last}", "check disk space and permissions"
        if setting:
            why = f"a setting of git is wrong ({why})"
            remedy = "correct it (`git config --list --show-origin` tells where each is)"
        locked = _LOCKED.search(output)
        if locked:
            why = f"another git program works there ({locked[1]} exists)"
            remedy = "wait for its end, or remove that file if none runs"
        if lost and lost[1]:
            why = f"what it reads from lacks object {lost[2]} (git says: {last})"
            remedy = "use a full clone"
        elif lost and place is not None:
            why = f"{place} lacks object {lost[2]} (git says: {last})"
            remedy = (
                f"run `{cat_file(place, lost[2])}`, which fetches it if the clone is a partial "
                "one, or use a full clone"
            )
        super().__init__(
            f"`git {' '.join(arguments)}` failed because {why}; {remedy}", output=output
        )
        self.output = output
        self.place = place
        self.reason = last
        self.lost = lost[2] if lost else None  # the object that is not there
        self.killed = killed  # by a signal
        self.misconfigured = setting is not None
        self._full = "failed to write" in output and _is_full(place)  # git says no more then

    def refused(self) -> FileError | None:
        """What it is when git had no room, or no right, to write."""
        output = self.output.replace("Out of diskspace", os.strerror(errno.ENOSPC))  # git's own
        if self._full:
            output += os.strerror(errno.ENOSPC)
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EMFILE):
            if os.strerror(code) in output:
                return FileError.of(OSError(code, os.strerror(code)), str(self.place or ""))
        return None


def _is_full(place: Path | None) -> bool:
    try:
        found = os.statvfs(place or Path.cwd())
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _LITTLE


class BusyError(LmsbuildError):
    exit_code = 16
    meaning = "another lmsbuild is at work on the same checkout or project"


class UnfinishedError(LmsbuildError):
    exit_code = 17
    meaning = "an earlier command was stopped in the middle (see `lmsbuild status`)"


class FileError(LmsbuildError):
    exit_code = 18
    meaning = "a file cannot be read or written (disk full, read-only, no permission)"

    CAUSES: ClassVar[dict[int, str]] = {
        errno.EACCES: "check its permissions",
        errno.EPERM: "check its permissions",
        errno.EROFS: "use a folder that can be written",
        errno.ENOSPC: "free space, `lmsbuild doctor` says how much is needed",
        errno.EDQUOT: "free space, `lmsbuild doctor` says how much is needed",
        errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
        errno.EIO: "check the disk",
        errno.ENOTDIR: "remove the file that is in the way",
        errno.EMFILE: "raise the limit on open files (ulimit -n)",
        errno.ENFILE: "end other programs, the machine can open no more files",
        errno.EAGAIN: "raise the limit on processes (ulimit -u)",
        errno.ENOMEM: "free memory, or raise the limit on it (ulimit -v)",
        errno.ELOOP: "remove the link that leads to itself",
        errno.EEXIST: "remove the file that is in the way",
        errno.ENOEXEC: "put the program of that name that is for this machine first on PATH",
        errno.EISDIR: "remove the folder that is in the way",
        errno.ENAMETOOLONG: "use a shorter path",
    }

    @classmethod
    def behind(cls, error: BaseException) -> FileError | None:
        """What the operating system refused, if that is what led to `error`."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, MemoryError):
                cause = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            if isinstance(cause, OSError) and cause.errno in cls.CAUSES:
                return cls.of(cause)
            cause = cause.__cause__ or cause.__context__
        return None

    @classmethod
    def of(cls, error: OSError, what: str = "") -> FileError:
        """What the operating system refused, `what` where it names no file."""
        # Of a file that is moved it is the place it goes to that refuses.
        file = what or error.filename2 or error.filename or "a file or standard output"
        remedy = cls.CAUSES.get(error.errno or 0, "check disk and permissions")
        return cls(f"{file} cannot be read or written because {error.strerror}; {remedy}")


class SeriesError(LmsbuildError):
    exit_code = 19
    meaning = "a series is stale or not in its normal form (see `lmsbuild verify`)"


class LintError(LmsbuildError):
    exit_code = 20
    meaning = "a patch breaks a rule of the project (see `lmsbuild lint`)"


class OfflineError(LmsbuildError):
    exit_code = 21
    meaning = "something is not in the cache and downloads are off (--offline)"


class ContainerError(LmsbuildError):
    exit_code = 22
    meaning = "an image was not built, or a container did not run"


class ConflictError(LmsbuildError):
    exit_code = 23
    meaning = "the same file changed on two sides; nothing was written"


class BenchError(LmsbuildError):
    exit_code = 24
    meaning = "the benchmark stopped"


class PackageError(LmsbuildError):
    exit_code = 25
    meaning = "a conda package is damaged, a stub, or not what it must be"


class SubdirError(LmsbuildError):
    exit_code = 26
    meaning = "an unknown subdir (platform) of a conda channel"


class ChannelError(LmsbuildError):
    exit_code = 27
    meaning = "a conda channel is damaged or missing"


class PortError(LmsbuildError):
    exit_code = 28
    meaning = "a network address or port cannot be used"


class RebuildError(LmsbuildError):
    exit_code = 29
    meaning = "what was made again, or a release of the same version, differs from the recorded one"


class SignError(LmsbuildError):
    exit_code = 38
    meaning = "a release was not signed"


class EngineError(LmsbuildError):
    exit_code = 30
    meaning = "no container engine answers"


class EnginePermissionError(LmsbuildError):
    exit_code = 31
    meaning = "the container engine may not be used by this user"


class EmulationError(LmsbuildError):
    exit_code = 32
    meaning = "programs of another architecture cannot be run here"


class BaseImageError(LmsbuildError):
    exit_code = 33
    meaning = "the image to build on cannot be had, or is of another architecture"


class PullError(LmsbuildError):
    exit_code = 34
    meaning = "the network failed while an image was pulled or a package installed in it"


class EngineDiskError(LmsbuildError):
    exit_code = 35
    meaning = "the container engine's disk is full"


class FullBuildError(LmsbuildError):
    exit_code = 36
    meaning = "upstream's own build failed (see its last lines and the log)"


class ReadOnlyError(LmsbuildError):
    exit_code = 37
    meaning = "a conda channel is read-only for you"


# Exit codes that are no class of failure: the process was told to end.
STOPPED = {
    129: "stopped: the terminal was closed (SIGHUP)",
    130: "stopped: Ctrl-C (SIGINT)",
    141: "stopped: nobody reads standard output any more",
    143: "stopped: SIGTERM",
}


def all_errors() -> list[type[LmsbuildError]]:
    """The error classes in the order of their exit codes."""
    classes: list[type[LmsbuildError]] = [LmsbuildError, *LmsbuildError.__subclasses__()]
    return sorted(classes, key=lambda cls: cls.exit_code)
