# SPDX-License-Identifier: Apache-2.0
"""rattler-build, in a process of its own: packages built of recipes, and recipes' tests run."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

from lmsbuild.base import log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    PackageError,
)
from lmsbuild.conda.condapackage import (
    CondaPackage,
)

_PROGRAM = Path(__file__).parent / "programs" / "conda_pack.py"


@dataclass(frozen=True)
class Answer:
    """What rattler-build did, `error` empty if it succeeded."""

    files: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def output(self) -> str:
        return "\n".join([*self.log, self.error])


def rattler(work: str, order: Mapping[str, object], variables: Mapping[str, str]) -> Answer:
    """Run rattler-build in a process of its own (see the program)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        command = [sys.executable, str(_PROGRAM), work, json.dumps(order), str(file)]
        done = log.run(command, env={**os.environ, **variables})
        try:
            answer = Answer(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            answer = Answer(error=f"it ended with code {done.returncode}, saying {last}")
    log.note(answer.output)
    return answer


def tools() -> str:
    from rattler_build import rattler_build_version

    return f"rattler-build {rattler_build_version()}, zstandard {zstandard.__version__}"


def run_tests(package: CondaPackage, channels: Sequence[str], cuda: str, console: Console) -> None:
    """Run the tests of the package's recipe in an environment solved from `channels`.

    `cuda` is the version that the environment's driver is taken to have, "" for none. Raises
    PackageError with what a test that fails says.
    """
    # The environment is for a machine with a driver, and this one may have none.
    variables = {"CONDA_OVERRIDE_CUDA": os.environ.get("CONDA_OVERRIDE_CUDA", cuda)} if cuda else {}
    with console.task(f"running the recipe's tests of {package.path.name}"):
        order = {"package": str(package.path), "channels": list(channels)}
        done = rattler("test", order, variables)
    if done.error:
        lines = [line for line in done.output.splitlines() if re.search("[Ee]rror|[Cc]annot", line)]
        raise PackageError(
            f"{package.path.name} did not pass because its recipe's tests failed with: "
            f"{(lines or ['nothing was said'])[0]}; see the full log, and check the channels "
            f"({', '.join(channels)})",
            output=done.output,
        )
