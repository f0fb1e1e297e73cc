# SPDX-License-Identifier: Apache-2.0
"""Completion as a user has it: a real bash on a terminal, with the tab key."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY, World

from lmsbuild.cli.completion import SHELLS

# Completes like lmsbuild; run, it says what it was given.
WRAPPER = """#!/bin/sh
if [ -n "$_LMSBUILD_COMPLETE" ] || [ "$1" = completion ]; then
  PYTHONPATH={tools} exec {python} -m lmsbuild "$@"
fi
echo "given <$*>"
"""


class Bash:
    """An interactive shell with the completion script in it."""

    def __init__(self, folder: Path) -> None:
        program = folder / "lmsbuild"
        program.write_text(WRAPPER.format(tools=REPOSITORY / "tools", python=sys.executable))
        program.chmod(0o755)
        self._controller, terminal = pty.openpty()
        self._process = subprocess.Popen(
            [shutil.which("bash") or "bash", "--norc", "--noprofile", "-i"],
            stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
            env={
                **os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PS1": "",
                "TERM": "dumb", "INPUTRC": os.devnull, "HISTFILE": "",
            },
        )  # fmt: skip
        os.close(terminal)
        self.type("source <(lmsbuild completion bash); echo rea''dy\n", "ready")

    def type(self, keys: str, until: str) -> str:
        os.write(self._controller, keys.encode())
        text = ""
        deadline = time.monotonic() + 30
        while until not in text:
            assert time.monotonic() < deadline, f"{until!r} did not come: {text!r}"
            if select.select([self._controller], [], [], 0.2)[0]:
                text += os.read(self._controller, 4096).decode()
        return text

    def complete(self, line: str) -> str:
        """The arguments after the tab key and then the return key."""
        os.write(self._controller, f"{line}\t".encode())
        return self.type("\n", ">\r\n").rsplit("given <", 1)[1].split(">")[0]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._controller)


@pytest.fixture
def bash(world: World) -> Iterator[Bash]:
    folder = world.folder / "programs"
    folder.mkdir()
    shell = Bash(folder)
    yield shell
    shell.close()


def test_bash_completes(bash: Bash) -> None:
    assert bash.complete("lmsbuild ref") == "refresh"
    assert bash.complete("lmsbuild apply v") == "apply v1.0"
    assert bash.complete("lmsbuild apply al") == "apply alpha:v1.0"
    assert bash.complete("lmsbuild apply alpha:") == "apply alpha:v1.0"
    assert bash.complete("lmsbuild apply alpha:v1") == "apply alpha:v1.0"
    assert bash.complete("lmsbuild apply alpha:v1.0 --dry") == "apply alpha:v1.0 --dry-run"
    assert bash.complete("lmsbuild wheel alpha:v1.0 --python 3.") == (
        "wheel alpha:v1.0 --python 3.11"
    )
    assert bash.complete("lmsbuild apply no") == "apply no"


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts(shell: str, world: World) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lmsbuild", "completion", shell],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_LMSBUILD_COMPLETE" in done.stdout
    if interpreter := shutil.which(shell):
        subprocess.run([interpreter, "-n"], input=done.stdout, text=True, check=True)
