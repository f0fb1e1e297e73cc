# SPDX-License-Identifier: Apache-2.0
"""What is written where a user says: told before the work that it cannot be, and ended when it
cannot go on."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from pathlib import Path

from lmsbuild.base.errors import FileError
from lmsbuild.base.hashing import write_atomic

_PATIENCE = 5.0  # seconds that a FIFO's reader may take to come
_LOOK = 0.05


def check_folder(path: Path) -> None:
    """Raise FileError unless files can be made in `path`, or in the nearest folder above it that is
    there, which it would be made in."""
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        what = "is no folder" if there == path else f"lies below {there}, which is no folder"
        raise FileError(f"nothing can be written to {path} because it {what}; name another place")
    try:
        # Permissions do not tell all: root may write anywhere but on what cannot be written.
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise FileError(
            f"nothing can be written to {path} because no file can be made in {there} "
            f"({error.strerror}); name another place"
        ) from error


def check_file(path: Path) -> None:
    """Raise FileError unless a file can be made at `path`, or one that is there be written."""
    if path.is_dir():
        raise FileError(f"{path} cannot be written because it is a folder; name a file")
    # Not of what `path` leads to, which may have no name, as the pipe of a shell's `>(...)`.
    if not path.exists() or path.is_file():  # which is replaced: its folder must allow that
        check_folder(Path(os.path.realpath(path)).parent)


def write_output(path: Path, content: bytes) -> None:
    """Write where a user says: a link's target, a FIFO or a device as it is, else write_atomic.

    Raises OSError."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        regular = True
    if regular:
        write_atomic(Path(os.path.realpath(path)), content)
    else:
        with open(_opened(path), "wb") as stream:  # of a descriptor
            stream.write(content)


def _opened(path: Path) -> int:
    """A descriptor to write to. A FIFO that nobody comes to read is an error: to open it as usual
    would wait for ever."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            found = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.set_blocking(found, True)
            return found
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "no program reads that pipe", str(path)) from error
        time.sleep(_LOOK)
