# SPDX-License-Identifier: Apache-2.0
"""Small real conda packages."""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard
from lmsbuild_world import write
from rattler_build import assemble_package

CONTENT = {"lib/demo.txt": "demo\n"}


def make(
    folder: Path, name: str = "demo", version: str = "1.0", build: str = "0",
    files: Mapping[str, str] = CONTENT, depends: Sequence[str] = (), subdir: str = "linux-64",
    number: int = 0, **more: Any,
) -> Path:  # fmt: skip
    """A package in `folder`/<subdir>."""
    place = folder / subdir
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as staged:
        write(Path(staged), dict(files))
        made = assemble_package(
            name, version, subdir, build, place, files_dir=staged, depends=list(depends),
            build_number=number, **more,
        )  # fmt: skip
    return Path(made.path)


def meta(folder: Path, name: str, depends: Sequence[str], **more: Any) -> Path:
    """A metapackage."""
    return make(folder, name, files={}, depends=depends, subdir="noarch", noarch="generic", **more)


def rewrite(path: Path, part: str, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change the members of the `info` or `pkg` part, as one who tampers would."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = f"{part}-{path.stem}.tar.zst"
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(members[name])).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        files = {m.name: stream.read() for m in tar if (stream := tar.extractfile(m)) is not None}
    change(files)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for file, content in files.items():
            entry = tarfile.TarInfo(file)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    members[name] = zstandard.compress(raw.getvalue())
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
