# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of files and values."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from lmsbuild.base import strictjson

_CHUNK = 1 << 22


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sha256_value(value: object) -> str:
    """Of a JSON-able value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return sha256_bytes(text.encode())


def git_blob(content: bytes) -> str:
    """The id that git gives a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def sha256_large_file(path: Path, memory: Path, *, remember: bool = True) -> str:
    """Like sha256_file, but remembered in the folder `memory` for as long as the file is as is."""
    found = path.stat()
    seen = [str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ino]
    note = memory / f"{sha256_value(seen[0])[:32]}.json"
    known = strictjson.record(note)
    if known.get("seen") == seen and "sha256" in known:
        return str(known["sha256"])
    digest = sha256_file(path)
    if not remember:
        return digest
    memory.mkdir(parents=True, exist_ok=True)
    write_atomic(note, json.dumps({"seen": seen, "sha256": digest}).encode())
    return digest


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` in one step, so that a reader never sees half of it, power loss or not."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        with fresh.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    except BaseException as error:
        fresh.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # of a write it names no file
            error.filename = str(path)
        raise
