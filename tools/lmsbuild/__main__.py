# SPDX-License-Identifier: Apache-2.0
"""Entry point: runs a command and turns every failure into a message and an exit code."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import os
import select
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmsbuild.base import interrupt

if TYPE_CHECKING:
    from lmsbuild.base.errors import LmsbuildError

# Between looks for garbage: what an import makes stays, and is looked through again and again.
_ALLOCATIONS = 100_000
BROKEN_PIPE = 141  # what a shell gives for SIGPIPE


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Exits the process."""
    try:
        interrupt.install()
        gc.set_threshold(_ALLOCATIONS)
        _open_streams()
        interrupt.insist()
        code = run(sys.argv[1:] if arguments is None else arguments)
        code = _flush(code)
        interrupt.over()
    except interrupt.Interrupted as error:  # during an import, or while a message was written
        code = error.exit_code
    finally:
        interrupt.finish()
        interrupt.uninstall()
    if "rattler" in sys.modules:
        # Its threads may be giving back Python objects: an interpreter that ends then crashes.
        os._exit(_flush(code))
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code."""
    import click

    from lmsbuild.base import log
    from lmsbuild.base.errors import FileError, GitError, LmsbuildError, UsageError
    from lmsbuild.cli import usage

    log.start(arguments)
    report = _Report("--json" in arguments, "--debug" in arguments or _debugging())
    try:
        from lmsbuild.cli.group import cli

        _check_folder()
        _check_output()
        if "_LMSBUILD_COMPLETE" in os.environ:
            from lmsbuild.cli.completion import answer

            return answer(cli)
        # Not cli.main: it exits by itself on a closed pipe, and hides what a signal raises.
        with cli.make_context("lmsbuild", arguments or ["--help"]) as context:
            cli.invoke(context)
        return 0
    except LmsbuildError as error:
        cause = error if isinstance(error, GitError) else error.__cause__
        refused = cause.refused() if isinstance(cause, GitError) else None
        if refused is not None:
            refused.details.update(error.details)
        return report.failure(refused or error)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return report.failure(UsageError(usage.explain(error)), with_log=False)
    except KeyboardInterrupt as error:
        known = error if isinstance(error, interrupt.Interrupted) else None
        return report.stopped(known or interrupt.Interrupted(signal.SIGINT))
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            return BROKEN_PIPE
        refusal = FileError.behind(error)
        if refusal is not None:
            return report.failure(refusal)
        return report.failure(
            LmsbuildError(
                f"lmsbuild stopped because of {type(error).__name__}: {error}; this is a defect, "
                "report it with the log"
            )
        )


@dataclass(frozen=True)
class _Report:
    """Says why a command ended. Used while the exception that ended it is handled."""

    json_mode: bool
    debug: bool

    def failure(self, error: LmsbuildError, *, with_log: bool = True) -> int:
        signalled = interrupt.came()
        if signalled is not None:
            return self.stopped(signalled)
        kind = type(error).__name__.replace("LmsbuildError", "InternalError")
        return self._say(kind, error.message, error.exit_code, error.details, with_log=with_log)

    def stopped(self, error: interrupt.Interrupted) -> int:
        during = f" ({error.during})" if error.during else ""
        message = (
            f"stopped{during} because {error.why}; nothing is left half done: run the "
            "same command to go on, or see `lmsbuild status`"
        )
        return self._say("Stopped", message, error.exit_code, {}, with_log=True)

    def _say(
        self, kind: str, message: str, code: int, details: dict[str, object], *, with_log: bool
    ) -> int:
        from lmsbuild.base import log
        from lmsbuild.base.console import Console, jsonable

        if self.debug:
            with contextlib.suppress(OSError):
                traceback.print_exc()
        where = None
        if with_log:
            log.note(f"error: {message}\n{details.get('output', '')}\n{traceback.format_exc()}")
            where = log.path()
        if self.json_mode:
            value = {"kind": kind, "message": message, "exit_code": code, "log": where, **details}
            with contextlib.suppress(OSError):  # the other stream can still be told
                sys.stdout.write(json.dumps({"error": value}, default=jsonable, indent=2) + "\n")
        with contextlib.suppress(OSError):
            Console(json_mode=self.json_mode).fail(message, where)
        return code


def _check_folder() -> None:
    from lmsbuild.base.errors import FileError

    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError as error:
        raise FileError(
            "nothing can be run because the current folder is gone; change to another"
        ) from error


def _check_output() -> None:
    """Raise FileError where nothing can be told: a shell's `>&-`, or a file opened for reading."""
    from lmsbuild.base.errors import FileError

    if fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise FileError(
            "nothing was done because standard output is closed, and what came of it could not be "
            f"told; send it to a file, or to {os.devnull}"
        )


def _debugging() -> bool:
    return os.environ.get("LMSBUILD_DEBUG", "0") not in ("", "0")


def _open_streams() -> None:
    """Standard streams that the caller closed become /dev/null, so that no file takes their place,
    output that cannot be written (see _check_output); a character that the terminal cannot show
    becomes a question mark."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _is_unread() -> bool:
    """Is nobody there any more who reads standard output or error? Otherwise it was another pipe
    that broke."""
    streams = select.poll()
    for number in (1, 2):
        streams.register(number, 0)
    return bool(streams.poll(0))


def _flush(code: int) -> int:
    """Write what is still held back. A closed pipe is silent, a full disk is an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # What could not be written is dropped, or Python would try, and complain, again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if code == 0 and error.errno == errno.EPIPE:
                code = BROKEN_PIPE
            elif code == 0:
                from lmsbuild.base.errors import FileError

                report = _Report(json_mode=False, debug=_debugging())
                code = report.failure(FileError.of(error, "standard output"))
    return code


if __name__ == "__main__":
    main()
