# SPDX-License-Identifier: Apache-2.0
"""What a name or a path may be that comes from a file: an index, a package, a patch, TOML.

Whoever wrote that file must not reach anything outside the folder that it is about.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_LONGEST = 255  # bytes of a name, on every file system that Linux has


def file_name(text: str) -> str:
    """`text` itself, the name of one file. Raises ValueError, which says why it is none."""
    _check_step(text, text)
    if "/" in text or "\\" in text:
        raise ValueError(f"{text!r} names a folder, too")
    if text.startswith("-"):
        raise ValueError(f"{text!r} would be taken for an option")
    return text


def inner_path(text: str, *, foreign: bool = False) -> str:
    """`text` itself, a path with single slashes that stays below its folder and out of what is
    git's; a `foreign` one may be of any characters, as upstream's files. Raises ValueError, which
    says why it is none."""
    for step in text.split("/"):
        _check_step(step, text, foreign=foreign)
        if step.lower() == ".git":
            raise ValueError(f"{text!r} leads into what is git's")
    return text


def link_target(path: str, target: str) -> str:
    """`target` itself, to which the link at `path` may lead: it stays in the tree, whatever other
    links lie on its way. Raises ValueError, which says why it does not."""
    steps = target.split("/")
    up = next((at for at, step in enumerate(steps) if step != ".."), len(steps))
    rest = steps[up:]
    # Above a folder that is itself a link lies another place than its name says.
    if target.startswith("/") or ".." in rest or up > path.count("/"):
        raise ValueError(f"{target!r} leads out of the tree")
    if rest:
        inner_path("/".join(rest))
    return target


def check_regular(path: Path) -> None:
    """Raise ValueError for a FIFO or a device: reading one may never end; and for a link that leads
    nowhere. OSError for what is not there, or cannot be looked at."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise ValueError("it is a link that leads nowhere") from None
        raise
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a folder the system tells
        raise ValueError("it is no regular file")


def is_utf8(text: str) -> bool:
    """And no bytes of another encoding, as a name of the file system may have."""
    return not any(0xDC80 <= ord(character) <= 0xDCFF for character in text)


def _check_step(step: str, text: str, *, foreign: bool = False) -> None:
    if not text:
        raise ValueError("it is empty")
    if step in ("", ".", ".."):
        raise ValueError(f"{text!r} may lead out of its folder")
    if not foreign and any(character < " " or character == "\x7f" for character in step):
        raise ValueError(f"{text!r} has a control character")
    if not foreign and not is_utf8(step):
        raise ValueError(f"{text!r} is not UTF-8")
    if len(os.fsencode(step)) > _LONGEST:
        raise ValueError(f"{text[:40]!r}... is longer than the {_LONGEST} bytes of a name")
