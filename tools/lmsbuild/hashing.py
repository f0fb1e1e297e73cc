# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of files and values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

_CHUNK = 1 << 22


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_value(value: object) -> str:
    """Of a JSON-able value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
