# SPDX-License-Identifier: Apache-2.0
"""A small framework with real git history, and a project with a series for it."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from filelock import FileLock

from lmsbuild.base.git import Git
from lmsbuild.base.project import FRAMEWORK_FILE, Project
from lmsbuild.checkout.refresh import refresh
from lmsbuild.cli.group import cli
from lmsbuild.tags.frameworks import TAG_FILE, Target, resolve

REPOSITORY = Path(__file__).resolve().parents[2]
ZERO = "0" * 64


@contextlib.contextmanager
def real_checkout() -> Iterator[None]:
    """Test processes that fetch and apply in this repository's own work folder take turns."""
    work = Project(REPOSITORY).work
    work.mkdir(exist_ok=True)
    with FileLock(work / ".tests.lock"):
        yield


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of `size` on `folder`, which is made."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full_disk(*_arguments: object) -> None:
    """In place of a function that writes."""
    raise OSError(errno.ENOSPC, "full")


def leave(disk: Path, room: int) -> None:
    """Fill a small disk up to `room` bytes."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    free = os.statvfs(disk)
    filler.write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - room)))


UPSTREAM = {
    "core/alloc.cpp": "".join(f"int line{i} = {i};\n" for i in range(1, 41)),
    "core/alloc.h": "#pragma once\nint upstream();\n",
    "core/CMakeLists.txt": "set(CORE_SRCS\n  alloc.cpp  # the allocator\n)\n",
    "python/api.py": "def memory():\n    return 0\n",
    "python/windows.py": "first = 1\r\nsecond = 2\r\n",
    "recognise.me": "alpha\n",
    ".gitignore": "*.generated\n",
    "kept.generated": "tracked although ignored\n",
}
RUNTIME = {
    "lms/core/engine.cpp": "int engine() { return 1; }\n",
    "lms/core/engine.h": "#pragma once\nint engine();\n",
}

FRAMEWORK = """\
url = "file:///of.upstream"
recognise = ["recognise.me", "core/alloc.cpp"]

[shows]
suites = "tests/regression"
example = "examples/train.py"
switch = "ALPHA_LMS"
device = "cpu"
tests = []

[[layout]]
source = "lms/core"
target = "core/lms"
patterns = ["*.h", "*.cpp"]
"""
TAG = """\
version = "1.0"
commit = "{commit}"

[cuda."0"]
abi = 1
headers = []

[cuda."0".wheel]
project = "alpha"
version = "1.0"
local = "lms.1"
platforms = ["linux_x86_64"]
version_file = "alpha/version.py"
sha256 = {{ "3.11" = "{zero}" }}

[overlay]
cxx_standard = "c++17"
flags = ["-O1", "-fPIC"]
include = ["tree:"]
prefix = "/alpha"
build_files = ["*CMakeLists.txt"]

[[overlay.libraries]]
path = "alpha/lib/libcore.so"
like = "alpha/lib/libcore.so"
sources = ["core/alloc.cpp", "core/lms/engine.cpp"]
cmake = {{ file = "core/CMakeLists.txt", variable = "CORE_SRCS" }}

[[overlay.install]]
source = "core"
suffixes = [".h"]
target = "alpha/include/core"

[[overlay.install]]
source = "python"
suffixes = [".py"]
target = "alpha"

[preimage]
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def plain_git(path: Path, *arguments: str) -> str:
    """git as any user has it, apart from lmsbuild's own wrapper."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env |= {
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "User", "GIT_AUTHOR_EMAIL": "user@example.invalid",
        "GIT_COMMITTER_NAME": "User", "GIT_COMMITTER_EMAIL": "user@example.invalid",
    }  # fmt: skip
    done = subprocess.run(
        ["git", *arguments], cwd=path, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def blobs_of(path: Path, paths: Iterable[str]) -> dict[str, str]:
    """The blob ids of those of `paths` that the commit has."""
    listed = plain_git(path, "ls-tree", "-r", "HEAD").splitlines()
    found = {line.split("\t")[1]: line.split()[2] for line in listed}
    return {name: found[name] for name in paths if name in found}


@dataclass(frozen=True)
class World:
    """Everything a test needs: the project, the upstream repository and a way to check it out."""

    project: Project
    upstream: Path
    folder: Path

    @property
    def target(self) -> Target:
        return resolve(self.project, "v1.0")

    @property
    def framework_file(self) -> Path:
        return self.project.patches / "alpha" / FRAMEWORK_FILE

    @property
    def tag_file(self) -> Path:
        return self.project.patches / "alpha" / "v1.0" / TAG_FILE

    def clone(self, name: str = "clone") -> Path:
        path = self.folder / name
        plain_git(self.folder, "clone", "-q", str(self.upstream), str(path))
        return path

    def commit(self, tree: Path, files: dict[str, str], message: str) -> None:
        write(tree, files)
        git = Git(tree)
        git.run("add", "-A", "-f")
        git.run("commit", "-q", "-m", message)


def hook_files() -> dict[str, dict[str, str]]:
    """Message -> files, for the two hook commits of v1.0."""
    alloc = UPSTREAM["core/alloc.cpp"].replace("int line20 = 20;\n", "int line20 = 21;\n")
    windows = UPSTREAM["python/windows.py"].replace("second = 2", "second = 3")
    cmake = "set(CORE_SRCS\n  alloc.cpp  # the allocator\n  lms/engine.cpp\n)\n"
    return {
        "Call the engine\n\nBecause it must be called.": {
            "core/alloc.cpp": alloc,
            "core/CMakeLists.txt": cmake,
        },
        "Show it in Python": {
            "python/api.py": "def memory():\n    return 1\n",
            "python/windows.py": windows,
            "python/lms.py": "# new   \n",
        },
    }


def make_world(folder: Path, upstream: dict[str, str], older: dict[str, str] | None = None) -> None:
    """What `enter_world` wants: upstream's history, and a project with a series for it. `older` is
    how upstream was before, at the tag v0.9."""
    source = folder / "upstream"
    source.mkdir()
    git = Git(source)
    git.run("init", "-q")
    built = World(Project(folder / "project"), source, folder)
    if older:
        built.commit(source, older, "Release 0.9")
        git.run("tag", "v0.9")
    built.commit(source, upstream, "Release 1.0")
    git.run("tag", "-a", "v1.0", "-m", "1.0")
    write(built.project.root, RUNTIME)
    write(built.framework_file.parent, {built.framework_file.name: FRAMEWORK})
    tag = TAG.format(commit=plain_git(source, "rev-parse", "HEAD"), zero=ZERO)
    write(built.tag_file.parent, {built.tag_file.name: tag})
    shutil.copytree(REPOSITORY / "docker", built.project.root / "docker")
    # The series is made the way a developer makes it: runtime from lms/, hooks from commits.
    refresh(built.target, None)
    develop = built.clone("develop")
    runtime = next(built.target.runtime_patches.glob("*.patch"))
    Git(develop).run("am", "-q", "--keep-cr", str(runtime))
    for message, files in hook_files().items():
        built.commit(develop, files, message)
    refresh(built.target, develop)
    shutil.rmtree(develop)


def enter_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The world in `folder`, with a cache and a work folder of its own."""
    built = World(Project(folder / "project"), folder / "upstream", folder)
    toml = built.framework_file
    toml.write_text(toml.read_text().replace("file:///of.upstream", built.upstream.as_uri()))
    for name in list(os.environ):
        if name.startswith(("GIT_", "LMSBUILD_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LMSBUILD_ROOT", str(built.project.root))
    monkeypatch.setenv("LMSBUILD_CACHE", str(folder / "cache"))
    monkeypatch.setenv("LMSBUILD_WORK", str(folder / "work"))
    monkeypatch.chdir(folder)
    return built


def examples_of(name: str) -> list[list[str]]:
    """The command lines in the help of a command, each as words without `lmsbuild`."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.epilog
    lines = [line.strip() for line in command.epilog.splitlines() if "lmsbuild " in line]
    words = [(line.partition("&& ")[2] or line).partition("#")[0] for line in lines]
    return [shlex.split(line)[1:] for line in words]
