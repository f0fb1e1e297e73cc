# SPDX-License-Identifier: Apache-2.0
"""lmsbuild in processes of its own that share one import, which is most of what a short command
costs. For commands whose start is not what is tested."""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

from lmsbuild_world import REPOSITORY

import lmsbuild

TOOLS = str(REPOSITORY / "tools")
MAIN = "from lmsbuild.__main__ import main; main()"


@cache
def _server() -> Any:
    sys.path.insert(0, str(REPOSITORY / "tests"))
    fork_server = importlib.import_module("fork_server")
    names = [module.name for module in pkgutil.walk_packages(lmsbuild.__path__, "lmsbuild.")]
    # rattler has threads of its own: what imports it is imported in the fork.
    alone = ("lmsbuild.conda.", "lmsbuild.ship.condabuild")
    shared = [name for name in names if not name.startswith(alone)]
    server = fork_server.ForkServer(sys.executable, shared, {**os.environ, "PYTHONPATH": TOOLS})
    atexit.register(server.close)
    return server


def run(
    *arguments: str,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    before: str = "",
    timeout: float = 300,
) -> tuple[int, str, str]:
    """Exit code (negative: the signal), standard output and standard error of
    `lmsbuild ARGUMENTS`, after the statements `before`. Raises subprocess.TimeoutExpired."""
    variables = {**os.environ, "PYTHONPATH": TOOLS, **(env or {})}
    folder = str(cwd or Path.cwd())
    done = _server().run(["-c", before + MAIN], arguments, variables, timeout, folder=folder)
    return done.returncode, done.stdout, done.stderr
