# SPDX-License-Identifier: Apache-2.0
"""Refusals that are gathered, so that one run tells all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lmsbuild.base.errors import LmsbuildError


class Refusals:
    """Errors of the class `kind`. `check` raises what was gathered, as one error."""

    def __init__(self, kind: type[LmsbuildError]) -> None:
        self._kind = kind
        self._found: list[LmsbuildError] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        try:
            yield
        except self._kind as error:
            self._found.append(error)

    def check(self) -> None:
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            details: dict[str, object] = {}
            for error in self._found:
                for name, value in error.details.items():
                    there = details.setdefault(name, value)
                    if there is not value and isinstance(there, list) and isinstance(value, list):
                        details[name] = [*there, *value]
            raise self._kind("\n".join(error.message for error in self._found), **details)
