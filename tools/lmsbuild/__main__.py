# SPDX-License-Identifier: Apache-2.0
"""Entry point: runs a command and turns every failure into a message and an exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback

import click

from lmsbuild import log
from lmsbuild.cli import cli
from lmsbuild.errors import INTERRUPTED, LmsbuildError
from lmsbuild.project import cache_dir


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Exits the process."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code."""
    json_mode = "--json" in arguments
    log.start(arguments)
    try:
        code = cli.main(args=arguments, prog_name="lmsbuild", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except LmsbuildError as error:
        return _report(
            error.message, error.exit_code, type(error).__name__, error.details, json_mode
        )
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        hint = f"; run `{error.ctx.command_path} --help`" if error.ctx else ""
        return _report(f"{error.format_message()}{hint}", 2, "UsageError", {}, json_mode)
    except click.ClickException as error:
        return _report(error.format_message(), 2, "UsageError", {}, json_mode)
    except (KeyboardInterrupt, click.Abort):
        return _report("interrupted", INTERRUPTED, "Interrupted", {}, json_mode)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("LMSBUILD_DEBUG"):
            raise
        return _defect(error, json_mode)


def _report(message: str, code: int, kind: str, details: dict[str, object], json_mode: bool) -> int:
    if json_mode:
        value = {"error": {"kind": kind, "message": message, "exit_code": code, **details}}
        sys.stdout.write(json.dumps(value, default=str, indent=2) + "\n")
    sys.stderr.write(f"error: {message}\n")
    return code


def _defect(error: Exception, json_mode: bool) -> int:
    try:
        log = cache_dir() / "last-error.log"
        log.write_text(traceback.format_exc(), encoding="utf-8")
        where = str(log)
    except OSError:
        where = "nowhere (the cache cannot be written)"
    return _report(
        f"lmsbuild stopped because of {type(error).__name__}: {error}; this is a defect, report it "
        f"with {where}",
        LmsbuildError.exit_code, "InternalError", {}, json_mode,
    )  # fmt: skip


if __name__ == "__main__":
    main()
