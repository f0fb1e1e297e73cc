# SPDX-License-Identifier: Apache-2.0
"""What this machine has and lacks for building and testing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from lmsbuild.base import settings
from lmsbuild.places import numa

GIB = 1 << 30
DISK_GIB = 12  # a wheel unpacked twice, its cache, two environments and a source tree
MEMORY_GIB = 4  # two compilers at work
PYTHONS = (Version("3.10"), Version("3.14"))


@dataclass(frozen=True)
class Check:
    name: str
    found: str
    needed: str
    good: bool
    fix: str  # the command that installs it, "" when there is none
    required: bool = True


_PACKAGES = {
    # tool: (Debian, Fedora, Arch, openSUSE)
    "git": ("git", "git", "git", "git"),
    "g++": ("g++", "gcc-c++", "gcc", "gcc-c++"),
    "make": ("make", "make", "make", "make"),
    "numactl": ("numactl", "numactl", "numactl", "numactl"),
    "venv": ("python3-venv", "python3", "python", "python3"),
}
_MANAGERS = (
    ("apt-get", "sudo apt-get install --yes"),
    ("dnf", "sudo dnf install --assumeyes"),
    ("pacman", "sudo pacman -S --noconfirm"),
    ("zypper", "sudo zypper install --no-confirm"),
)


def install_command(tool: str) -> str:
    """The command of this machine's package manager that installs `tool`."""
    for column, (manager, command) in enumerate(_MANAGERS):
        if shutil.which(manager):
            return f"{command} {_PACKAGES[tool][column]}"
    return f"install {tool} with this system's package manager"


def checks(work: Path, cache: Path) -> list[Check]:
    """Everything that is looked at, in the order in which it is needed."""
    return [
        _tool("git", "git", "--version", "2.31"),
        _compiler(),
        _tool("make", "make", "--version", "3.81"),
        _python(),
        _module("venv", install_command("venv")),
        _module("pip", f"{sys.executable} -m ensurepip"),
        _disk("disk for work", work),
        _disk("disk for the cache", cache),
        _memory(),
        _apt(),
        _device(),
        _numa(),
    ]


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.splitlines() or [""])[0] if done.returncode == 0 else ""


def _tool(name: str, tool: str, option: str, least: str) -> Check:
    line = _first_line(tool, option) if shutil.which(tool) else ""
    versions = re.findall(r"\d+(?:\.\d+)+", line)
    good = bool(versions) and Version(versions[-1]) >= Version(least)
    return Check(name, line or "none", f">= {least}", good, install_command(tool))


def _compiler() -> Check:
    """$CXX, of whose versions nothing is known here, else g++."""
    own = settings.compiler()[:1]
    if not own:
        return _tool("C++ compiler", "g++", "--version", "9")
    line = _first_line(own[0], "--version") if shutil.which(own[0]) else ""
    found = line or f"CXX is {own[0]}, which is not there"
    return Check("C++ compiler", found, "one that runs", bool(line), "unset CXX, or set it to one")


def _python() -> Check:
    version = Version(".".join(map(str, sys.version_info[:3])))
    good = PYTHONS[0] <= version < PYTHONS[1]
    return Check("Python", str(version), "3.10 to 3.13", good, "run lmsbuild with another Python")


def _module(name: str, fix: str) -> Check:
    # Debian ships venv without ensurepip; an environment is made without pip, so venv suffices.
    found = importlib.util.find_spec(name) is not None
    return Check(f"Python module {name}", "present" if found else "none", "present", found, fix)


def _disk(name: str, folder: Path) -> Check:
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    used = sum(f.stat().st_size for f in folder.glob("*/wheels/*.whl")) if folder.is_dir() else 0
    writable = os.access(place, os.W_OK)
    good = writable and free + used >= DISK_GIB * GIB
    variable = "LMSBUILD_CACHE" if "cache" in name else "LMSBUILD_WORK"
    found = f"{free / GIB:.0f} GiB free" if writable else f"{place} cannot be written"
    return Check(
        name, found, f">= {DISK_GIB} GiB", good,
        f"export {variable}=/path/on/a/larger/disk",
    )  # fmt: skip


def _memory() -> Check:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        total = int(re.findall(r"MemTotal:\s+(\d+)", text)[0]) * 1024
    except (OSError, IndexError):
        return Check("memory", "unknown", f">= {MEMORY_GIB} GiB", good=True, fix="")
    good = total >= 0.9 * MEMORY_GIB * GIB
    return Check(
        "memory", f"{total / GIB:.0f} GiB", f">= {MEMORY_GIB} GiB", good, "build with --jobs 1"
    )


def _apt() -> Check:
    found = shutil.which("apt-get") is not None
    return Check(
        "apt (source packages)", "present" if found else "none",
        "for sources where upstream git cannot be reached", found, "", required=False,
    )  # fmt: skip


def gpu() -> str:
    """The name of the first NVIDIA GPU, "" if there is none."""
    if not shutil.which("nvidia-smi"):
        return ""
    return _first_line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")


def _device() -> Check:
    name = gpu()
    return Check(
        "CUDA device", name or "none: the simulated device is used", "optional", bool(name), "",
        required=False,
    )  # fmt: skip


def _numa() -> Check:
    """Whether numactl can keep a program near its GPU, where that makes a difference."""
    apart = [gpu for gpu in numa.gpus() if gpu.node is not None]
    if not apart:
        found = "one node, or no GPU whose node is known: nothing to bind"
        return Check("NUMA", found, "optional", good=True, fix="", required=False)
    found = ", ".join(f"GPU {gpu.index} at node {gpu.node}" for gpu in apart)
    present = shutil.which("numactl") is not None
    return Check(
        "NUMA", found + ("" if present else "; numactl is not installed"), "optional", present,
        "" if present else install_command("numactl"), required=False,
    )  # fmt: skip
