# SPDX-License-Identifier: Apache-2.0
"""GitPython's command object, with everything a user's configuration or environment could change
shut out.

Every git process is started here: those that our code asks for with `run`, and those that
GitPython starts by itself, all of which come to `execute`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lmsbuild.base import interrupt, log
from lmsbuild.base.errors import GitError, MissingToolError
from lmsbuild.base.settings import offline

# When it is imported GitPython runs git with the user's settings, any of which may make it fail.
# Told of a program that does not exist, it runs none and goes on with `git`.
_before = os.environ.copy()
os.environ.update(GIT_PYTHON_GIT_EXECUTABLE="/none/git", GIT_PYTHON_REFRESH="quiet")
try:
    import git
finally:
    os.environ.clear()
    os.environ.update(_before)

__all__ = ["EMAIL", "NAME", "TRUSTING", "Git", "git", "version"]

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
# For a git that looks at a location the user named, and finds no repository by itself.
TRUSTING = {"GIT_CONFIG_GLOBAL": str(Path(__file__).with_name("trusting.config"))}


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
    if offline():
        env["GIT_ALLOW_PROTOCOL"] = "file"
    env.update(extra or {})
    return env


def version() -> str:
    """Of git, as it says it; empty where there is none. Raises MissingToolError."""
    return _check_program(environment().get("PATH", os.defpath))


@functools.cache
def _check_program(path: str) -> str:
    """What the first `git` of a PATH says that it is. Raises MissingToolError when it is something
    else: all that it says would be believed."""
    program = shutil.which("git", path=path)
    if program is None:
        return ""  # whoever starts it says so
    done = subprocess.run(
        [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode == 0 and not done.stdout.startswith(b"git version "):
        said = done.stdout[:40].decode(errors="replace").strip() or "nothing"
        raise MissingToolError(
            f"git cannot be run because {program} is another program (`git --version` says "
            f"{said!r}); put git first on PATH"
        )
    return done.stdout.decode(errors="replace").strip()


def _text(word: str | bytes) -> str:
    """What GitPython says is text is as the pipe gave it."""
    return word if isinstance(word, str) else word.decode()


class _Notes(logging.Handler):
    """GitPython's own messages go to the log of the command, not to the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        log.note(f"{record.name}: {record.getMessage()}")


logging.getLogger("git").addHandler(_Notes())
logging.getLogger("git").propagate = False


class Git(git.Git):
    """git in one folder (a work tree, or a bare repository).

    With `as_user` the user's settings hold: what the user's own git would say. Descriptors in
    `keep` stay open in the children that change something.
    """

    __slots__ = ("as_user", "keep", "path", "variables")

    def __init__(
        self,
        path: Path,
        variables: Mapping[str, str] | None = None,
        *,
        as_user: bool = False,
        keep: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.path = path
        self.variables = dict(variables or {})
        self.as_user = as_user
        self.keep = keep

    # Processes that end by themselves.

    def run(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one command; raises GitError when it fails and `check` is set."""
        began = time.monotonic()
        with self._starting(arguments) as (command, options):
            done = subprocess.run(
                command,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                timeout=timeout,
                check=False,
                **options,
            )
        self.ended(arguments, done.returncode, done.stdout + done.stderr, began, check=check)
        return done

    def text(self, *arguments: str) -> str:
        """Standard output without the last line end."""
        return self.run(*arguments).stdout.decode(errors="surrogateescape").removesuffix("\n")

    def ok(self, *arguments: str) -> bool:
        return self.run(*arguments, check=False).returncode == 0

    def ended(
        self, arguments: Sequence[str], code: int, output: bytes, began: float, *, check: bool
    ) -> None:
        """Log a process; raise GitError when it failed and `check` is set."""
        text = output.decode(errors="replace")
        log.process(["git", *arguments], code, text, time.monotonic() - began)
        if check and code != 0:
            if code < 0:
                text += f"\nfatal: ended by {signal.Signals(-code).name}"
            # Damaged input makes some versions of git abort: nobody stopped them.
            killed = code < 0 and code != -signal.SIGABRT
            raise GitError(arguments, text, self.path, killed=killed)

    # GitPython's door.

    def execute(  # type: ignore[override]
        self,
        command: Sequence[str],
        istream: int | IO[bytes] | None = None,
        *,
        with_extended_output: bool = False,
        with_exceptions: bool = True,
        as_process: bool = False,
        stdout_as_string: bool = True,
        with_stdout: bool = True,
        universal_newlines: bool = False,
        strip_newline_in_stdout: bool = True,
    ) -> Any:
        """What every call of GitPython's own comes to. Not super().execute: that one hands on the
        variables of the user's environment. Raises GitError."""
        arguments = command[1:]
        if not as_process:
            done = self.run(*arguments, check=with_exceptions)
            raw = done.stdout.removesuffix(b"\n") if strip_newline_in_stdout else done.stdout
            output = raw.decode(errors="surrogateescape") if stdout_as_string else raw
            if with_extended_output:
                return done.returncode, output, done.stderr.decode(errors="replace")
            return output
        reads = "cat-file" in arguments
        log.note(f"$ git {' '.join(arguments)}\nruns beside us")
        with self._starting(arguments) as (full, options):
            if reads:
                options["pass_fds"] = ()  # it only reads, and outlives a transaction
            process = subprocess.Popen(
                full,
                stdin=subprocess.DEVNULL if istream is None else istream,
                stdout=subprocess.PIPE if with_stdout else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8" if universal_newlines else None,
                errors="replace" if universal_newlines else None,
                **options,
            )
        if reads:
            assert process.stderr is not None
            os.set_blocking(process.stderr.fileno(), False)
        return self.AutoInterrupt(process, command)

    @contextlib.contextmanager
    def _starting(self, arguments: Sequence[str]) -> Iterator[tuple[list[str], dict[str, Any]]]:
        """The command line and what Popen is told. Raises GitError, MissingToolError."""
        interrupt.check()
        # The user named this folder, so its owner is not a reason to refuse it.
        settings = {
            **(_QUIET if self.as_user else _NEUTRAL),
            "safe.directory": str(self.path.resolve()),
        }
        command = ["git"]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        variables = (users_environment if self.as_user else environment)(self.variables)
        try:
            _check_program(variables.get("PATH", os.defpath))
            yield (
                [*command, *arguments],
                {"cwd": self.path, "env": variables, "pass_fds": self.keep},
            )
        except FileNotFoundError as error:
            if not self.path.is_dir():
                raise GitError(arguments, f"{self.path} is no folder") from error
            raise MissingToolError(
                "git cannot be run because it is not installed; run `lmsbuild doctor`"
            ) from error

    # The process that stays and reads objects.

    def read(self, name: str) -> tuple[str, str, bytes] | None:
        """Id, type and bytes of the object that `name` (any revision) stands for, None when there
        is none. Raises GitError when git gives up, as on one that a partial clone cannot fetch."""
        reader = self.cat_file_all
        if reader is not None and reader.poll() is not None:
            self.clear_cache()  # a signal ended it, and what is rolled back then reads on
        elif reader is not None:
            reader.stderr.read()  # or its pipe would be full one day
        try:
            found, kind, size, data = self.get_object_data(name)
            if len(data) != size:
                raise EOFError  # it ended half-way, which GitPython does not look at
            return _text(found), _text(kind), data
        except ValueError:
            return None
        except (EOFError, BrokenPipeError):
            said = self._last_words()
            self.clear_cache()
            raise GitError(("cat-file", name), said, self.path) from None
        except BaseException:
            self.clear_cache()  # half an answer may be left in its pipe
            raise

    def _last_words(self) -> str:
        process = self.cat_file_all.proc if self.cat_file_all is not None else None
        if process is None or process.stderr is None:
            return ""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # what is still there of it ends then
        process.wait()
        return (process.stderr.read() or b"").decode(errors="replace")

    def _parse_object_header(self, header_line: str) -> tuple[str, str, int]:
        if not _text(header_line).endswith("\n"):
            raise EOFError  # GitPython's error for this is that for an object that is missing
        return super()._parse_object_header(header_line)

    def clear_cache(self) -> Git:
        """End the process that reads objects. It is started again when it is needed."""
        for process in (self.cat_file_header, self.cat_file_all):
            if process is not None and process.proc is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.proc.stdin.close()
                process.proc.stdout.close()  # before the wait: it may be full
                process.proc.wait()
                process.proc.stderr.close()
        self.cat_file_header = self.cat_file_all = None
        return self
