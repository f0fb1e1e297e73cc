# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lmsbuild.base.hashing import write_atomic


def test_threads_that_write_one_file(tmp_path: Path) -> None:
    """As those that make two environments of one wheel, and note its hash: the last one wins."""
    file = tmp_path / "note.json"
    contents = [bytes([number]) * 1000 for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_atomic(file, content), contents))
    assert file.read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["note.json"]
