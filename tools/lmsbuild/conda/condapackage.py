# SPDX-License-Identifier: Apache-2.0
"""A `.conda` file: what it says of itself, whether that is true, and its normal form.

The format is a zip of two tar.zst, `info-*` (metadata) and `pkg-*` (the files).
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import posixpath
import re
import shutil
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import zstandard
from rattler import MatchSpec, PackageRecord, Version
from rattler.exceptions import InvalidMatchSpecError, InvalidVersionError

from lmsbuild.base import filenames, strictjson
from lmsbuild.base.errors import FileError, PackageError, SubdirError
from lmsbuild.base.filenames import inner_path

SUFFIX = ".conda"
SUBDIRS = ("linux-64", "linux-aarch64", "linux-ppc64le", "noarch")
_CHUNK = 1 << 20
_END = struct.Struct("<4s4H2LH")  # a zip's last record, without its comment
_END_MARK = b"PK\x05\x06"
_HEADER = struct.Struct("<4s5H3L2H")  # before each entry
_LONG = struct.Struct("<2H2Q")  # where sizes of 64 bits stand instead
_LONG_MARK, _LONG_SIZES = (1, 16), 0xFFFFFFFF
_LITTLE = 1 << 20  # bytes of a disk that is as good as full
_WORDS = {
    "name": re.compile(r"[a-z0-9_][a-z0-9_.-]*\Z"),
    "version": re.compile(r"[a-z0-9_.+!]+\Z"),
    "build": re.compile(r"[A-Za-z0-9_.+]+\Z"),
}
_FORM = "metadata.json"
_PART = re.compile(r"(info|pkg)-[^/]+\.tar\.zst\Z")
_ENCRYPTED = 1  # of a zip entry's flags
_TYPES = ("hardlink", "softlink", "directory")
_MOST_INFO = 1 << 28  # bytes: it is held in memory
_LEVEL = 5  # of zstd: 19 takes half an hour for a framework and saves a tenth
_DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zstandard.ZstdError, EOFError, KeyError, ValueError,
    TypeError, AttributeError, RuntimeError, struct.error,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CondaPackage:
    """A package as its metadata names it; `files` are the paths below the prefix, sorted."""

    path: Path
    name: str
    version: str
    build: str
    build_number: int
    subdir: str
    depends: list[str]
    constrains: list[str]
    files: list[str]
    sha256: str
    bytes: int
    record: Mapping[str, Any] = field(repr=False, compare=False)  # of an index

    @property
    def label(self) -> str:
        return f"{self.name} {self.version} {self.build}"


def _told_nobody(_bytes: int) -> None:
    """For who wants to see no progress."""


@dataclass(frozen=True, kw_only=True)
class _Member:
    """What the archive has at a path: a file's SHA-256, or where a symbolic link leads."""

    sha256: str | None = None
    size: int | None = None
    link: str | None = None


def known_subdir(name: str) -> str:
    """`name` itself. Raises SubdirError for a platform that no package is made for."""
    if name not in SUBDIRS:
        raise SubdirError(
            f"{name or repr(name)} cannot be used because it is no subdir of this channel format "
            f"that packages are made for; name one of {', '.join(SUBDIRS)}",
            subdir=name,
        )
    return name


def check_regular(path: Path) -> None:
    """Raise PackageError for a FIFO or a device, of which reading may never end, a folder, and a
    link that leads nowhere. OSError for what is not there, or cannot be looked at."""
    why = ""
    try:
        filenames.check_regular(path)
    except ValueError as error:
        why = str(error)
    if path.is_dir():
        why = "it is no regular file"
    if why:
        raise PackageError(
            f"{path.name} cannot be used because {why}; remove it, and give the package",
            package=path.name,
        )


def inspect(
    path: Path, *, stubs: bool = False, progress: Callable[[int], None] = _told_nobody
) -> CondaPackage:
    """Read a package and check every byte of it against its own metadata.

    A package that brings no file is a stub unless it is a metapackage (`noarch: generic` with
    dependencies); `stubs` lets stubs pass, for TEST channels. `progress` is told of the bytes of
    the file that have been read since it was told last. Raises PackageError or SubdirError.
    """
    if path.suffix != SUFFIX:
        raise PackageError(
            f"{path.name} cannot be used because it is no {SUFFIX} file; give packages that "
            "`lmsbuild conda` or rattler-build made",
            package=path.name,
        )
    check_regular(path)
    with _sound(path):
        with zipfile.ZipFile(path) as archive:
            _check_ends(path, archive)
            _check_entries(archive)
            _check_headers(path, archive)
            info, entries = _info(archive), archive.namelist()
            index, paths = strictjson.loads(info["info/index.json"]), _paths(info)
            found = _payload(archive, progress)
        _check_paths(path, paths, found)
        check_words(index)
        record = _record(path, info["info/index.json"])
        package = CondaPackage(
            path=path,
            name=index["name"],
            version=index["version"],
            build=index["build"],
            build_number=index["build_number"],
            subdir=known_subdir(index["subdir"]),
            depends=list(index["depends"]),
            constrains=list(index.get("constrains", [])),
            files=sorted(paths),
            sha256=record["sha256"],
            bytes=record["size"],
            record=record,
        )
    if f"{package.name}-{package.version}-{package.build}" != path.stem:
        raise PackageError(
            f"{path.name} is not what its name says because inside it is {package.label}; give "
            "the file under its own name",
            package=path.name,
        )
    with _sound(path):
        for entry in entries:  # conda asks for them by the package's name
            if entry not in (_FORM, f"info-{path.stem}.tar.zst", f"pkg-{path.stem}.tar.zst"):
                raise ValueError(f"its entry {entry!r} is another package's")
    metapackage = index.get("noarch") == "generic" and package.depends
    if not package.files and not metapackage and not stubs:
        raise PackageError(
            f"{path.name} is a stub because it brings no file and is no metapackage; build it "
            "again, or keep it to a channel for tests (--stubs)",
            package=path.name,
        )
    return package


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error) or "it ends early"
        raise PackageError(
            f"{path.name} cannot be used because it is damaged ({detail}); get it again",
            package=path.name,
        ) from error


def _check_ends(path: Path, archive: zipfile.ZipFile) -> None:
    """Readers of zip look for its end from behind, and pass over what stands before or after."""
    count = len(archive.infolist())
    end = path.stat().st_size - len(archive.comment) - _END.size
    with path.open("rb") as stream:
        stream.seek(max(0, end))
        mark, *disks, here, whole, _, _, comment = _END.unpack(stream.read(_END.size))
    if mark != _END_MARK or comment != len(archive.comment):
        raise zipfile.BadZipFile("bytes follow its end")
    if (*disks, here, whole) != (0, 0, count, count):
        raise zipfile.BadZipFile("its end tells of other entries")
    if min((entry.header_offset for entry in archive.infolist()), default=0):
        raise zipfile.BadZipFile("bytes come before it")


def _check_headers(path: Path, archive: zipfile.ZipFile) -> None:
    """A client that unpacks while it downloads has the header before each entry, and not yet the
    list at the end: both must say the same, and nothing may lie between."""
    at = 0
    with path.open("rb") as stream:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
            stream.seek(at)
            _, _, flags, kind, _, _, crc, packed, plain, name, more = _HEADER.unpack(
                stream.read(_HEADER.size)
            )
            stream.seek(name, os.SEEK_CUR)
            if packed == plain == _LONG_SIZES:
                *mark, plain, packed = _LONG.unpack(stream.read(more)[: _LONG.size])
                if tuple(mark) != _LONG_MARK:
                    raise zipfile.BadZipFile(f"{entry.filename!r} has no size")
            said = (at, flags, kind, crc, packed, plain)
            if said != (
                entry.header_offset, entry.flag_bits, entry.compress_type, entry.CRC,
                entry.compress_size, entry.file_size,
            ):  # fmt: skip
                raise zipfile.BadZipFile(
                    f"the header of {entry.filename!r} is not as the list at its end has it"
                )
            at += _HEADER.size + name + more + packed
    if at != archive.start_dir:
        raise zipfile.BadZipFile("bytes lie between its entries and their list")


def _check_entries(archive: zipfile.ZipFile) -> None:
    """What a client unpacks is in the two parts; it reads entries as they lie there."""
    entries = archive.infolist()
    for entry in entries:
        if entry.filename != _FORM and not _PART.match(entry.filename):
            raise ValueError(f"its entry {entry.filename!r} is none of the format")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
            raise ValueError(f"its entry {entry.filename!r} is compressed or encrypted once more")
    if len({entry.filename for entry in entries}) != len(entries):
        raise ValueError("an entry is in it twice")
    if strictjson.loads(archive.read(_FORM)) != {"conda_pkg_format_version": 2}:
        raise ValueError(f"its {_FORM} is not that of format 2")


def _record(path: Path, index: bytes) -> dict[str, Any]:
    """What an index says of the package, as a client reads and writes it. Raises ValueError for
    what it does not read."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            sha256.update(chunk)
            md5.update(chunk)
        size = stream.tell()
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
        file = Path(folder) / "index.json"
        file.write_bytes(index)
        try:
            record = PackageRecord.from_index_json(
                file, size=size, sha256=sha256.hexdigest(), md5=md5.hexdigest()
            )
        except Exception as error:  # rattler has a class for each, below no common one
            raise ValueError(f"clients cannot read what it says of itself: {error}") from error
    found: dict[str, Any] = json.loads(record.to_json())
    return found


class _Counted:
    """A stream that says how much of it was read."""

    def __init__(self, stream: IO[bytes], progress: Callable[[int], None]) -> None:
        self._stream, self._progress = stream, progress

    def read(self, size: int = -1) -> bytes:
        found = self._stream.read(size)
        self._progress(len(found))
        return found


def _members(
    archive: zipfile.ZipFile, name: str, progress: Callable[[int], None] = _told_nobody
) -> Iterator[tuple[tarfile.TarInfo, Any]]:
    """Each member of a tar.zst with a stream of its content, in order."""
    with (
        archive.open(name) as packed,
        zstandard.ZstdDecompressor().stream_reader(
            cast("IO[bytes]", _Counted(packed, progress)), read_across_frames=True
        ) as plain,
        tarfile.open(fileobj=plain, mode="r|") as tar,
    ):
        for member in tar:
            yield member, tar.extractfile(member) if member.isfile() else None
        # What stands behind the end mark is checked too, or a cut would pass.
        while plain.read(_CHUNK):
            pass


def _part(archive: zipfile.ZipFile, kind: str) -> str:
    found = [name for name in archive.namelist() if name.startswith(f"{kind}-")]
    if len(found) != 1 or not found[0].endswith(".tar.zst"):
        raise zipfile.BadZipFile(f"it has {len(found)} parts {kind}-*.tar.zst, not one")
    return found[0]


def _info(archive: zipfile.ZipFile) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = _MOST_INFO
    for member, stream in _members(archive, _part(archive, "info")):
        if member.isdir():
            continue
        name = _name_of(member, found)
        if stream is None:
            raise ValueError(f"{name} is no regular file")
        left -= member.size
        if left < 0:
            raise ValueError(f"its metadata has over {_MOST_INFO} bytes")
        found[name] = stream.read()
    return found


def _name_of(member: tarfile.TarInfo, found: Container[str]) -> str:
    """Of a member that may be unpacked: below the prefix, and not there already."""
    name = inner_path(member.name)
    if name in found:
        raise ValueError(f"{name} is in it twice")
    return name


def _paths(info: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    said = strictjson.loads(info["info/paths.json"])
    entries = said["paths"]
    if said["paths_version"] != 1:
        raise ValueError(f"its list of files has version {said['paths_version']!r}, not 1")
    found = {inner_path(entry["_path"]): entry for entry in entries}
    for name, entry in found.items():
        if entry["path_type"] not in _TYPES:
            raise ValueError(f"{name} is a {entry['path_type']!r} in its list of files")
    if len(found) != len(entries):
        raise ValueError("its list of files names one twice")
    return found


def _payload(archive: zipfile.ZipFile, progress: Callable[[int], None]) -> dict[str, _Member]:
    found: dict[str, _Member] = {}
    for member, stream in _members(archive, _part(archive, "pkg"), progress):
        if member.isdir():
            inner_path(member.name)
            continue
        name = _name_of(member, found)
        if member.issym():
            found[name] = _Member(link=_inner_link(name, member.linkname))
        elif member.islnk() and member.linkname in found:
            found[name] = found[member.linkname]
        elif stream is not None:
            digest = hashlib.sha256()
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
            found[name] = _Member(sha256=digest.hexdigest(), size=member.size)
        else:
            raise ValueError(f"{name} is neither a file nor a symbolic link")
    for name in found:
        for folder in map(str, PurePosixPath(name).parents):
            if folder in found:
                raise ValueError(f"{name} lies below {folder}, which is no folder")
    return found


def _inner_link(name: str, to: str) -> str:
    """`to` itself, where the symbolic link `name` leads: somewhere below the prefix."""
    end = posixpath.normpath(posixpath.join(posixpath.dirname(name), to))
    if not to or end.split("/")[0] in ("", ".."):
        raise ValueError(f"{name} is a link to {to or 'nothing'}, out of its folder")
    return to


def _check_paths(path: Path, paths: dict[str, dict[str, Any]], found: dict[str, _Member]) -> None:
    said = {name for name, entry in paths.items() if entry["path_type"] != "directory"}
    for name in sorted(said ^ set(found)):
        where = "is not in it" if name in said else "is not in its list"
        raise _tampered(path, name, where)
    for name, member in found.items():
        entry = paths[name]
        if (entry["path_type"] == "softlink") != (member.link is not None):
            raise _tampered(path, name, f"is not the {entry['path_type']} that its list says")
        if member.link is None and member.sha256 != entry["sha256"]:
            raise _tampered(path, name, f"has SHA-256 {member.sha256}, not {entry['sha256']}")
        if member.link is None and member.size != entry["size_in_bytes"]:
            raise _tampered(path, name, f"has {member.size} bytes, not {entry['size_in_bytes']}")


def _tampered(path: Path, name: str, how: str) -> PackageError:
    return PackageError(
        f"{path.name} was tampered with because {name} {how}; get it again",
        package=path.name,
        file=name,
    )


def check_words(index: dict[str, Any]) -> None:
    """Raise ValueError for what a client could not read, or would take for something else."""
    for word in ("name", "version", "build"):
        if not isinstance(index[word], str) or not _WORDS[word].match(index[word]):
            raise ValueError(f"its {word} {index[word]!r} is none that clients take")
    for key in ("depends", "constrains"):
        specs = index.get(key, [])
        if not isinstance(specs, list) or not all(isinstance(spec, str) for spec in specs):
            raise ValueError(f"clients cannot read its {key} {specs!r}, which is no list")
    number = index["build_number"]
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"its build number {number!r} is none")
    try:
        Version(index["version"])
        for spec in (*index["depends"], *index.get("constrains", [])):
            MatchSpec(spec)
    except (InvalidVersionError, InvalidMatchSpecError, TypeError) as error:
        raise ValueError(f"clients cannot read what it says of itself: {error}") from error


def metadata(path: Path) -> dict[str, bytes]:
    """The members of the `info` part. Raises PackageError."""
    with _sound(path), zipfile.ZipFile(path) as archive:
        return _info(archive)


def files_of(path: Path, names: set[str]) -> dict[str, bytes]:
    """The content of some files of the package. Raises PackageError."""
    with _sound(path), zipfile.ZipFile(path) as archive:
        return {
            member.name: stream.read()
            for member, stream in _members(archive, _part(archive, "pkg"))
            if member.name in names and stream is not None
        }


def settle(path: Path, seconds: int) -> None:
    """Give a built package and its files the time `seconds` (since 1970) instead of that of its
    build, and compress it, so that the same inputs give the same bytes."""
    with zipfile.ZipFile(path) as archive:
        info = _info(archive)
        index = strictjson.loads(info["info/index.json"])
        index["timestamp"] = seconds * 1000
        info["info/index.json"] = json.dumps(index, indent=2, sort_keys=True).encode()
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".settle-")
        try:
            with os.fdopen(handle, "w+b") as stream, zipfile.ZipFile(stream, "w") as out:
                with archive.open(_FORM) as source, _slot(out, _FORM) as target:
                    target.write(source.read())
                with _slot(out, f"pkg-{path.stem}.tar.zst") as target:
                    _copy_tar(archive, _part(archive, "pkg"), target, seconds)
                with _slot(out, f"info-{path.stem}.tar.zst") as target:
                    target.write(zstandard.compress(_tar(info, seconds), _LEVEL))
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _copy_tar(archive: zipfile.ZipFile, name: str, target: IO[bytes], seconds: int) -> None:
    # The number of threads does not matter for the bytes, but one or several does.
    packer = zstandard.ZstdCompressor(level=_LEVEL, threads=max(2, os.cpu_count() or 2))
    with (
        packer.stream_writer(target, closefd=False) as plain,
        tarfile.open(fileobj=plain, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        for member, stream in _members(archive, name):
            member.mtime = seconds
            tar.addfile(member, stream)


def _slot(out: zipfile.ZipFile, name: str) -> Any:
    entry = zipfile.ZipInfo(name)  # 1980, stored: both parts are compressed already
    entry.external_attr = 0o100644 << 16
    return out.open(entry, "w", force_zip64=True)


def _tar(members: dict[str, bytes], seconds: int) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(members):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(members[name]), 0o644, seconds
            tar.addfile(entry, io.BytesIO(members[name]))
    return raw.getvalue()


def check_room(folder: Path, said: str) -> None:
    """Raise FileError if rattler failed for want of room in `folder`; it often does not say so."""
    reason = os.strerror(errno.ENOSPC)
    if reason in said or shutil.disk_usage(folder).free < _LITTLE:
        raise FileError.of(OSError(errno.ENOSPC, reason), str(folder))
