# SPDX-License-Identifier: Apache-2.0
"""Points on the dry device, each in a fork of a process that has imported torch: the import is most
of what a short one takes.

`python -m lmsbench.forks` answers each line of JSON (`point`, and `settings`: variables of simcuda)
with one of its own: the `code` that the fork ended with, the `answer` of lmsbench.point and what
was written to standard `error`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parents[1]
PROFILE = "SIMCUDA_PROFILE"
_ALL = {"SIMCUDA_DRY": "1", "SIMCUDA_QUIET": "1", "SIMCUDA_VALUES": "off"}


def _inherited() -> dict[str, str]:
    """Without what says of another device how it is."""
    kept = ("SIMCUDA_CACHE", "SIMCUDA_CUDA_INCLUDE")
    return {k: v for k, v in os.environ.items() if not k.startswith("SIMCUDA") or k in kept}


class Forks:
    """A process of `python`, which is begun with the first point. Of one thread at a time."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._process: subprocess.Popen[str] | None = None

    def measure(
        self, point: Mapping[str, Any], settings: Mapping[str, str]
    ) -> tuple[int, dict[str, Any], str]:
        """The code that it ended with, what it answered if that is 0, and standard error."""
        if self._process is None:
            self._process = subprocess.Popen(
                [self._python, "-m", "lmsbench.forks"],
                # Without the settings of forks: one that traces would begin before it forks.
                env={**_inherited(), "PYTHONPATH": str(TOOLS), **_ALL, PROFILE: settings[PROFILE]},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"point": point, "settings": settings}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it says below why it has ended
        line = self._process.stdout.readline()
        if not line:  # before any fork of it, as where there is no torch
            _, error = self._process.communicate()
            code, self._process = self._process.returncode, None
            return code or 1, {}, error
        said = json.loads(line)
        return said["code"], said["answer"], said["error"]

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _fork(job: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as error:
        pid = os.fork()
        if pid == 0:
            os.dup2(answer.fileno(), 1)
            os.dup2(error.fileno(), 2)
            _measure(job)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = []
        for file in (answer, error):
            file.seek(0)
            said.append(file.read())
    answered = json.loads(said[0].splitlines()[-1]) if code == 0 else {}
    return {"code": code, "answer": answered, "error": said[1]}


def _measure(job: dict[str, Any]) -> None:
    """Ends the process."""
    import traceback

    import simcuda
    from lmsbench import point

    try:
        os.environ.update(job["settings"])
        simcuda.settle()
        print(json.dumps(point.measure(point.Point(**job["point"]))))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    point.leave()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # its parent says that it was interrupted
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is imported may write
    import simcuda

    jobs = sys.stdin
    first = jobs.readline()
    simcuda.load(for_forks=True)
    import torch

    from lmsbench import models  # noqa: F401

    torch.set_num_threads(1)
    while first:
        answers.write(json.dumps(_fork(json.loads(first))) + "\n")
        answers.flush()
        first = jobs.readline()


if __name__ == "__main__":
    main()
