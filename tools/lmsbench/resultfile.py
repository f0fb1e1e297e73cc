# SPDX-License-Identifier: Apache-2.0
"""A file of results, one JSON object a line: a run adds to it, and the next goes on from there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def load(path: Path, take: Callable[[dict[str, Any]], None]) -> None:
    """Give `take` each object of the file, if there is one. A last line without its end, of a run
    that was killed, is taken out of it. Raises ValueError for any other line that is no result."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
    for number, line in enumerate(lines[:-1], 1):
        try:
            take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"line {number} of {path} is no result because of {type(error).__name__}: {error}; "
                "delete the line, and it is measured anew"
            ) from error
    if lines[-1]:
        path.write_text("".join(f"{line}\n" for line in lines[:-1]), encoding="utf-8")


def add(path: Path, entry: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
