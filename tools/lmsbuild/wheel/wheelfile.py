# SPDX-License-Identifier: Apache-2.0
"""Wheels: reading one, and writing a changed one without recompressing what stays.

A member that stays is copied byte for byte in its compressed form, so rewriting costs what the
disk costs.
"""

from __future__ import annotations

import base64
import copy
import csv
import hashlib
import io
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import IO

from packaging.utils import canonicalize_name

from lmsbuild.base.errors import WheelError
from lmsbuild.base.filenames import inner_path

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
# What packages write for licences, in small letters -> SPDX.
_SPDX = {
    "apache 2.0": "Apache-2.0", "apache-2": "Apache-2.0", "apache license 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0", "apache software license": "Apache-2.0",
    "bsd 3-clause": "BSD-3-Clause", "bsd-3": "BSD-3-Clause", "3-clause bsd license": "BSD-3-Clause",
    "mit license": "MIT", "mpl 2.0": "MPL-2.0", "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0", "psf": "PSF-2.0",
    "isc license (iscl)": "ISC", "nvidia proprietary software": "LicenseRef-NVIDIA-Proprietary",
    "other/proprietary license": "LicenseRef-Proprietary",
}  # fmt: skip
_EPOCH = (1980, 1, 1, 0, 0, 0)
_COPY = 1 << 24
_DATA_DESCRIPTOR = 0x08
# RuntimeError: it is encrypted, or compressed in a way that zipfile does not know.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, struct.error)


@contextmanager
def _sound(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except _DAMAGE as error:
        raise WheelError(
            f"{path} cannot be used because it is damaged ({error}); remove it and run again",
            file=path,
        ) from error


@dataclass(frozen=True)
class WheelName:
    """The parts of a wheel's file name."""

    project: str
    version: str
    python: str
    abi: str
    platform: str
    build: str = ""  # of several wheels of one version the one with the highest counts

    @classmethod
    def of(cls, path: Path) -> WheelName:
        parts = path.stem.split("-")
        build = parts.pop(2) if len(parts) == 6 and parts[2][:1].isdigit() else ""
        if path.suffix != ".whl" or len(parts) != 5:
            raise WheelError(
                f"{path.name} cannot be used because it is no wheel's name; give a wheel"
            )
        project, version, python, abi, platform = parts
        return cls(project, version, python, abi, platform, build)

    def __str__(self) -> str:
        version = (self.version, self.build) if self.build else (self.version,)
        return "-".join((self.project, *version, self.python, self.abi, self.platform)) + ".whl"

    def is_of(self, project: str, version: str) -> bool:
        """Whether it is of this project, whose name may be written in another way."""
        same = canonicalize_name(self.project) == canonicalize_name(project)
        return same and self.version == version

    @property
    def dist_info(self) -> str:
        return f"{self.project}-{self.version}.dist-info"

    @property
    def data(self) -> str:
        """The folder of what is installed elsewhere than the rest."""
        return f"{self.project}-{self.version}.data"


def why_not(path: Path, project: str, version: str, python: str, machine: str) -> str:
    """Why it is not the wheel of `project` for this CPython and machine, "" if it is. Raises
    WheelError for a damaged one."""
    name = WheelName.of(path)
    names(path)  # WheelError for what is no archive
    abi = f"cp{python.replace('.', '')}"
    if not name.is_of(project, version):
        return f"it is {name.project} {name.version}, not {project} {version}"
    if name.platform != "any" and not name.platform.endswith(f"_{machine}"):
        return f"it is for {name.platform}, not {machine}"
    if name.python.startswith("py3"):  # every one
        return ""
    return "" if name.abi.rstrip("m") == abi else f"it is for {name.abi}, not {abi}"


def names(path: Path) -> list[str]:
    with _sound(path) as archive:
        return archive.namelist()


def is_whole(path: Path) -> bool:
    """Whether all members are what was written, as their checksums tell."""
    try:
        with _sound(path) as archive:
            return archive.testzip() is None
    except WheelError:
        return False


def read(path: Path, member: str) -> bytes:
    with _sound(path) as archive:
        return archive.read(member)


def _metadata(path: Path) -> Message:
    text = read(path, f"{WheelName.of(path).dist_info}/METADATA").decode()
    return HeaderParser().parsestr(text)


def requirements(path: Path) -> list[str]:
    """The Requires-Dist entries."""
    return _metadata(path).get_all("Requires-Dist") or []


def licence(path: Path) -> str:
    """The licence that the wheel says it has, as SPDX names it where it is a known one; "" where it
    says none in one line."""
    return licence_of(_metadata(path))


def licence_of(about: Message) -> str:
    """The same of the metadata of a package."""
    said = str(about["License-Expression"] or about["License"] or "").strip()
    if not said or "\n" in said:
        classes = [str(each).split(" :: ") for each in about.get_all("Classifier") or []]
        said = " AND ".join(_spdx(c[-1]) for c in classes if c[0] == "License" and len(c) > 2)
    return _spdx(said)


def _spdx(said: str) -> str:
    return _SPDX.get(re.sub(r"[\s,]+", " ", said).lower().removeprefix("the "), said)


def extract(path: Path, members: list[str], folder: Path) -> None:
    """Unpack `members` below `folder`."""
    with _sound(path) as archive:
        for member in members:
            _extract(archive, archive.getinfo(member), folder)


def unpack(path: Path, folder: Path) -> None:
    """Unpack everything below `folder`, with the modes of executables."""
    with _sound(path) as archive:
        for info in archive.infolist():
            file = _extract(archive, info, folder)
            if not info.is_dir() and info.external_attr >> 16 & 0o100:
                file.chmod(0o755)


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> Path:
    try:
        inner_path(member.filename.removesuffix("/"))
    except ValueError as error:
        raise zipfile.BadZipFile(f"of its members, {error}") from error
    return Path(archive.extract(member, folder))


def extract_one(path: Path, member: str, to: Path) -> None:
    with _sound(path) as archive, archive.open(member) as source, to.open("wb") as out:
        shutil.copyfileobj(source, out, _COPY)


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def repack(
    original: Path,
    to: Path,
    changed: Mapping[str, bytes],
    removed: frozenset[str] = frozenset(),
) -> None:
    """Write `original` to `to` with some members changed, added or removed, and a new RECORD.

    Names in `changed` are those in the new wheel. The dist-info and data folders take the version
    in `to`'s name. Same inputs give the same bytes. Raises WheelError for a damaged wheel.
    """
    old, new = WheelName.of(original), WheelName.of(to)

    def renamed(name: str) -> str:
        folder, slash, rest = name.partition("/")
        folders = {old.dist_info: new.dist_info, old.data: new.data}
        return f"{folders.get(folder, folder)}{slash}{rest}"

    record_name = f"{new.dist_info}/RECORD"
    record: dict[str, tuple[str, str]] = {}
    fresh = to.with_name(f".{to.name}.new")
    try:
        with _sound(original) as source, original.open("rb") as raw:
            for row in csv.reader(io.StringIO(source.read(f"{old.dist_info}/RECORD").decode())):
                record[renamed(row[0])] = (row[1], row[2])
            with zipfile.ZipFile(fresh, "w") as out:
                written = set()
                for info in source.infolist():
                    name = renamed(info.filename)
                    written.add(name)
                    if name == record_name or name in removed:
                        record.pop(name, None)
                    elif name in changed:
                        record[name] = _write(out, name, changed[name], info.external_attr)
                    else:
                        _copy_member(raw, info, out, name)
                for name in sorted(set(changed) - written):
                    record[name] = _write(out, name, changed[name], _mode(name))
                _write_record(out, record_name, record)
        fresh.replace(to)
    finally:
        fresh.unlink(missing_ok=True)


def create(to: Path, members: Mapping[str, bytes]) -> None:
    """Write a wheel with these members and their RECORD. Same inputs give the same bytes."""
    record_name = f"{WheelName.of(to).dist_info}/RECORD"
    fresh = to.with_name(f".{to.name}.new")
    try:
        with zipfile.ZipFile(fresh, "w") as out:
            record = {
                name: _write(out, name, members[name], _mode(name)) for name in sorted(members)
            }
            _write_record(out, record_name, record)
        fresh.replace(to)
    finally:
        fresh.unlink(missing_ok=True)


def _write_record(
    out: zipfile.ZipFile, record_name: str, record: Mapping[str, tuple[str, str]]
) -> None:
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerows([name, *entry] for name, entry in record.items())
    writer.writerow([record_name, "", ""])
    _write(out, record_name, rows.getvalue().encode(), _mode(record_name))


def _mode(name: str) -> int:
    return (0o100755 if ".so" in name.rsplit("/", 1)[-1] else 0o100644) << 16


def _write(out: zipfile.ZipFile, name: str, content: bytes, external_attr: int) -> tuple[str, str]:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = external_attr
    # Not compressed: different builds of zlib give different bytes.
    info.compress_type = zipfile.ZIP_STORED
    out.writestr(info, content)
    return _record_hash(content), str(len(content))


def _copy_member(raw: IO[bytes], info: zipfile.ZipInfo, out: zipfile.ZipFile, name: str) -> None:
    """Copy one member's compressed bytes.

    zipfile has no call for it; the attributes used here are those its own writer sets.
    """
    raw.seek(info.header_offset)
    header = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    raw.seek(header[9] + header[10], io.SEEK_CUR)
    copied = copy.copy(info)
    copied.filename = copied.orig_filename = name
    copied.extra = b""
    copied.flag_bits &= ~_DATA_DESCRIPTOR
    assert out.fp is not None
    copied.header_offset = out.fp.tell()
    out.fp.write(copied.FileHeader(zip64=None))
    left = info.compress_size
    while left:
        chunk = raw.read(min(left, _COPY))
        if not chunk:
            raise EOFError(f"{info.filename} ends early")
        out.fp.write(chunk)
        left -= len(chunk)
    out.filelist.append(copied)
    out.NameToInfo[name] = copied
    out.start_dir = out.fp.tell()
    out._didModify = True  # type: ignore[attr-defined]
