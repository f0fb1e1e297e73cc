# SPDX-License-Identifier: Apache-2.0
"""JSON that others wrote, of which each reader must make the same: no key twice, no NaN, no depth
that ends the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmsbuild.base.filenames import check_regular


def loads(text: str | bytes) -> Any:
    """The value. Raises ValueError for what is no JSON, or means different things to readers."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def record(file: Path) -> dict[str, Any]:
    """What a file notes that can be found out again. Empty where there is none, and where a full
    disk, say, has left something else."""
    try:
        check_regular(file)
        found = loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {twice!r} twice")
    return made


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")
