# SPDX-License-Identifier: Apache-2.0
"""Which file of lms/ is which file of a framework."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from lmsbuild.base.errors import ConfigError
from lmsbuild.base.filenames import check_regular, file_name
from lmsbuild.tags.frameworks import Layout, Target


def runtime_files(target: Target) -> dict[str, Path]:
    """Path in the framework -> file below lms/. Raises ConfigError when two map to one path."""
    return files_of(target, target.framework.layout)


def files_of(target: Target, layout: Sequence[Layout]) -> dict[str, Path]:
    """Path in a tree of this `layout` -> file below lms/. Raises as `runtime_files`."""
    found: dict[str, Path] = {}
    root = target.project.root
    for entry in layout:
        folder = root / entry.source
        for pattern in entry.patterns:
            files = [file for file in sorted(folder.glob(pattern)) if not file.is_dir()]
            if not files:
                raise ConfigError(
                    f"the layout of {target.framework_name} is wrong because {entry.source} has no "
                    f"file {pattern}; correct `layout` in {target.framework_file}, or check out "
                    "the whole project"
                )
            for file in files:
                check_own(root, file)
                path = str(PurePosixPath(entry.target) / file.relative_to(folder).as_posix())
                if found.setdefault(path, file) != file:
                    raise ConfigError(
                        f"the layout of {target.framework_name} is wrong because {found[path]} and "
                        f"{file} both go to {path}; correct `layout` in "
                        f"{target.framework_file}"
                    )
    return found


def check_own(root: Path, file: Path) -> None:
    """Raise ConfigError unless `file` is one of the project at `root`: what goes into a patch or a
    wheel must be no other file of the machine, to which a link may lead."""
    try:
        check_regular(file)
        file_name(os.fsencode(file.name).decode("utf-8"))
        if not file.resolve().is_relative_to(root.resolve()):
            raise ValueError("it is a link out of the project")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{file} cannot be taken as a source because {why}; remove it, or put the file there"
        ) from error


def licence_text(root: Path) -> bytes:
    """Of the project; b"" where it has none. Raises as `check_own`."""
    file = root / "LICENSE"
    if not file.exists():
        return b""
    check_own(root, file)
    return file.read_bytes()


def is_of(path: str, entry: Layout, pattern: str) -> bool:
    """Whether a file of the framework is one that this pattern of `entry` names."""
    pure = PurePosixPath(path)
    return pure.parent == PurePosixPath(entry.target) and fnmatch(pure.name, pattern)


def source_of(target: Target, path: str) -> str | None:
    """The path below the project's root that a file of the framework comes from, by its name.

    Upstream may have files of such names too, which are no runtime files.
    """
    pure = PurePosixPath(path)
    for entry in target.framework.layout:
        if any(is_of(path, entry, pattern) for pattern in entry.patterns):
            return f"{entry.source}/{pure.name}"
    return None
