# SPDX-License-Identifier: Apache-2.0
"""Another version of git than this machine's: Debian's packages, unpacked into a folder.

They run with their own C library, so it need not fit the machine's.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from lmsbuild.base.errors import SourceError
from lmsbuild.checkout import debian

_PACKAGES = ("git", "libc6", "libpcre2-8-0", "zlib1g")


class _BinaryApt(debian.PrivateApt):
    """apt for binary packages."""

    def __init__(self, folder: Path, archive: debian.Archive, suite: str) -> None:
        super().__init__(folder, archive, suite)
        sources = folder / "sources.list"
        sources.write_text(sources.read_text().replace("deb-src", "deb"))


def install(folder: Path, suite: str) -> Path:
    """A folder for PATH whose `git` is that of the Debian release `suite`. Raises SourceError."""
    archive = debian.main_archive(debian.codename() or "")
    if archive is None:
        raise SourceError("no other git can be had because this is not Debian; skip the test")
    state, root, path = folder / "apt", folder / "root", folder / "bin"
    state.mkdir(parents=True)
    path.mkdir()
    apt = _BinaryApt(state, archive, suite)
    apt.run("apt-get", "update", cwd=folder)
    apt.run("apt-get", "download", *_PACKAGES, cwd=folder)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    libraries = [found for found in root.rglob("*-linux-gnu") if found.is_dir()]
    # Not the one in lib64, a link that leads out of `root`.
    loader = next(file for folder in libraries for file in folder.glob("ld-linux*.so.2"))
    joined = ":".join(str(found) for found in libraries)
    script = path / "git"
    script.write_text(
        f'#!/bin/sh\nGIT_EXEC_PATH="{path}" exec "{loader}" --library-path "{joined}" '
        f'"{root}/usr/bin/git" "$@"\n'
    )
    script.chmod(0o755)
    return path


def version(path: Path) -> str:
    """What the `git` in the folder `path` says it is."""
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    return subprocess.check_output(["git", "--version"], env=env, text=True).split()[2]
