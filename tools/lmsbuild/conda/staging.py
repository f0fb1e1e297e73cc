# SPDX-License-Identifier: Apache-2.0
"""A wheel's files as they are to lie below a prefix, as pip would install them but for what names
the prefix: scripts find their Python beside themselves, so that the files are the same anywhere."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import os
import re
import shutil
import stat
from collections.abc import Collection
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from lmsbuild.base import log
from lmsbuild.base.errors import CompileError, WheelError
from lmsbuild.base.filenames import file_name
from lmsbuild.base.hashing import sha256_file
from lmsbuild.wheel import elf, wheelfile
from lmsbuild.wheel.elf import Library
from lmsbuild.wheel.toolchain import patchelf
from lmsbuild.wheel.wheelfile import WheelName

TIME = 315532800  # 1980: files carry no time of the build
_MAGIC = b"\x7fELF"
_CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(\s*\[[^\]]*\])?\Z")
_SCRIPT = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
import sys
from {module} import {name}
sys.exit({call}())
"""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """Files below `root`; `files` are their SHA-256 by path."""

    root: Path
    site: str  # site-packages, below the root
    dist_info: str
    files: dict[str, str]
    libraries: dict[str, Library]  # by path
    licences: list[str]
    requirements: list[str]
    entry_points: list[str]  # NAME = MODULE:FUNCTION

    @property
    def sonames(self) -> set[str]:
        """What other libraries can need of these."""
        return {PurePosixPath(path).name for path in self.libraries} | {
            library.soname for library in self.libraries.values()
        }

    def with_rpath_to_prefix(self, brought: Collection[str]) -> Staged:
        """The libraries that need one of `brought`, which lie in the prefix's `lib`, look there
        too, last."""
        changed = []
        for path, library in self.libraries.items():
            foreign = [n for n in library.needed if n in brought and n not in self.sonames]
            if foreign:
                up = os.path.relpath("lib", PurePosixPath(path).parent)
                entry = f"$ORIGIN/{up}"
                rpath = f"{library.rpath}:{entry}" if library.rpath else entry
                kind = [] if library.is_runpath else ["--force-rpath"]
                _patchelf(*kind, "--set-rpath", rpath, str(self.root / path))
                changed.append(path)
        if not changed:
            return self
        files = dict(self.files)
        libraries = dict(self.libraries)
        for path in changed:
            libraries[path] = elf.read(self.root / path)
            files[path] = sha256_file(self.root / path)
        record = f"{self.site}/{self.dist_info}/RECORD"
        _rewrite_record(self.root, self.site, record, changed)
        files[record] = sha256_file(self.root / record)
        _settle(self.root)
        return replace(self, files=files, libraries=libraries)


def stage(wheel: Path, root: Path, site: str) -> Staged:
    """Unpack `wheel` below `root`, its modules in `site`. Raises WheelError for a bad wheel."""
    info = WheelName.of(wheel).dist_info
    place = root / site
    place.mkdir(parents=True)
    wheelfile.unpack(wheel, place)
    for name in ("METADATA", "RECORD", "WHEEL"):
        if not (place / info / name).is_file():
            raise WheelError(
                f"{wheel.name} cannot be used because it has no {info}/{name}; get it again",
                file=wheel,
            )
    _check_record(wheel, place, info)
    _spread(place, info, root)
    # Some wheels name scripts of what they require: these come with that package.
    points = [
        point
        for point in _entry_points(wheel, place / info / "entry_points.txt")
        if list(place.glob(f"{point.partition(' = ')[2].split('.')[0].split(':')[0]}*"))
    ]
    for point in points if site != "site-packages" else []:
        _write_script(root / "bin", point)
    (place / info / "INSTALLER").write_text("conda\n", encoding="utf-8")
    _rewrite_record(root, site, f"{site}/{info}/RECORD", [f"{site}/{info}/INSTALLER"])
    _settle(root)
    paths = sorted(p for p in root.rglob("*") if p.is_file() or p.is_symlink())
    names = [path.relative_to(root).as_posix() for path in paths]
    libraries = {
        name: elf.read(path)
        for name, path in zip(names, paths, strict=True)
        if not path.is_symlink() and _is_library(path)
    }
    text = (place / info / "METADATA").read_text(encoding="utf-8")
    about = HeaderParser().parsestr(text)
    return Staged(
        root=root, site=site, dist_info=info,
        files={name: sha256_file(path) for name, path in zip(names, paths, strict=True)},
        libraries=libraries, licences=[n for n in names if _is_licence(n, f"{site}/{info}/")],
        requirements=about.get_all("Requires-Dist") or [], entry_points=points,
    )  # fmt: skip


def _check_record(wheel: Path, place: Path, info: str) -> None:
    """Every file is as RECORD says, and RECORD names every file."""
    rows = list(csv.reader(io.StringIO((place / info / "RECORD").read_text(encoding="utf-8"))))
    known = {row[0]: row[1] for row in rows if row}
    for path in place.rglob("*"):
        name = path.relative_to(place).as_posix()
        if path.is_dir() or name == f"{info}/RECORD":
            continue
        if known.get(name) != _hash(path):
            raise WheelError(
                f"{wheel.name} cannot be used because {name} in it is not as its RECORD says; get "
                "the wheel again",
                file=wheel,
            )
    missing = [name for name in known if not (place / name).exists()]
    if missing:
        raise WheelError(
            f"{wheel.name} cannot be used because {missing[0]} of its RECORD is not in it; get the "
            "wheel again",
            file=wheel,
        )


def _spread(place: Path, info: str, root: Path) -> None:
    """Files of the wheel's .data folder go where they belong."""
    data = place / info.replace(".dist-info", ".data")
    to = {"purelib": place, "platlib": place, "scripts": root / "bin", "data": root}
    for part, target in to.items():
        for path in sorted((data / part).rglob("*")):
            if path.is_file():
                fresh = target / path.relative_to(data / part)
                fresh.parent.mkdir(parents=True, exist_ok=True)
                path.replace(fresh)
    shutil.rmtree(data, ignore_errors=True)


def _entry_points(wheel: Path, path: Path) -> list[str]:
    """NAME = MODULE:FUNCTION of each script. Raises WheelError for what is none."""
    parser = configparser.ConfigParser(delimiters="=", interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    try:
        if path.is_file():
            parser.read_string(path.read_text(encoding="utf-8"))
        if not parser.has_section("console_scripts"):
            return []
        found = parser.items("console_scripts")
        for name, value in found:
            file_name(name)
            if not _CALL.match(value):
                raise ValueError(f"{name} calls {value!r}, which is no MODULE:FUNCTION")
    except (configparser.Error, ValueError) as error:
        raise WheelError(
            f"{wheel.name} cannot be used because its script {error}; get the wheel again",
            file=wheel,
        ) from error
    # An extra that a script is for (`module:function [extra]`) is no part of the call.
    return [f"{name} = {value.partition('[')[0].strip()}" for name, value in found]


def _write_script(folder: Path, point: str) -> None:
    name, _, where = point.partition(" = ")
    module, _, call = where.partition(":")
    folder.mkdir(exist_ok=True)
    text = _SCRIPT.format(module=module, name=call.split(".")[0], call=call)
    (folder / name).write_text(text, encoding="utf-8")
    (folder / name).chmod(0o755)


def _is_library(path: Path) -> bool:
    if ".so" not in path.name:
        return False
    with path.open("rb") as stream:
        return stream.read(4) == _MAGIC


def _is_licence(name: str, info: str) -> bool:
    words = ("LICEN", "COPYING", "NOTICE")
    return name.startswith(info) and PurePosixPath(name).name.upper().startswith(words)


def _patchelf(*arguments: str) -> None:
    done = log.run([patchelf(), *arguments])
    if done.returncode != 0:
        raise CompileError(
            f"{arguments[-1]} cannot be packaged because patchelf says: {done.stderr.strip()}; "
            "check the disk",
            output=done.stderr,
        )


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return f"sha256={base64.urlsafe_b64encode(digest.digest()).rstrip(b'=').decode()}"


def _rewrite_record(root: Path, site: str, record: str, changed: Collection[str]) -> None:
    """RECORD with the changed and added files as they are, without those that went elsewhere."""
    path = root / record
    rows = {row[0]: row for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8"))) if row}
    for name in changed:
        short = os.path.relpath(name, site)
        rows[short] = [short, _hash(root / name), str((root / name).stat().st_size)]
    kept = [row for row in rows.values() if (root / site / row[0]).exists()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(kept)
    path.write_text(text.getvalue(), encoding="utf-8")


def _settle(root: Path) -> None:
    for path in root.rglob("*"):
        if not path.is_symlink() and path.is_file():
            mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
            path.chmod(mode)
            os.utime(path, (TIME, TIME))
