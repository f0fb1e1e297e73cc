# SPDX-License-Identifier: Apache-2.0
"""Python environments with the official or the overlay wheel in them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from lmsbuild.base import cache, log, strictjson
from lmsbuild.base.console import Console
from lmsbuild.base.errors import DownloadError, MissingToolError
from lmsbuild.base.hashing import sha256_file, sha256_large_file, sha256_value, write_atomic
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import make_folder
from lmsbuild.tags.download import hash_memory, wheels_for
from lmsbuild.tags.frameworks import Target
from lmsbuild.wheel import wheelfile

if TYPE_CHECKING:
    from lmsbuild.places.container import Inside

_STAMP = "lmsbuild.json"
# Only a GPU has a use for these; the simulated device brings stand-ins for the libraries.
GPU_ONLY = ("nvidia-", "triton", "cuda-")
# The simulated device reads TOML, which Python has from 3.11 on; an environment may have no pip,
# which has it, too.
DEVICE_NEEDS = ("tomli>=1.1; python_version < '3.11'",)
TEST_TOOLS = (
    "pytest>=7.4,<9",
    "pytest-timeout",
    "pytest-xdist>=3.5,<4",
    "hypothesis",
    "expecttest",
    "psutil",
    "pyyaml",
    "setuptools<80",
    # Of the suite that turns safeguards off, which is not for the Pythons of old tags.
    "tree-sitter>=0.24,<1; python_version >= '3.10'",
    "tree-sitter-cpp>=0.23,<1; python_version >= '3.10'",
    "tree-sitter-python>=0.23,<1; python_version >= '3.10'",
)


@dataclass(frozen=True)
class Environment:
    path: Path
    key: str  # of what is installed
    reused: bool
    inside: Inside | None = None  # the container that its programs run in

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def run_environment(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        """Variables for a process in this environment; nothing of the caller's Python leaks in."""
        dropped = {
            "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PYTORCH_LMS",
            "LMS_DEBUG", "TF_LMS",
        }  # fmt: skip
        kept = {
            key: value
            for key, value in os.environ.items()
            if key not in dropped and not key.startswith("SIMCUDA_")
        }
        # Bytecode is kept, since to import a framework is to compile two thousand files; here,
        # since a program also imports from source trees, which stay as they are.
        bytecode = str(self.path / "bytecode")
        return {
            **kept, "PYTHONNOUSERSITE": "1", "PYTHONPYCACHEPREFIX": bytecode, **(extra or {}),
        }  # fmt: skip

    def run(
        self, command: list[str], extra: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        if self.inside:
            return self.inside.box.run(command, self.inside.variables(extra), cwd)
        return log.run(command, env=self.run_environment(extra), cwd=cwd)

    def follow(
        self, command: list[str], line: Callable[[str], bool], cwd: Path, extra: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """As log.follow."""
        if self.inside:
            return self.inside.box.follow(command, self.inside.variables(extra), cwd, line)
        return log.follow(command, line, cwd=cwd, env=self.run_environment(extra))


def is_finished(path: Path) -> bool:
    """Whether the environment was made to its end."""
    return (path / _STAMP).is_file()


def interpreter(version: str) -> str:
    """A CPython `version` (X.Y) of this machine. Raises MissingToolError."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [sys.executable] if version == running else []
    candidates += [path for name in (f"python{version}",) if (path := shutil.which(name))]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += map(str, sorted(root.glob(f"versions/{version}.*/bin/python")))
    for candidate in candidates:
        done = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.strip() == version:
            return candidate
    raise MissingToolError(
        f"no environment can be made because Python {version} is not installed; install it (for "
        f"example with `pyenv install {version}`) or choose another with --python"
    )


def requirements(wheel: Path, python: str, machine: str | None = None) -> list[str]:
    """What the wheel requires on Python `python` and `machine` (this one), and numpy."""
    return [*_applicable(wheelfile.requirements(wheel), python, machine), "numpy"]


def _applicable(texts: Sequence[str], python: str, machine: str | None = None) -> list[str]:
    """Those of the requirements whose markers hold, without the markers."""
    facts = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    facts["platform_machine"] = machine or platform.machine()
    found = []
    for text in texts:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(facts):
            requirement.marker = None
            found.append(str(requirement))
    return found


def light_requirements(wheel: Path, python: str) -> list[str]:
    """`requirements`, but for what only a GPU has a use for."""
    return [text for text in requirements(wheel, python) if not text.startswith(GPU_ONLY)]


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What an environment is to have in it."""

    wheel: Path
    python: str  # X.Y
    on_gpu: bool  # with everything that the wheel requires, else only the light requirements
    tools: Sequence[str] = ()
    alone: Sequence[str] = ()  # more of them, without what they require
    beside: Path | None = None  # another wheel, which requires nothing but the first


def prepare(
    target: Target, kind: str, contents: Contents, console: Console, inside: Inside | None = None
) -> Environment:
    """The environment env-<kind> of a tag with these contents, made anew if it differs.

    `inside` a container, its Python is used.
    """
    wheel, python, beside = contents.wheel, contents.python, contents.beside
    path = target.work / f"env-{kind}"
    light = [] if contents.on_gpu else light_requirements(wheel, python)
    numpy = ["numpy"] if contents.on_gpu else []
    tools = _applicable([*contents.tools, *DEVICE_NEEDS], python)
    packages = [*light, *target.tag.pins, *tools, *numpy]
    base = inside.python if inside else interpreter(python)
    facts = {
        "wheel": sha256_large_file(wheel, hash_memory()),
        "python": f"{inside.image} {base}" if inside else str(Path(base).resolve()),
        "packages": packages,
        "on_gpu": contents.on_gpu,
        "tools": str(target.project.tools),
        **({"alone": list(contents.alone)} if contents.alone else {}),
        **({"beside": sha256_large_file(beside, hash_memory())} if beside else {}),
    }
    key = sha256_value(facts)
    make_folder(path.parent)
    with Lock(path.parent / f".{path.name}.lock"):
        stamp = path / _STAMP
        if strictjson.record(stamp).get("key") == key:
            return Environment(path, key, reused=True, inside=inside)
        with console.task(f"installing into {path.name}: {wheel.name}"):
            shutil.rmtree(path, ignore_errors=True)
            # Today's pip cannot be run by an old Python; the one that came with it can.
            without = ["--without-pip"] if _new_enough(python) else []
            environment = Environment(path, key, reused=False, inside=inside)
            _run(environment, [base, "-m", "venv", *without, str(path)])
            if contents.on_gpu:
                cache.require_network(
                    f"what {wheel.name} requires on a GPU", f"lmsbuild run {target.label}"
                )
                _pip(environment, "install", "--", str(wheel), *packages)
            else:
                _pip(environment, "install", "--no-index", "--no-deps", str(wheel))
                _install(environment, packages, python, target, console)
            if contents.alone:
                _install(environment, contents.alone, python, target, console, alone=True)
            if beside:
                _pip(environment, "install", "--no-index", "--no-deps", str(beside))
            site = next(path.glob("lib/python*/site-packages"))
            (site / "lmsbuild_project.pth").write_text(f"{facts['tools']}\n", encoding="utf-8")
            write_atomic(stamp, json.dumps({"key": key, **facts}, indent=2).encode())
    return environment


def with_file(environment: Environment, kind: str, member: str, file: Path) -> Environment:
    """The environment env-<kind>: the other with `file` in place of a wheel's `member`. What is
    alike has one place on the disk."""
    path = environment.path.with_name(f"env-{kind}")
    key = sha256_value([environment.key, member, sha256_file(file)])
    with Lock(path.parent / f".{path.name}.lock"):
        stamp = path / _STAMP
        if strictjson.record(stamp).get("key") == key:
            return Environment(path, key, reused=True)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(
            environment.path, path, symlinks=True, copy_function=os.link,
            ignore=shutil.ignore_patterns("bytecode", _STAMP),
        )  # fmt: skip
        (place,) = path.glob(f"lib/python*/site-packages/{member}")
        place.unlink()
        shutil.copyfile(file, place)
        write_atomic(stamp, json.dumps({"key": key}).encode())
    return Environment(path, key, reused=False)


def _install(
    environment: Environment, packages: Sequence[str], python: str, target: Target,
    console: Console, *, alone: bool = False,
) -> None:  # fmt: skip
    """Without the network, from wheels that are kept; `alone`: without what they require."""
    if environment.inside:  # as `packages_for`, by this machine's pip: a container has no network
        title = _title(packages, python)
        machine, tag = platform.machine(), target.label
        found = wheels_for(packages, python, machine, title, console, tag=tag, alone=alone)
        folder = found[0].parent
    else:
        folder = packages_for(
            environment.python, packages, python, target.label, console, alone=alone
        )
    options = ["--no-index", "--find-links", str(folder), *(["--no-deps"] if alone else [])]
    _pip(environment, "install", *options, "--", *packages)


def _title(packages: Sequence[str], python: str) -> str:
    return f"{', '.join(packages)} for Python {python}"


def packages_for(
    interpreter: Path,
    packages: Sequence[str],
    python: str,
    tag: str,
    console: Console,
    *,
    command: str = "test",
    alone: bool = False,
) -> Path:
    """A folder of wheels of `packages` and, unless `alone`, of what these require; `lmsbuild
    COMMAND TAG` is what gets them."""
    title = _title(packages, python)

    def fill(folder: Path) -> None:
        cache.require_network(title, f"lmsbuild {command} {tag}")
        folder.mkdir()
        environment = Environment(interpreter.parent.parent, "", reused=True)
        if not _new_enough(python):  # its pip needs this to build what has no wheel
            _pip(environment, "install", "wheel")
        options = ["--wheel-dir", str(folder), *(["--no-deps"] if alone else [])]
        _pip(environment, "wheel", *options, "--", *packages)

    key = [python, platform.machine(), list(packages), *(["alone"] if alone else [])]
    name = sha256_value(key)[:16]
    return cache.keep("requirements", name, title, fill, console, tag=tag)


def _new_enough(python: str) -> bool:
    """Whether the pip that runs lmsbuild can work for this Python."""
    return int(python.split(".")[1]) >= 10


def _pip(environment: Environment, command: str, *arguments: str) -> None:
    if environment.inside:
        pip = [str(environment.python), environment.inside.pip]
    elif (environment.path / "bin" / "pip").exists():
        pip = [str(environment.python), "-m", "pip"]
    else:
        pip = [sys.executable, "-m", "pip", "--python", str(environment.python)]
    options = ["--progress-bar=off", "--disable-pip-version-check"]
    if command == "install":
        options += ["--no-warn-script-location", "--no-compile"]
    _run(environment, [*pip, command, *options, *arguments])


def _run(environment: Environment, command: list[str]) -> None:
    done = environment.run(command) if environment.inside else log.run(command)
    if done.returncode != 0:
        text = (done.stderr or done.stdout).strip()
        errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
        if errors == ["ERROR: Exception:"]:  # pip's traceback follows
            errors = text.splitlines()[-1:]
        raise DownloadError(
            "an environment could not be made because "
            f"{(errors or text.splitlines() or ['nothing was said'])[-1]}; check network and disk",
            output=text,
        )
