# SPDX-License-Identifier: Apache-2.0
"""The switch from the old wheel in a folder to the new one: one rename decides.

What a killed run left there is finished or removed by the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import Timeout

from lmsbuild import __version__
from lmsbuild.base import strictjson
from lmsbuild.base.filenames import check_regular, file_name
from lmsbuild.base.hashing import sha256_large_file, sha256_value
from lmsbuild.base.lockfile import Lock
from lmsbuild.series.series import Series
from lmsbuild.tags.download import hash_memory
from lmsbuild.tags.frameworks import Target

SCHEMA = 2  # of the manifest of an overlay wheel
BESIDE = ".manifest.json"
BUILDING = ".build-"
_READY = ".ready"


def of_series(target: Target, series: Series) -> dict[str, object]:
    """What the manifest of an overlay wheel says of the series that it is made of."""
    return {
        "schema": SCHEMA,
        "tag": target.label,
        "commit": target.tag.commit,
        "lmsbuild": __version__,
        "patches": {patch.name: patch.sha256 for patch in series.patches},
        "overlay": sha256_value(target.tag.overlay.model_dump(mode="json")),
    }


def published(
    output: Path, made_of: Mapping[str, object], *, dry_run: bool = False
) -> Iterator[tuple[Path, Path, dict[str, Any]]]:
    """Whole wheels in `output` whose manifests say `made_of`: each with its manifest's file and
    content."""
    for note in sorted(output.glob(f"*{BESIDE}")):
        try:
            check_regular(note)
            manifest = strictjson.loads(note.read_text(encoding="utf-8"))
            about = manifest["wheel"]
            wheel = output / file_name(about["name"])
            same = all(manifest[name] == value for name, value in made_of.items())
            if not (same and wheel.is_file()):
                continue
            digest = sha256_large_file(wheel, hash_memory(), remember=not dry_run)
            if digest != about["sha256"]:
                continue
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield wheel, note, manifest


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
        with Lock(output / ".lock", timeout=0):
            if not dry_run:
                tidy(output)
            return True
    except Timeout:
        return False
