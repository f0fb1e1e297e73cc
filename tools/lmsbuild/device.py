# SPDX-License-Identifier: Apache-2.0
"""The device that tests and the demonstration run on: a GPU, or what stands in for one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import cache, log
from lmsbuild.console import Console
from lmsbuild.doctor import gpu
from lmsbuild.environment import Environment
from lmsbuild.errors import CompileError, MissingToolError
from lmsbuild.frameworks import Target
from lmsbuild.hashing import sha256_file, sha256_value
from lmsbuild.overlay import header_folders
from lmsbuild.toolchain import processors


@dataclass(frozen=True)
class Device:
    kind: str  # "cuda", "sim" (the simulated CUDA device) or "cpu" (with a limited pool)
    name: str


def choose(target: Target, wanted: str | None) -> Device:
    """`sim` for what stands in for a GPU, `cuda`, or None for a GPU if there is one.

    Raises MissingToolError for no GPU.
    """
    name = gpu() if wanted != "sim" else ""
    if name:
        return Device("cuda", name)
    if wanted == "cuda":
        raise MissingToolError(
            "nothing can run on a GPU because nvidia-smi finds none here; use --device sim"
        )
    if target.framework.shows.device == "cpu":
        return Device("cpu", "CPU device with a limited pool (no GPU)")
    return Device("sim", "simulated CUDA device (no GPU)")


def variables(target: Target, console: Console) -> dict[str, str]:
    """Environment variables under which simcuda builds and runs."""
    folders = header_folders(target, console)
    return {
        "SIMCUDA_CUDA_INCLUDE": os.pathsep.join(map(str, folders)),
        "SIMCUDA_CACHE": str(cache.use("simcuda")),
        "SIMCUDA_QUIET": "1",
    }


def identity(target: Target) -> str:
    """Of the simulated device's code."""
    folder = target.project.tools / "simcuda"
    files = sorted(f for f in folder.rglob("*") if f.suffix in (".py", ".cpp", ".h", ".in"))
    return sha256_value([[str(f.relative_to(folder)), sha256_file(f)] for f in files])


def build_simulated(
    target: Target, environment: Environment, console: Console, jobs: int | None = None
) -> Path:
    """Build the simulated device for the torch in `environment`; a finished build is reused."""
    command = [str(environment.python), "-m", "simcuda", "build", "-j", str(jobs or processors())]
    with console.task(f"building the simulated device for {environment.path.name}"):
        done = log.run(command, env=environment.run_environment(variables(target, console)))
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise CompileError(
            f"the simulated device was not built because {last}; see the full log",
            output=done.stderr,
        )
    return Path(done.stdout.strip().splitlines()[-1])
