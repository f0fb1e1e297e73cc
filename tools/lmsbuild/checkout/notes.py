# SPDX-License-Identifier: Apache-2.0
"""What a checkout has written down in its git folder of work that is not at its end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lmsbuild.base import strictjson
from lmsbuild.base.errors import UnfinishedError
from lmsbuild.base.filenames import check_regular
from lmsbuild.base.transaction import Content

T = TypeVar("T")
OUR_REFS = ("base", "applied", "before")  # that an abort puts back


def note(schema: int, value: Mapping[str, Any]) -> Content:
    return Content(json.dumps({"schema": schema, **value}, indent=1).encode())


def noted(path: Path, schema: int, build: Callable[[dict[str, Any]], T]) -> T | None:
    """What `build` makes of a note, None where there is none. Raises UnfinishedError for one that
    is damaged or of another lmsbuild."""
    try:
        check_regular(path)
        value = strictjson.loads(path.read_bytes())
        if value.pop("schema") != schema:
            raise ValueError("another lmsbuild wrote it")
        return build(value)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnfinishedError(
            f"{path} cannot be understood because it is damaged ({error}); keep your commits with "
            "`git branch mine`, then move that file away"
        ) from error


def check_ids(*names: str) -> None:
    """Raise ValueError for what is no commit's full id."""
    for name in names:
        if not re.fullmatch(r"[0-9a-f]{40}", name):
            raise ValueError(f"{name!r} is the id of no commit")


def check_refs(refs: Mapping[str, str]) -> None:
    """Raise ValueError unless it says where all of our refs were before."""
    if set(refs) != set(OUR_REFS):
        raise ValueError(f"it does not say where {', '.join(OUR_REFS)} were")
    check_ids(*refs.values())
