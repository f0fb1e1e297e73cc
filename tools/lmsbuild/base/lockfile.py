# SPDX-License-Identifier: Apache-2.0
"""A lock on a file that says why, where there can be none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock

from lmsbuild.base.errors import FileError


class Lock(FileLock):
    """filelock's, which tries for ever where no file can be made (below /proc), and says of a link
    that there are too many of them. Raises FileError."""

    def acquire(self, *args: Any, **more: Any) -> AcquireReturnProxy[FileLock]:
        while True:
            _check(Path(self.lock_file))
            held = super().acquire(*args, **more)
            if self._is_the_file():
                return held
            self.release()  # it was another's to remove, and a third may have the new one

    def remove(self) -> None:
        """The file too, by who holds it: nobody else takes what is no longer there for the lock."""
        Path(self.lock_file).unlink(missing_ok=True)

    def _is_the_file(self) -> bool:
        held = self._context.lock_file_fd
        assert held is not None
        try:
            return os.path.samestat(os.fstat(held), Path(self.lock_file).stat())
        except FileNotFoundError:
            return False


def _check(path: Path) -> None:
    if path.is_symlink():
        raise FileError(
            f"{path} cannot be used as a lock because it is a link (to {path.readlink()}); "
            "remove the link"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644))
    except FileNotFoundError as error:
        raise FileError(
            f"no lock can be made at {path} because {error.strerror}; use a folder that files can "
            "be made in"
        ) from error
