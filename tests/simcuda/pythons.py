# SPDX-License-Identifier: Apache-2.0
"""Other Pythons of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def interpreter(version: str) -> str:
    """A Python of this version (X.Y); skips the test where there is none."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    named = shutil.which(f"python{version}")
    for path in (named, *map(str, root.glob(f"versions/{version}.*/bin/python"))):
        # What pyenv puts in the way answers for versions that it has not.
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    pytest.skip(f"no Python {version} is installed here")
