# SPDX-License-Identifier: Apache-2.0
"""Where things are: the project, its work folders and the user's cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from lmsbuild.base.errors import ConfigError, FileError

FRAMEWORK_FILE = "framework.toml"  # of each framework, in its folder of `patches`
# Filled by the build of the package (pyproject.toml), not there in a checkout.
PACKAGE_DATA = Path(__file__).resolve().parents[1] / "_project"
_MARKER = f"patches/<framework>/{FRAMEWORK_FILE}"


def full_path(path: str | Path) -> Path:
    """`path` from the root on, `~` being the user's home folder, be it given with an option or by
    a variable. A `~NAME` that is nobody's home is a folder of that name."""
    return Path(os.path.expanduser(path)).absolute()  # noqa: PTH111  # which raises for such a one


@dataclass(frozen=True)
class Project:
    """The patches, the runtime's sources and the suites: a checkout of this repository, or what an
    installed lmsbuild carries of it."""

    root: Path

    @property
    def installed(self) -> bool:
        """Part of an installed package: to be read only."""
        return self.root == PACKAGE_DATA

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def framework_files(self) -> list[Path]:
        """One for each supported framework, by name; none where this is no project."""
        return sorted(self.patches.glob(f"*/{FRAMEWORK_FILE}"))

    @property
    def recipes(self) -> Path:
        """Templates of conda packages, and the table of what wheels are called in conda."""
        return self.root / "conda-recipes"

    @property
    def tools(self) -> Path:
        """The folder that simcuda can be imported from."""
        return self.root / "tools"

    @property
    def work(self) -> Path:
        """Checkouts, environments and builds: `work` in the checkout of the project, or in the
        current folder when lmsbuild is installed. LMSBUILD_WORK moves it to another disk."""
        override = os.environ.get("LMSBUILD_WORK")
        if override:
            return full_path(override)
        return (Path.cwd() if self.installed else self.root) / "work"


def find_project() -> Project:
    """LMSBUILD_ROOT, else the checkout that the user stands in, else the one that this package
    lies in, else what the installed package carries. Raises ConfigError."""
    override = os.environ.get("LMSBUILD_ROOT")
    if override:
        project = Project(full_path(override))
        if not project.framework_files:
            raise ConfigError(
                f"LMSBUILD_ROOT={project.root} cannot be used because it has no {_MARKER}; "
                "point it at a checkout of the project"
            )
        return project
    cwd = Path.cwd()
    for root in [cwd, *cwd.parents, *Path(__file__).resolve().parents, PACKAGE_DATA]:
        project = Project(root)
        if project.framework_files:
            return project
    raise ConfigError(
        f"the project was not found because neither a folder from {cwd} upwards nor lmsbuild "
        f"itself has {_MARKER}; set LMSBUILD_ROOT to a checkout of the project or install lmsbuild "
        "again"
    )


def cache_path() -> Path:
    """Where downloads and objects that can be had again go; LMSBUILD_CACHE overrides."""
    override = os.environ.get("LMSBUILD_CACHE")
    path = full_path(override) if override else platformdirs.user_cache_path("lmsbuild")
    if not path.is_absolute():
        raise FileError(
            "there is no cache folder because this user has no home folder; set LMSBUILD_CACHE to "
            "a folder that can be written"
        )
    return path


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


def make_folder(path: Path) -> None:
    """Make `path` if need be. Raises FileError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, FileExistsError) as error:
        raise FileError(
            f"the folder {path} cannot be made because {error.filename}: {error.strerror}; choose "
            "another place with --into or --output, or set LMSBUILD_WORK"
        ) from error
