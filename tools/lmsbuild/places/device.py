# SPDX-License-Identifier: Apache-2.0
"""The device that tests and the demonstration run on: a GPU, or what stands in for one."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import tomli

from lmsbuild.base import cache
from lmsbuild.base.console import Console
from lmsbuild.base.errors import CompileError, MissingToolError, UsageError
from lmsbuild.base.hashing import sha256_file, sha256_value
from lmsbuild.places.doctor import gpu
from lmsbuild.places.environment import Environment
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel.headers import header_folders
from lmsbuild.wheel.toolchain import Compiler, processors

DRY_VARIABLES = ("SIMCUDA_DRY", "SIMCUDA_PROFILE", "SIMCUDA_VALUES")


@dataclass(frozen=True)
class Device:
    # "cuda", "sim" (the simulated CUDA device), "dry" (the same, which computes nothing) or "cpu"
    # (with a limited pool)
    kind: str
    name: str
    profile: str = ""  # of a dry device

    @property
    def simulated(self) -> bool:
        """By simcuda, be it dry or not."""
        return self.kind in ("sim", "dry")


def choose(target: Target, wanted: str | None, profile: str | None = None) -> Device:
    """`sim` for what stands in for a GPU, `cuda`, or None for a GPU if there is one; a dry device
    where a `profile` is named.

    Raises MissingToolError for no GPU.
    """
    if profile is not None:
        return _dry(target, profile)
    if target.framework.shows.device == "cpu":
        if wanted == "cuda":
            raise MissingToolError(
                f"{target.label} cannot run on a GPU here because its suites and demonstration are "
                "for the CPU device with a limited pool; use --device sim"
            )
        return Device("cpu", "CPU device with a limited pool (no GPU)")
    name = gpu() if wanted != "sim" else ""
    if name:
        return Device("cuda", name)
    if wanted == "cuda":
        raise MissingToolError(
            "nothing can run on a GPU because nvidia-smi finds none here; use --device sim"
        )
    return Device("sim", "simulated CUDA device (no GPU)")


def _dry(target: Target, profile: str) -> Device:
    if target.framework.shows.device != "simcuda":
        raise UsageError(
            f"{target.label} cannot run dry because what runs here is its wheel for the CPU, which "
            f"has no GPU device; leave --dry out, or test the wheel that has one: lmsbuild test "
            f"{target.label} --cuda X.Y dry"
        )
    if profile.endswith(".toml"):  # of a GPU that was calibrated
        if not Path(profile).is_file():
            raise UsageError(
                f"--profile {profile} cannot be used because there is no such file; "
                "`python -m simcuda calibrate` makes one on a machine with a GPU"
            )
        path = str(Path(profile).absolute())
        return Device("dry", f"dry CUDA device, {path} (no GPU, times are modelled)", path)
    file = target.project.tools / "simcuda" / "profiles.toml"
    known = sorted(tomli.loads(file.read_text(encoding="utf-8"))["profile"])
    if profile not in known:
        raise UsageError(
            f"--profile {profile} cannot be used because there is no such profile; choose one of "
            f"{', '.join(known)}"
        )
    return Device("dry", f"dry CUDA device, {profile} (no GPU, times are modelled)", profile)


def variables(target: Target, device: Device, console: Console) -> dict[str, str]:
    """Environment variables of programs on the device."""
    if device.kind == "sim":
        return _simulated(target, console)
    if device.kind == "dry":
        dry = zip(DRY_VARIABLES, ("1", device.profile, "off"), strict=True)
        return {**_simulated(target, console), **dict(dry)}
    if device.kind == "cpu":
        # oneDNN chooses its sums by the time they take, and has memory of its own.
        fixed = {"CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "0"}
        return {**fixed, "TF_CPP_MIN_LOG_LEVEL": "2", "LMS_POOL_METER": str(pool_meter(console))}
    return {}


def pool_meter(console: Console) -> Path:
    """A library that, preloaded, counts what TensorFlow's limited pool takes and what leaves it."""
    source = Path(__file__).parent / "programs" / "pool_meter.cpp"
    compiler = Compiler.find()

    def fill(folder: Path) -> None:
        folder.mkdir()
        options = ["-O2", "-std=c++17", "-fPIC", "-shared", "-fno-builtin", str(source), "-ldl"]
        compiler.run(*options, "-o", str(folder / "libpool_meter.so"), temporary=folder)

    name = sha256_value([sha256_file(source), compiler.identity])[:16]
    return cache.keep("meters", name, "pool meter", fill, console) / "libpool_meter.so"


def _simulated(target: Target, console: Console) -> dict[str, str]:
    """Environment variables under which simcuda builds and runs."""
    folders = header_folders(target, console)
    return {
        "SIMCUDA_CUDA_INCLUDE": os.pathsep.join(map(str, folders)),
        "SIMCUDA_CACHE": str(cache.use("simcuda")),
        "SIMCUDA_QUIET": "1",
    }


_WRONG = re.compile(r": (fatal )?error: |undefined reference")


def identity(target: Target) -> str:
    """Of the simulated device's code."""
    folder = target.project.tools / "simcuda"
    kinds = (".py", ".cpp", ".h", ".in", ".toml")
    files = sorted(f for f in folder.rglob("*") if f.suffix in kinds)
    return sha256_value([[str(f.relative_to(folder)), sha256_file(f)] for f in files])


def build_simulated(
    target: Target, environment: Environment, console: Console, jobs: int | None = None,
    torch: Path | None = None,
) -> Path:  # fmt: skip
    """Build the simulated device for the torch in `environment`, or for the one in the folder
    `torch`; a finished build is reused."""
    command = [str(environment.python), "-m", "simcuda", "build", "-j", str(jobs or processors())]
    command += ["--torch", str(torch)] if torch else []
    with console.task(f"building the simulated device for {environment.path.name}"):
        done = environment.run(command, _simulated(target, console), target.project.tools)
    if done.returncode != 0:
        raise CompileError(
            f"the simulated device was not built because {reason_of(done.stderr)}; see "
            "the full log",
            output=done.stderr,
        )
    return Path(done.stdout.strip().splitlines()[-1])


def reason_of(said: str) -> str:
    """The line of a compiler or linker that says what is wrong; the last says that something is."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["nothing was said"]
    return next((line for line in lines if _WRONG.search(line)), lines[-1])
