# SPDX-License-Identifier: Apache-2.0
"""Where things are: the project checkout, its work folders and the user's cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from lmsbuild.errors import ConfigError, FileError

MARKER = Path("patches") / "frameworks.toml"


@dataclass(frozen=True)
class Project:
    """A checkout of this repository."""

    root: Path

    @property
    def frameworks_file(self) -> Path:
        return self.root / MARKER

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def work(self) -> Path:
        """Checkouts, environments and builds; LMSBUILD_WORK moves it to another disk."""
        override = os.environ.get("LMSBUILD_WORK")
        return Path(override).expanduser().absolute() if override else self.root / "work"


def find_project() -> Project:
    """LMSBUILD_ROOT, else the checkout this package lies in, else the one the user stands in."""
    override = os.environ.get("LMSBUILD_ROOT")
    if override:
        root = Path(override).expanduser().absolute()
        if not (root / MARKER).is_file():
            raise ConfigError(
                f"LMSBUILD_ROOT={root} cannot be used because it has no {MARKER}; "
                "point it at a checkout of the project"
            )
        return Project(root)
    cwd = Path.cwd()
    for root in [*Path(__file__).resolve().parents, cwd, *cwd.parents]:
        if (root / MARKER).is_file():
            return Project(root)
    raise ConfigError(
        f"the project was not found because no folder from {cwd} upwards has {MARKER}; "
        "run inside a checkout of the project or set LMSBUILD_ROOT"
    )


def cache_path() -> Path:
    """Where downloads and objects that can be had again go; LMSBUILD_CACHE overrides."""
    override = os.environ.get("LMSBUILD_CACHE")
    path = Path(override).expanduser() if override else platformdirs.user_cache_path("lmsbuild")
    if not override and not path.is_absolute():
        raise FileError(
            "there is no cache folder because this user has no home folder; set LMSBUILD_CACHE to "
            "a folder that can be written"
        )
    return path.absolute()


def cache_dir() -> Path:
    """cache_path, made if need be. Raises FileError."""
    path = cache_path()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"the cache folder {path} cannot be made because {error.strerror}; set LMSBUILD_CACHE "
            "to a folder that can be written"
        ) from error
    return path
