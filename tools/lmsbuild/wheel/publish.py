# SPDX-License-Identifier: Apache-2.0
"""The switch from the old wheel in a folder to the new one: one rename decides.

What a killed run left there is finished or removed by the next one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from filelock import FileLock, Timeout

BESIDE = ".manifest.json"
BUILDING = ".build-"
_READY = ".ready"


def publish(output: Path, folder: Path) -> None:
    """Move the files of `folder` to `output`: the one rename decides whether they are there."""
    folder.rename(output / _READY)
    tidy(output)


def tidy(output: Path) -> None:
    """What a killed run left: files that were ready go to their place, unfinished ones go.

    For who holds the lock of `output`.
    """
    ready = output / _READY
    if ready.is_dir():
        for file in sorted(ready.iterdir()):
            file.replace(output / file.name)
        ready.rmdir()
    for folder in leftovers(output):
        shutil.rmtree(folder)


def leftovers(output: Path) -> list[Path]:
    """Folders of runs that were killed; who holds the lock of `output` may remove them."""
    return sorted(output.glob(f"{BUILDING}*"))


def abandon(output: Path, *, dry_run: bool = False) -> bool:
    """Tidy after a build that was killed; False when there was none, or one is at work."""
    if not leftovers(output) and not (output / _READY).exists():
        return False
    try:
        with FileLock(output / ".lock", timeout=0):
            if not dry_run:
                tidy(output)
            return True
    except Timeout:
        return False
