# SPDX-License-Identifier: Apache-2.0
"""Upstream's own complete build of the patched source, in the tag's build image.

It runs in a copy of the checkout that is kept, so a build that was stopped goes on where it was,
and what a change does not touch is not compiled again; what is compiled goes through a cache that
all builds share, on this machine or, with a shared cache, on several. What upstream's build
downloads itself (Bazel does) is fetched first, in a container of its own; the one that builds has
no network unless it uses a shared cache. Both end with this process.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import Timeout

from lmsbuild import __version__
from lmsbuild.base import cache
from lmsbuild.base.console import Console, Task
from lmsbuild.base.errors import (
    BusyError,
    ConfigError,
    FullBuildError,
    GitError,
    SourceError,
    WheelError,
)
from lmsbuild.base.git import Repository, checkout_git, open_at
from lmsbuild.base.hashing import sha256_file, sha256_value
from lmsbuild.base.lockfile import Lock
from lmsbuild.base.project import cache_dir, make_folder
from lmsbuild.places.container import Container, running
from lmsbuild.places.docker import ARCHITECTURES, connect, machine
from lmsbuild.places.image import Recipe, build, fill
from lmsbuild.places.sharedcache import BAZELRC, SharedCache, shared_cache
from lmsbuild.series.series import series_of
from lmsbuild.tags.download import wheels_for
from lmsbuild.tags.frameworks import Full, Target
from lmsbuild.wheel.publish import BESIDE, BUILDING, publish, published, tidy
from lmsbuild.wheel.toolchain import processors
from lmsbuild.wheel.wheelfile import WheelName

_KEPT_LINES = 30
_ERROR = re.compile(r": (fatal )?error: |^CMake Error|^error: |^ERROR: ")
# Of ninja, make and Bazel.
_PROGRESS = re.compile(r"^\s*\[\s*([\d,]+)(?:\s*/\s*([\d,]+)|%)\]")
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
            f"{target.label} cannot be built whole because {target.file} does not say how; add "
            "a `full` table, or build without --full"
        )
    described = next(iter(target.tag.cuda))
    if target.cuda != described:
        raise ConfigError(
            f"{target.label} cannot be built whole with CUDA {target.cuda} because its `full` "
            f"table is for {described}; leave out --cuda, or change the table"
        )
    return target.tag.full


def build_full(
    found: Recipe, tree: Path, output: Path, console: Console, jobs: int | None = None
) -> FullBuilt:
    """The wheel of upstream's own build of the commit in the checkout `tree`, in `output`.

    `found` is the image that it is built in, for another machine than this an emulated one.

    Raises FullBuildError when that fails, BusyError, SourceError, WheelError, ConfigError, and what
    an image can raise.
    """
    target, python = found.target, found.python
    how = settings(target)
    remote = shared_cache(bazel=how.bazel)
    if remote:
        cache.require_network("the shared cache", f"lmsbuild wheel {target.label} --full")
    checkout = checkout_git(tree) or open_at(tree)
    if checkout.changes():
        console.warn(f"the build leaves out what is not committed in {tree}")
    jobs = jobs or parallel(processors(), free_memory(), how.memory)
    folder = target.work / f"full-py{python}-{found.machine}"
    with _alone(folder), connect() as engine:
        title = f"Python packages of the build image of {target.label}"
        wheels = wheels_for(
            found.requirements, python, found.machine, title, console, tag=target.label
        )
        image = build(engine, found, wheels, console)
        manifest: dict[str, object] = {
            "tag": target.label,
            "commit": target.tag.commit,
            "tree": checkout.tree_id("HEAD").hex(),
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
        source = _update(checkout, folder / "source", how, target, console)
        compiled = cache.use("compiled")
        make_folder(folder / "state")
        job = _Job(found, how, source, compiled, jobs, console, remote)
        emulated = None if found.machine == machine() else f"linux/{ARCHITECTURES[found.machine]}"
        shared = {folder: "rw", compiled: "rw", cache_dir(): "ro"}
        if job.to_fetch:
            cache.require_network(
                f"what the build of {target.label} downloads",
                f"lmsbuild wheel {target.label} --full",
            )
            with running(engine, image, shared, emulated, network=True) as box:
                job.fetch(box)
        with running(engine, image, shared, emulated, network=remote is not None) as box:
            made = job.build(box)
    return _publish(made, found, manifest, key, output, jobs=jobs)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    make_folder(folder)
    try:
        # Where `clean` looks for it.
        with Lock(folder.with_name(f".{folder.name}.lock"), timeout=0):
            yield
    except Timeout as error:
        raise BusyError(
            f"the build in {folder} cannot go on because another lmsbuild is at work there; wait "
            "for it, or end it"
        ) from error


def _update(
    checkout: Repository, source: Path, how: Full, target: Target, console: Console
) -> Path:
    """A copy of the commit, in which what was built stays and only changed files are new."""
    with console.step("copying the source") as step:
        make_folder(source)
        if (source / ".git").exists():
            copy = Repository(source / ".git", source)
        else:
            copy = Repository.create(source / ".git", source)
        head = checkout.tip()
        # From the folder itself, without a remote, so not by Remote.fetch.
        copy.git.run("fetch", "-q", "--depth=1", str(checkout.path), head)
        copy.git.run("checkout", "-q", "--force", "--detach", head)
        step.digest = head
    missing = [name for name in how.needs if not (source / name).exists()]
    if missing and (source / ".gitmodules").is_file():
        cache.require_network("upstream's submodules", f"lmsbuild wheel {target.label} --full")
        with console.step("fetching submodules"):
            try:
                copy.git.run("submodule", "update", "--init", "--recursive", "--depth=1")
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


@dataclass(frozen=True)
class _Job:
    """Upstream's build in the folder of `source`, whose commit is checked out there."""

    found: Recipe
    how: Full
    source: Path
    compiled: Path  # the cache that all builds share
    jobs: int
    console: Console
    remote: SharedCache | None

    @property
    def _output(self) -> Path:
        return self.source.parent / "dist"

    def _values(self, launcher: str) -> dict[str, str]:
        return {
            "launcher": launcher, "python": "/opt/build/bin/python",
            "python_version": self.found.python,
            "version": self.found.target.version, "jobs": str(self.jobs),
            "output": str(self._output), "state": str(self.source.parent / "state"),
            "cache": str(self.compiled),
        }  # fmt: skip

    @property
    def _fetched(self) -> Path:
        """Tells what was fetched last."""
        return self.source.parent / "state" / "fetched"

    @property
    def _wanted(self) -> str:
        with open_at(self.source) as copy:
            head = copy.tip()
        return sha256_value([head, self.how.fetch, self.how.environment])

    @property
    def to_fetch(self) -> bool:
        if not self.how.fetch:
            return False
        return not self._fetched.exists() or self._fetched.read_text() != self._wanted

    def fetch(self, box: Container) -> None:
        """What the build downloads. Raises SourceError."""
        with self.console.step(f"fetching what {self.found.target.label} is built on") as step:
            failed = self._run(box, self.how.fetch, step)
            if failed:
                raise SourceError(
                    f"what {self.found.target.label} is built on was not fetched because "
                    f"{failed.reason}; check the network and run again, what is complete is kept",
                    output=failed.output,
                )
        self._fetched.write_text(self._wanted)

    def build(self, box: Container) -> Path:
        """The wheel. Raises FullBuildError."""
        shutil.rmtree(self._output, ignore_errors=True)
        label = self.found.target.label
        with self.console.step(f"building {label} with {self.jobs} jobs") as step:
            failed = self._run(box, self.how.commands, step)
            if failed:
                remedy = (
                    f"it ran out of memory with {self.jobs} jobs, so give fewer with --jobs"
                    if failed.killed
                    else "correct what they say"
                )
                raise FullBuildError(
                    f"{label} was not built because {failed.reason}; see its last lines and "
                    f"the log: {remedy}, and run again: it goes on where it stopped",
                    output=failed.output,
                )
        wheels = sorted(self._output.glob("*.whl"))
        if len(wheels) != 1:
            raise FullBuildError(
                f"{label} was not built because its commands left {len(wheels)} wheels in "
                f"{self._output}; correct `full.commands` in "
                f"{self.found.target.file}"
            )
        return wheels[0]

    def _shared(self, box: Container) -> tuple[str, dict[str, str]]:
        """The compilers' launcher, and what tells it of the cache that builds share."""
        rc = self.source.parent / BAZELRC  # in its home
        rc.unlink(missing_ok=True)
        if self.remote is None:
            return "ccache", {}
        if self.how.bazel:
            rc.write_text(self.remote.bazelrc, encoding="utf-8")
            rc.chmod(0o600)
            return "ccache", {}
        launcher = self.remote.launcher(
            lambda name: box.run(["sh", "-c", f"command -v {name}"], {}).returncode == 0
        )
        return launcher, self.remote.environment(launcher, str(self.source))

    def _run(self, box: Container, commands: Sequence[Sequence[str]], step: Task) -> _Failed | None:
        """Run `commands` until one fails."""
        launcher, more = self._shared(box)
        values = self._values(launcher)
        environment = {
            "HOME": str(self.source.parent), "USER": "lmsbuild", "LC_ALL": "C.UTF-8",
            "CCACHE_DIR": str(self.compiled / "ccache"), "CCACHE_BASEDIR": str(self.source),
            "CCACHE_NOHASHDIR": "1", **more,
            **{name: fill(value, values) for name, value in self.how.environment.items()},
        }  # fmt: skip
        # The compiler of the image's choice comes first, then what its PATH says.
        places = Path(box.which(self.found.image.compilers)).parent
        prefix = ["sh", "-c", f'PATH="/opt/build/bin:{places}:$PATH"; export PATH; exec "$@"', "sh"]
        for command in commands:
            filled = [fill(word, values) for word in command]
            output = _Output(step)
            code = box.follow([*prefix, *filled], environment, self.source, output).returncode
            if code != 0:
                said = "\n".join(output.last)
                self.console.warn(f"the last lines of the build:\n{said}")
                reason = f"`{' '.join(filled)}` ended with code {code} ({output.reason})"
                return _Failed(reason, said, code == 137 or "Killed signal" in said)
        return None


class _Output:
    """Takes a build's lines: shows how far it is, and keeps what tells why it failed."""

    def __init__(self, step: Task) -> None:
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._step = step
        self._error = ""  # the first

    @property
    def reason(self) -> str:
        return self._error or (self.last[-1] if self.last else "without output")

    def __call__(self, line: str) -> bool:
        self.last.append(line.rstrip())
        if _ERROR.search(line) and not self._error:
            self._error = line.strip()
        if begun := _PROGRESS.match(line):
            done, total = (int((text or "100").replace(",", "")) for text in begun.groups())
            self._step.update(done, total)
        return False


@dataclass(frozen=True)
class _Failed:
    reason: str
    output: str  # its last lines
    killed: bool  # for want of memory


def _publish(
    made: Path, found: Recipe, manifest: dict[str, object], key: str, output: Path, *, jobs: int
) -> FullBuilt:
    target = found.target
    name = WheelName.of(made)
    if not name.is_of(target.wheel.project, target.version):
        raise WheelError(
            f"{made.name} is not the wheel of {target.label} because that is "
            f"{target.wheel.project} {target.version}; set the version in `full.environment` of "
            f"{target.file}"
        )
    make_folder(output)
    digest = sha256_file(made)
    with Lock(output / ".lock"):
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
    return FullBuilt(wheel, Path(f"{wheel}{BESIDE}"), key, reused=False, sha256=digest, jobs=jobs)


def _existing(output: Path, key: str, jobs: int) -> FullBuilt | None:
    for wheel, note, manifest in published(output, {"key": key}):
        digest = manifest["wheel"]["sha256"]
        return FullBuilt(wheel, note, key, reused=True, sha256=digest, jobs=jobs)
    return None
