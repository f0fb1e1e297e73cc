# SPDX-License-Identifier: Apache-2.0
"""What a user chooses about a build, apart from the tag."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Choices:
    source: str  # auto, git, debian, a path or a URL
    reference: Path | None  # a clone to borrow from
    into: Path | None  # the checkout's folder instead of the tag's own
    python: str | None  # X.Y; None: the running one if the tag has wheels for it, else its newest
    cuda: str | None  # X.Y; None: the tag's first
    jobs: int | None  # None: as many as there are processors
