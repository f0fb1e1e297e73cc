# SPDX-License-Identifier: Apache-2.0
"""Upstream's own complete build of the patched source, in the tag's build image.

It runs in a copy of the checkout that is kept, so a build that was stopped goes on where it was,
and what a change does not touch is not compiled again; what is compiled goes through a compiler
cache that all builds share. The container has no network, and ends with this process.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from lmsbuild import __version__, cache
from lmsbuild.console import Console, Task
from lmsbuild.container import Container, running
from lmsbuild.download import wheels_for
from lmsbuild.engine import connect
from lmsbuild.errors import (
    BusyError,
    ConfigError,
    FullBuildError,
    GitError,
    SourceError,
    WheelError,
)
from lmsbuild.frameworks import Full, Target
from lmsbuild.git import Git, checkout_git
from lmsbuild.hashing import sha256_file, sha256_value
from lmsbuild.image import Recipe, build, fill, recipe
from lmsbuild.overlay import BESIDE, BUILDING, publish, tidy
from lmsbuild.project import cache_dir, make_folder
from lmsbuild.series import series_of
from lmsbuild.toolchain import processors
from lmsbuild.wheelfile import WheelName

_KEPT_LINES = 30
_ERROR = re.compile(r": (fatal )?error: |^CMake Error|^error: ")
_PROGRESS = re.compile(r"^\s*\[\s*(\d+)(?:/(\d+)|%)\]")
_LIMITS = {  # of a control group, in bytes: what it may use, and does
    "/sys/fs/cgroup/memory.max": "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "/sys/fs/cgroup/memory/memory.usage_in_bytes",
}


@dataclass(frozen=True)
class FullBuilt:
    wheel: Path
    manifest: Path
    key: str
    reused: bool  # nothing had changed
    sha256: str
    jobs: int


def parallel(cores: int, free: int, each: int) -> int:
    """Compilations at once: one a core, if the `free` memory has `each` bytes for every one."""
    return max(1, min(cores, free // each))


def free_memory() -> int:
    """Bytes that this process may still use: of the machine, and of its control group."""
    found: list[int] = [psutil.virtual_memory().available]
    for limit, used in _LIMITS.items():
        try:
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # "max", or no such group
            continue
    return max(0, min(found))


def settings(target: Target) -> Full:
    if target.tag.full is None:
        raise ConfigError(
            f"{target.label} cannot be built whole because frameworks.toml does not say how; add a "
            "`full` table, or build without --full"
        )
    return target.tag.full


def build_full(
    target: Target, tree: Path, python: str, output: Path, console: Console,
    base_image: str | None = None, jobs: int | None = None,
) -> FullBuilt:  # fmt: skip
    """The wheel of upstream's own build of the commit in the checkout `tree`, in `output`.

    Raises FullBuildError when that fails, BusyError, SourceError, WheelError, ConfigError, and what
    an image can raise.
    """
    how = settings(target)
    found = recipe(target, "build", python, None, base_image)
    git = checkout_git(tree) or Git(tree)
    if git.changes():
        console.warn(f"the build leaves out what is not committed in {tree}")
    jobs = jobs or parallel(processors(), free_memory(), how.memory)
    folder = target.work / f"full-py{python}-{found.machine}"
    with _alone(folder), connect() as engine:
        title = f"Python packages of the build image of {target.label}"
        wheels = wheels_for(found.requirements, python, found.machine, title, console, target.label)
        image = build(engine, found, wheels, console)
        manifest: dict[str, object] = {
            "tag": target.label,
            "commit": target.tag.commit,
            "tree": git.text("rev-parse", "HEAD^{tree}"),
            "patches": {patch.name: patch.sha256 for patch in series_of(target).patches},
            "build": "full",
            "image": image,
            "base": found.base,
            "machine": found.machine,
            "python": python,
            "settings": how.model_dump(mode="json", exclude={"ran"}),
            "lmsbuild": __version__,
        }
        key = sha256_value(manifest)
        done = _existing(output, key, jobs)
        if done:
            return done
        source = _update(git, folder / "source", how, target, console)
        ccache = cache.use("ccache")
        shared = {folder: "rw", ccache: "rw", cache_dir(): "ro"}
        with running(engine, image, shared) as box:
            made = _run(box, found, how, source, ccache, jobs, console)
    return _publish(made, found, manifest, key, output, jobs)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    make_folder(folder)
    try:
        # Where `clean` looks for it.
        with FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0):
            yield
    except Timeout as error:
        raise BusyError(
            f"the build in {folder} cannot go on because another lmsbuild is at work there; wait "
            "for it, or end it"
        ) from error


def _update(git: Git, source: Path, how: Full, target: Target, console: Console) -> Path:
    """A copy of the commit, in which what was built stays and only changed files are new."""
    with console.step("copying the source") as step:
        make_folder(source)
        copy = Git(source)
        if not (source / ".git").exists():
            copy.run("init", "-q")
        head = git.text("rev-parse", "HEAD")
        copy.run("fetch", "-q", "--depth=1", str(git.path), head)
        copy.run("checkout", "-q", "--force", "--detach", head)
        step.digest = head
    missing = [name for name in how.needs if not (source / name).exists()]
    if missing and (source / ".gitmodules").is_file():
        cache.require_network("upstream's submodules", f"lmsbuild wheel {target.label} --full")
        with console.step("fetching submodules"):
            try:
                copy.run("submodule", "update", "--init", "--recursive", "--depth=1")
            except GitError as error:
                raise SourceError(
                    f"upstream's submodules were not fetched because {error.reason}; check the "
                    "network and run again",
                    output=error.output,
                ) from error
        missing = [name for name in how.needs if not (source / name).exists()]
    if missing:
        raise SourceError(
            f"{target.label} cannot be built whole because its source lacks {missing[0]} (Debian's "
            "has no bundled libraries); fetch it anew with --source git"
        )
    return source


def _run(
    box: Container, found: Recipe, how: Full, source: Path, ccache: Path, jobs: int,
    console: Console,
) -> Path:  # fmt: skip
    """Upstream's build in the container. The wheel that it made."""
    made = source.parent / "dist"
    shutil.rmtree(made, ignore_errors=True)
    values = {"python": "python", "output": str(made), "version": found.target.version}
    environment = {
        "HOME": str(source.parent), "CCACHE_DIR": str(ccache), "CCACHE_BASEDIR": str(source),
        "CCACHE_NOHASHDIR": "1", "LC_ALL": "C.UTF-8", how.jobs: str(jobs),
        **{name: fill(value, values) for name, value in how.environment.items()},
    }  # fmt: skip
    places = Path(box.which(found.image.compilers)).parent
    # The compiler of the image's choice comes first, then what its PATH says.
    prefix = ["sh", "-c", f'PATH="/opt/build/bin:{places}:$PATH"; export PATH; exec "$@"', "sh"]
    command = [fill(word, values) for word in how.command]
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    errors: list[str] = []
    with console.step(f"building {found.target.label} with {jobs} jobs") as step:

        def line(text: str) -> bool:
            _show(text, step)
            last.append(text.rstrip())
            if _ERROR.search(text) and not errors:
                errors.append(text.strip())
            return False

        done = box.follow([*prefix, *command], environment, source, line)
    if done.returncode != 0:
        said = "\n".join(last)
        console.warn(f"the last lines of the build:\n{said}")
        killed = done.returncode == 137 or "Killed signal" in said
        remedy = (
            f"it ran out of memory with {jobs} jobs, so give fewer with --jobs"
            if killed
            else "correct what they say"
        )
        first = [*errors, *reversed(last), "without output"][0]
        raise FullBuildError(
            f"{found.target.label} was not built because `{' '.join(command)}` ended with code "
            f"{done.returncode} ({first}); see "
            f"its last lines and the log: {remedy}, and run again: it goes on where it stopped",
            output=said,
        )
    wheels = sorted(made.glob("*.whl"))
    if len(wheels) != 1:
        raise FullBuildError(
            f"{found.target.label} was not built because `{' '.join(command)}` left {len(wheels)} "
            f"wheels in {made}; correct `full.command` in frameworks.toml"
        )
    return wheels[0]


def _show(text: str, step: Task) -> None:
    begun = _PROGRESS.match(text)
    if begun:
        step.update(int(begun[1]), int(begun[2] or 100))


def _publish(
    made: Path, found: Recipe, manifest: dict[str, object], key: str, output: Path, jobs: int
) -> FullBuilt:
    target = found.target
    name = WheelName.of(made)
    if (name.project, name.version) != (target.wheel.project, target.version):
        raise WheelError(
            f"{made.name} is not the wheel of {target.label} because that is "
            f"{target.wheel.project} {target.version}; set the version in `full.environment` of "
            "frameworks.toml"
        )
    make_folder(output)
    digest = sha256_file(made)
    with FileLock(output / ".lock"):
        tidy(output)
        with tempfile.TemporaryDirectory(dir=output, prefix=BUILDING) as building:
            fresh = Path(building) / "files"
            fresh.mkdir()
            shutil.copyfile(made, fresh / made.name)
            about = {"name": made.name, "sha256": digest, "bytes": made.stat().st_size}
            text = json.dumps({**manifest, "key": key, "wheel": about}, indent=2, sort_keys=True)
            (fresh / f"{made.name}{BESIDE}").write_text(f"{text}\n", encoding="utf-8")
            publish(output, fresh)
    wheel = output / made.name
    return FullBuilt(wheel, Path(f"{wheel}{BESIDE}"), key, False, digest, jobs)


def _existing(output: Path, key: str, jobs: int) -> FullBuilt | None:
    for note in output.glob(f"*{BESIDE}"):
        try:
            manifest = json.loads(note.read_text(encoding="utf-8"))
            wheel, digest = output / manifest["wheel"]["name"], manifest["wheel"]["sha256"]
            if manifest["key"] == key and wheel.is_file() and sha256_file(wheel) == digest:
                return FullBuilt(wheel, note, key, True, digest, jobs)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
