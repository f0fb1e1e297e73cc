# SPDX-License-Identifier: Apache-2.0
"""Folders in use: who works in one holds it, shared, until its process ends; who would remove what
is in it must have it alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_MARK = ".used"  # in the folder; stays, so that all lock the same file

_lock = threading.Lock()
_held: dict[Path, int] = {}


def hold(folder: Path) -> None:
    """Have nobody remove what is in `folder` until this process ends; waits for who does just
    now."""
    with _lock:
        if folder not in _held:
            handle = _opened(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_SH)
            _held[folder] = handle


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Whether nobody holds `folder`; then nobody does before the end."""
    handle = _opened(folder, os.O_RDWR)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def let_go() -> None:
    """Hold nothing any longer: for a process that goes on after its command."""
    with _lock:
        while _held:
            os.close(_held.popitem()[1])


def _opened(folder: Path, how: int) -> int:
    return os.open(folder / _MARK, how | os.O_CREAT | os.O_CLOEXEC, 0o644)
