# SPDX-License-Identifier: Apache-2.0
"""What the running command was told for all that it does, in whatever thread."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator

from lmsbuild.base.errors import UsageError

_told_offline = False


@contextlib.contextmanager
def without_network() -> Iterator[None]:
    """Downloads are off until the end, as with --offline."""
    global _told_offline
    before, _told_offline = _told_offline, True
    try:
        yield
    finally:
        _told_offline = before


def offline() -> bool:
    """Downloads are off: --offline or LMSBUILD_OFFLINE. Raises UsageError."""
    text = os.environ.get("LMSBUILD_OFFLINE", "")
    if text not in ("", "0", "1"):
        raise UsageError(
            f"LMSBUILD_OFFLINE={text} cannot be used because it takes 1 (download nothing) or 0; "
            "set one of them, or unset it"
        )
    return _told_offline or text == "1"


def compiler() -> list[str]:
    """The words of CXX; none where it is not set. Raises UsageError."""
    text = os.environ.get("CXX", "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"CXX={text} cannot be used because it has {str(error).lower()}; set it to a command "
            "as a shell takes it, or unset it"
        ) from error
