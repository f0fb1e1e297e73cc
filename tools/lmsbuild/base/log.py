# SPDX-License-Identifier: Apache-2.0
"""The full log of the running command: everything that the console is too terse for.

A log that cannot be written never fails a command. The file is made at the first note, so that a
command that has nothing to tell leaves none.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import platformdirs

from lmsbuild import __version__
from lmsbuild.base import interrupt

KEPT = 50
_OUTPUT_KEPT = 1 << 16  # characters of a successful process; a failed one is logged whole
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")

_lock = threading.Lock()
_path: Path | None = None
_arguments: list[str] = []
_began = 0.0


def folder() -> Path:
    """LMSBUILD_WORK's `logs`, else the user's log folder."""
    work = os.environ.get("LMSBUILD_WORK")
    if work:
        return Path(work).expanduser().absolute() / "logs"
    return platformdirs.user_log_path("lmsbuild")


def start(arguments: Sequence[str]) -> None:
    """Name the log of the command line `arguments`; nothing is written yet."""
    global _path, _arguments, _began
    words = [word for word in arguments if re.fullmatch(r"[a-z]+", word)]
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    with _lock:
        name = f"{now}-{words[0] if words else 'lmsbuild'}-{os.getpid()}.log"
        _path = None
        with contextlib.suppress(RuntimeError, OSError):
            # A user without a home folder gets one that begins with "~".
            _path = folder() / name if folder().is_absolute() else None
        _arguments, _began = list(arguments), time.monotonic()


def stop() -> None:
    """Later notes go nowhere."""
    global _path
    with _lock:
        _path = None


def path() -> Path | None:
    """The log of the running command if it has been written, else None."""
    with _lock:
        return _path if _path is not None and _path.exists() else None


def note(text: str) -> None:
    """Append `text`; without an open log nothing happens. Safe from any thread."""
    global _path
    with _lock:
        if _path is None:
            return
        try:
            new = not _path.exists()
            if new:
                _path.parent.mkdir(parents=True, exist_ok=True)
                _prune(_path.parent)
            stamped = f"[{time.monotonic() - _began:8.2f} s] {text.rstrip()}\n"
            _append(_path, (_header() if new else "") + _CREDENTIALS.sub("***", stamped))
        except OSError:
            _path = None


def process(command: Sequence[str], code: int, output: str, seconds: float | None = None) -> None:
    """Note a finished process: its command line, exit code and output."""
    if code == 0 and len(output) > _OUTPUT_KEPT:
        left_out = len(output) - _OUTPUT_KEPT
        output = f"{output[:_OUTPUT_KEPT]}\n[{left_out} more characters of a successful command]"
    took = "" if seconds is None else f" ({seconds:.2f} s)"
    note(f"$ {shlex.join(command)}\nexit code {code}{took}\n{output}".rstrip())


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """subprocess.run with text captured and noted, no input, and no error for a failure."""
    interrupt.check()
    began = time.monotonic()
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        **options,
    )
    process(command, done.returncode, done.stdout + done.stderr, time.monotonic() - began)
    return done


def follow(
    command: Sequence[str], line: Callable[[str], bool], **options: Any
) -> subprocess.CompletedProcess[str]:
    """Like run, with both outputs in one, and `line` called with each line as it comes; what it
    returns says whether the line is worth keeping. Stopped with the command."""
    interrupt.check()
    began = time.monotonic()
    kept: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        **options,
    ) as running:
        assert running.stdout is not None
        try:
            kept.extend(text for text in running.stdout if line(text))
        except BaseException:
            running.terminate()
            process(command, -1, "".join(kept), time.monotonic() - began)
            raise
    output = "".join(kept)
    process(command, running.returncode, output, time.monotonic() - began)
    return subprocess.CompletedProcess(command, running.returncode, output, "")


def _header() -> str:
    line = _CREDENTIALS.sub("***", shlex.join(["lmsbuild", *_arguments]))
    variables = "".join(
        f"{name}={value}\n"
        for name, value in sorted(os.environ.items())
        if name.startswith("LMSBUILD_")
    )
    return (
        f"{line}\nin {_cwd()}\nlmsbuild {__version__}, Python {platform.python_version()} "
        f"({sys.executable}), {_machine()}\n{variables}"
    )


def _machine() -> str:
    """Not platform.platform(), which runs `uname -p`."""
    of = os.uname()
    return f"{of.sysname}-{of.release}-{of.machine}"


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "a folder that is gone"


def _append(file: Path, text: str) -> None:
    # Only the user may read it: a command line may tell more than others should know.
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(text)


def _prune(logs: Path) -> None:
    """Leave room for one more log. The log of a long command is old by name, not by its last line;
    others may prune at the same time."""
    with contextlib.suppress(FileNotFoundError):
        old = sorted(logs.glob("*.log"), key=lambda file: file.stat().st_mtime_ns)
        for file in old[: max(0, len(old) - KEPT + 1)]:
            file.unlink(missing_ok=True)
