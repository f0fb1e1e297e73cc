# SPDX-License-Identifier: Apache-2.0
"""Options that take several of some names, separated by commas."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable


def several(names: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """For argparse, which says what is refused."""
    known = tuple(names)

    def parse(text: str) -> tuple[str, ...]:
        wanted = tuple(text.split(","))
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]!r} is not known; choose of {', '.join(known)}"
            )
        return wanted

    return parse
