# SPDX-License-Identifier: Apache-2.0
"""What is installed, found without importing it."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def folder_of(package: str) -> Path | None:
    """The folder of the package that an import would take; None if there is none."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
