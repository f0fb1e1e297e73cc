# SPDX-License-Identifier: Apache-2.0
"""Wheels through pip, exact versions by hash, kept in the cache."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock
from packaging.version import Version

from lmsbuild.console import Console
from lmsbuild.errors import DownloadError, WheelError
from lmsbuild.frameworks import HeaderWheel, Wheel
from lmsbuild.hashing import sha256_large_file
from lmsbuild.project import cache_dir

_PROGRESS = re.compile(rb"^Progress (\d+) of (\d+)")


def hash_memory() -> Path:
    return cache_dir() / "hashes"


def official_wheel(wheel: Wheel, python: str, console: Console) -> Path:
    """The official wheel for CPython `python` (X.Y). Raises DownloadError, WheelError."""
    digest = wheel.sha256.get(python)
    if digest is None:
        raise DownloadError(
            f"{wheel.project} {wheel.version} cannot be had for Python {python} because its "
            f"official wheels are for {', '.join(wheel.sha256)}; choose one with --python"
        )
    tag = f"cp{python.replace('.', '')}"
    options = ["--python-version", python, "--implementation", "cp", "--abi", tag]
    options += [word for name in wheel.platforms for word in ("--platform", name)]
    return _wheel(wheel.project, wheel.version, digest, options, console)


def header_wheel(wheel: HeaderWheel, console: Console) -> Path:
    return _wheel(wheel.project, wheel.version, wheel.sha256, [], console)


def _wheel(
    project: str, version: str, digest: str, options: Sequence[str], console: Console
) -> Path:
    folder = cache_dir() / "wheels" / digest[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        found = next(iter(folder.glob("*.whl")), None)
        if found is None:
            found = _download(project, version, digest, options, folder, console)
        with console.task(f"checking {found.name}"):
            actual = sha256_large_file(found, hash_memory())
    if actual != digest:
        raise WheelError(
            f"{found} is damaged because its SHA-256 is {actual}, not {digest}; remove it and run "
            "again",
            file=found,
        )
    return found


def _download(
    project: str, version: str, digest: str, options: Sequence[str], folder: Path, console: Console
) -> Path:
    with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as name:
        fresh = Path(name)
        requirement = fresh / "requirement.txt"
        requirement.write_text(f"{project}=={version} --hash=sha256:{digest}\n", encoding="utf-8")
        command = [
            sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
            "--disable-pip-version-check", "--require-hashes", "-r", str(requirement),
            "--dest", str(fresh), *options, *_progress_options(),
        ]  # fmt: skip
        title = f"downloading {project} {version}"
        with console.task(title) as task:
            output = b""
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert process.stdout is not None
            for line in process.stdout:
                progress = _PROGRESS.match(line)
                if progress:
                    task.update(int(progress[1]), int(progress[2]))
                else:
                    output += line
            code = process.wait()
        text = output.decode(errors="replace")
        wheel = next(iter(fresh.glob("*.whl")), None)
        if code != 0 or wheel is None:
            errors = [line[7:] for line in text.splitlines() if line.startswith("ERROR:")]
            raise DownloadError(
                f"{project} {version} was not downloaded because pip says "
                f"{(errors or text.splitlines() or ['nothing'])[-1]}; check the network and run "
                "again",
                output=text,
            )
        return wheel.rename(folder / wheel.name)


def _progress_options() -> list[str]:
    """pip tells its progress to programs from 24.1 on."""
    raw = Version(importlib.metadata.version("pip")) >= Version("24.1")
    return ["--progress-bar", "raw" if raw else "off"]
