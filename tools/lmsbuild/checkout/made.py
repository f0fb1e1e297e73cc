# SPDX-License-Identifier: Apache-2.0
"""Which patch files commits, or the files of lms/, were made into before.

To make them takes tens of processes, and most refreshes find them as they are. Commits and contents
are named by what they are, so what was made of them once is made of them again by the same tool and
git. Kept are digests alone: where they are those of the files on the disk, these are the result.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

import lmsbuild
from lmsbuild.base import strictjson
from lmsbuild.base.git import version
from lmsbuild.base.hashing import sha256_bytes, sha256_value, write_atomic
from lmsbuild.base.project import Project, make_folder
from lmsbuild.series.series import Patch, patch_files

_MOST = 64  # more are of commits that are gone; fewer, and tags take turns at being made anew


def key_of(*inputs: object) -> str:
    """Names what this tool makes of `inputs` with this git."""
    return sha256_value([_tool(), version(), *inputs])


@functools.cache
def _tool() -> str:
    folder = Path(lmsbuild.__file__).parent
    files = sorted(
        f for part in ("base", "series", "checkout") for f in (folder / part).rglob("*.py")
    )
    return sha256_value([sha256_bytes(file.read_bytes()) for file in files])


def known(project: Project, key: str, folder: Path) -> dict[str, bytes] | None:
    """The patch files in `folder`, name -> content, if they are what was made then."""
    recorded = _read(project).get(key)
    if recorded is None:
        return None
    found = {path.name: Patch(path).data for path in patch_files(folder)}
    return found if {name: sha256_bytes(data) for name, data in found.items()} == recorded else None


def note(project: Project, made: Mapping[str, Mapping[str, bytes]]) -> None:
    """What was made, by its key."""
    before = _read(project)
    new = {key: {n: sha256_bytes(data) for n, data in files.items()} for key, files in made.items()}
    kept = {**{key: files for key, files in before.items() if key not in new}, **new}
    if kept != before:
        make_folder(project.work)
        kept = dict(list(kept.items())[-_MOST:])
        write_atomic(_file(project), json.dumps(kept, indent=1).encode())


def _file(project: Project) -> Path:
    return project.work / ".made.json"


def _read(project: Project) -> dict[str, dict[str, str]]:
    return strictjson.record(_file(project))
