# SPDX-License-Identifier: Apache-2.0
"""The cache: whatever can be had again, checked when it is used and removed by age.

An entry is a file or folder `<kind>/<name>` beside its record `<kind>/<name>.entry` (JSON: what it
is, its size and hash). The record is also the entry's lock, and its time that of the last use: a
process holds every entry that it uses, shared, until it ends, and nothing that is held is removed.
Temporary folders lie in `tmp/`, locked by the process that made them, so that those of killed
processes are told apart and removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ByteSize, TypeAdapter, ValidationError

from lmsbuild.base import strictjson
from lmsbuild.base.console import Console
from lmsbuild.base.errors import FileError, OfflineError, UsageError
from lmsbuild.base.hashing import sha256_file, sha256_value, write_atomic
from lmsbuild.base.project import cache_dir
from lmsbuild.base.settings import offline

DEFAULT_LIMIT = "30GiB"
_OBJECTS = "objects"  # many small entries, without a record each
_OWN = ("tmp", "hashes", "partial")  # no entries
_RECORD = ".entry"

_lock = threading.RLock()
_held: dict[Path, int] = {}
_sound_here: set[Path] = set()  # of these, what this process has found sound


@dataclass(frozen=True)
class Record:
    title: str
    tag: str  # label of the tag that it is for, "" for any
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """An entry as `clean` sees it."""

    path: Path
    title: str
    tag: str
    bytes: int
    used: float  # seconds since the epoch

    @property
    def lock(self) -> Path:
        kind = cache_dir() / self.path.relative_to(cache_dir()).parts[0]
        return _record_of(kind if kind.name == _OBJECTS else self.path)


def check_variables() -> None:
    """Raise UsageError for a variable of the cache that cannot be used."""
    offline()
    if "LMSBUILD_CACHE_LIMIT" in os.environ:
        limit()


def require_network(missing: str, command: str) -> None:
    """Raise OfflineError naming what is `missing`, and the command that gets it."""
    if offline():
        raise OfflineError(
            f"{missing} cannot be used because it is not in the cache and downloads are off "
            f"(--offline or LMSBUILD_OFFLINE); run `{command}` once without",
            missing=missing,
            command=command,
        )


# Entries -----------------------------------------------------------------------------------------


def keep(
    kind: str,
    name: str,
    title: str,
    fill: Callable[[Path], None],
    console: Console,
    *,
    tag: str = "",
    anew: bool = False,
    sha256: str = "",
) -> Path:
    """The entry `<kind>/<name>`, made by `fill(path)` when it is missing, damaged or wanted `anew`.

    It is whole or not there, however this process ends, and stays until this process ends. One
    whose record was lost is known by its `sha256`, where that is known.
    """
    path = cache_dir() / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock:
        if path in _sound_here and path.exists() and not anew:
            return path
        _let_go(path)
        while True:
            handle = open_locked(_record_of(path), fcntl.LOCK_SH)
            with console.task(f"checking {title}"):
                sound = not anew and _sound(path)
            if sound:
                os.utime(handle)
                _held[path] = handle
                _sound_here.add(path)
                return path
            os.close(handle)
            handle = open_locked(_record_of(path), fcntl.LOCK_EX)
            try:
                if sha256 and not anew:
                    _record_again(path, title, tag, handle, sha256)
                # Another process may have made it while this one waited.
                if anew or not _sound(path, console):
                    _fill(path, fill, title, tag, handle)
                    anew = False
                    trim(limit())
            finally:
                os.close(handle)


def _fill(path: Path, fill: Callable[[Path], None], title: str, tag: str, record: int) -> None:
    with scratch() as folder:
        made = folder / path.name
        try:
            fill(made)
        except OSError as error:
            if error.filename is None and error.errno in FileError.CAUSES:
                raise FileError.of(error, str(made)) from error
            raise
        digest, size = digest_of(made)
        if path.exists():
            path.rename(folder / "before")
        _write_record(path, record, Record(title, tag, size, digest))
        _state_of(path).unlink(missing_ok=True)
        made.rename(path)
        write_atomic(_state_of(path), _state(path).encode())


def _write_record(path: Path, record: int, content: Record) -> None:
    try:
        os.ftruncate(record, 0)
        os.pwrite(record, json.dumps(asdict(content), indent=2).encode(), 0)
    except OSError as error:  # of a descriptor it names no file
        raise FileError.of(error, str(_record_of(path))) from error


def _record_again(path: Path, title: str, tag: str, record: int, sha256: str) -> None:
    """Write a record that was lost, if what is there is what it should be."""
    if _read_record(path) is None and path.exists():
        digest, size = digest_of(path)
        if digest == sha256:
            _write_record(path, record, Record(title, tag, size, digest))


def _sound(path: Path, console: Console | None = None) -> bool:
    """Whether the entry is as it was made; a `console` is told when it is not."""
    record = _read_record(path)
    if record is None or not path.exists():
        return False
    with contextlib.suppress(OSError):
        if _state_of(path).read_text(encoding="utf-8") == _state(path):
            return True
    digest, size = digest_of(path)
    if digest == record.sha256:
        write_atomic(_state_of(path), _state(path).encode())
        return True
    if console is not None:
        console.warn(
            f"{record.title} in the cache is damaged and made anew: {path} has {size} bytes and "
            f"SHA-256 {digest}, not {record.bytes} bytes and {record.sha256}"
        )
    return False


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{_RECORD}")


def _state_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.state")


def _read_record(path: Path) -> Record | None:
    try:
        return Record(**strictjson.loads(_record_of(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _files(path: Path) -> list[Path]:
    return sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]


def digest_of(path: Path) -> tuple[str, int]:
    """SHA-256 and bytes of a file; of a folder's one file; else of all its names and contents."""
    files = _files(path)
    size = sum(file.stat().st_size for file in files)
    if len(files) == 1:
        return sha256_file(files[0]), size
    return sha256_value([[str(f.relative_to(path)), sha256_file(f)] for f in files]), size


def _state(path: Path) -> str:
    """Changes whenever a file of the entry has been written, replaced, added or removed."""
    seen = []
    for file in _files(path):
        stat = file.stat()
        name = str(file.relative_to(path))
        seen.append([name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino])
    return sha256_value(seen)


# Locks -------------------------------------------------------------------------------------------


def open_locked(path: Path, mode: int, how: int = os.O_RDWR | os.O_CREAT) -> int:
    """A descriptor of the lock file with the lock `mode`; BlockingIOError with LOCK_NB."""
    while True:
        handle = os.open(path, how | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, mode)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # removed by another process while this one waited


def _let_go(path: Path) -> None:
    _sound_here.discard(path)
    handle = _held.pop(path, None)
    if handle is not None:
        os.close(handle)


def hold(path: Path) -> bool:
    """Whether the entry is there, sound or not; then it stays until this process ends."""
    with _lock:
        if path not in _held:
            with contextlib.suppress(FileNotFoundError):  # without its record it cannot be locked
                _held[path] = open_locked(_record_of(path), fcntl.LOCK_SH, os.O_RDONLY)
        return path.exists()


def use(kind: str) -> Path:
    """The folder of a kind whose entries have no records: nothing of it is removed until this
    process ends."""
    folder = cache_dir() / kind
    folder.mkdir(parents=True, exist_ok=True)
    with _lock:
        if folder not in _held:
            _held[folder] = open_locked(_record_of(folder), fcntl.LOCK_SH)
    return folder


# Temporary folders -------------------------------------------------------------------------------


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder on the cache's file system, removed at the end."""
    root = cache_dir() / "tmp"
    root.mkdir(exist_ok=True)
    guard = open_locked(root / ".lock", fcntl.LOCK_SH)  # none is swept before it is locked
    try:
        folder = Path(tempfile.mkdtemp(dir=root))
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)
    finally:
        os.close(guard)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def leftovers() -> list[Path]:
    """Temporary folders of processes that are gone."""
    root = cache_dir() / "tmp"
    found: list[Path] = []
    if not root.is_dir():
        return found
    guard = open_locked(root / ".lock", fcntl.LOCK_EX)
    try:
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append(folder)
            os.close(handle)
    finally:
        os.close(guard)
    return found


# Size --------------------------------------------------------------------------------------------


def limit() -> int:
    """Bytes that the cache may take (LMSBUILD_CACHE_LIMIT); 0 is no limit. Raises UsageError."""
    text = os.environ.get("LMSBUILD_CACHE_LIMIT", DEFAULT_LIMIT)
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise UsageError(
            f"LMSBUILD_CACHE_LIMIT={text} cannot be used because it is no size; give one such as "
            "20GiB, or 0 for no limit"
        ) from error


def entries() -> list[Entry]:
    """Everything in the cache that can be removed, the least recently used first."""
    found = []
    for kind in sorted(path for path in cache_dir().iterdir() if path.is_dir()):
        records = list(kind.glob(f"*{_RECORD}"))
        if kind.name == _OBJECTS:
            found += [_entry(path, "compiled objects") for path in kind.glob("*/*")]
        elif records:
            found += [_entry(path, path.name) for path in map(_content_of, records)]
        elif kind.name not in _OWN and any(kind.iterdir()):
            found.append(_entry(kind, kind.name))
    return sorted(found, key=lambda entry: entry.used)


def _content_of(record: Path) -> Path:
    return record.with_name(record.name.removesuffix(_RECORD))


def _entry(path: Path, title: str) -> Entry:
    record = _read_record(path)
    if record is not None:
        used = _record_of(path).stat().st_mtime
        return Entry(path, record.title, record.tag, record.bytes, used)
    stats = [file.stat() for file in _files(path)] if path.exists() else []
    used = max([stat.st_mtime for stat in stats], default=0.0)
    return Entry(path, title, "", sum(stat.st_size for stat in stats), used)


def remove(entry: Entry) -> bool:
    """Remove an entry; False when a process holds it."""
    try:
        handle = open_locked(entry.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        with scratch() as folder:
            if entry.path.exists():
                entry.path.rename(folder / "removed")
            _state_of(entry.path).unlink(missing_ok=True)
            _record_of(entry.path).unlink(missing_ok=True)
    finally:
        os.close(handle)
    return True


def trim(size: int) -> list[Entry]:
    """Remove the least recently used until the cache takes at most `size` bytes (0: no limit).

    Those that a process holds stay. Gives what was removed.
    """
    if not size:
        return []
    known = entries()
    total = sum(entry.bytes for entry in known)
    removed = []
    for entry in known:
        if total <= size:
            break
        if remove(entry):
            total -= entry.bytes
            removed.append(entry)
    return removed
