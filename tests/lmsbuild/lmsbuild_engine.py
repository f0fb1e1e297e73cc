# SPDX-License-Identifier: Apache-2.0
"""A real container engine for the tests, and base images where no registry can be reached.

The engine that answers is used; else, as root, dockerd is started with folders of its own. Test
processes share it: each holds a shared lock. A guard, this file as a program, waits for the time
when nobody does, killed or not, and stops it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from docker.client import DockerClient

from lmsbuild.base import cache
from lmsbuild.base.console import Console
from lmsbuild.base.hashing import sha256_value
from lmsbuild.checkout.debian import codename, main_archive

_SECONDS = 60
# A short path: that of a socket has at most 108 characters.
FOLDER = Path("/tmp/lmsbuild-test-engine")
TOOLS = ("ca-certificates", "ccache", "cmake", "g++", "git", "ninja-build", "python3",
         "python3-dev", "python3-venv")  # fmt: skip


def missing(reason: str) -> None:
    """Skip for a `reason` that is a failure where everything must run."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"this may not be skipped in CI: {reason}")
    pytest.skip(reason)


@dataclass(frozen=True)
class Engine:
    client: Any
    host: str  # for DOCKER_HOST


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """An engine that answers. Skips with the reason where none does."""
    with contextlib.ExitStack() as stack:
        host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        client = _answering(host)
        if client is None:
            host = stack.enter_context(_own())
            client = _answering(host)
        assert client is not None
        stack.enter_context(contextlib.closing(client))
        yield Engine(client, host)


def _answering(host: str) -> Any:
    with contextlib.suppress(Exception):
        client = DockerClient(base_url=host, timeout=600)
        client.ping()
        return client
    return None


@contextlib.contextmanager
def _own() -> Iterator[str]:
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        missing("no container engine answers, and dockerd cannot be started (root, docker.io)")
    FOLDER.mkdir(exist_ok=True)
    host = f"unix://{FOLDER}/socket"
    with (FOLDER / "users").open("w") as users:
        with _changing():
            if _answering(host) is None:
                _start(host)
            fcntl.flock(users, fcntl.LOCK_SH)
        yield host


def guard(folder: Path) -> None:
    """Stop the engine of `folder` when no process uses it any longer."""
    while True:
        with (folder / "users").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
        # Whoever comes now holds the other lock while it becomes a user.
        with (
            _changing(folder),
            (folder / "users").open("w") as users,
            contextlib.suppress(BlockingIOError),
        ):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _stop(folder)
            return


@contextlib.contextmanager
def _changing(folder: Path = FOLDER) -> Iterator[None]:
    """One process at a time starts or stops it."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start(host: str) -> None:
    command = [
        "dockerd",
        *(f"--data-root={FOLDER}/data", f"--exec-root={FOLDER}/exec", f"--host={host}"),
        *(f"--pidfile={FOLDER}/pid", "--max-download-attempts=1"),
    ]
    (FOLDER / "pid").unlink(missing_ok=True)
    with (FOLDER / "log").open("w") as log:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + _SECONDS
    while _answering(host) is None:
        if started.poll() is not None or time.monotonic() > deadline:
            last = (FOLDER / "log").read_text().strip().splitlines()[-1:]
            missing(f"dockerd does not start: {' '.join(last)}")
        time.sleep(0.1)
    subprocess.Popen(
        [sys.executable, __file__, FOLDER],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def _stop(folder: Path) -> None:
    """Images stay in the folder for the next run."""
    with contextlib.suppress(FileNotFoundError, ValueError, psutil.Error):
        daemon = psutil.Process(int((folder / "pid").read_text()))
        daemon.terminate()
        daemon.wait(_SECONDS)


def base_image(engine: Engine, suite: str, packages: tuple[str, ...], arch: str = "amd64") -> str:
    """The name of an image of Debian `suite` with `packages`, made by mmdebstrap."""
    key = sha256_value([suite, packages, arch])[:12]
    name = f"lmsbuild-test-{suite}-{arch}:{key}"
    if engine.client.images.list(name):
        return name
    if shutil.which("mmdebstrap") is None or os.getuid() != 0:
        missing("no base image can be made without root and mmdebstrap")

    def fill(file: Path) -> None:
        archive = main_archive(codename() or "")
        if archive is None:
            missing("no base image can be made without Debian's archive")
            return
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--architectures={arch}"]
        command += [f"--include={','.join(packages)}"] if packages else []
        command += [f"--dpkgopt=path-exclude=/usr/share/{place}/*" for place in ("doc", "locale")]
        # The file of an unfinished entry has a name that says nothing.
        command += ["--format=tar", suite, str(file), archive.uri]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    title = f"test image of Debian {suite} for {arch}"
    tar = cache.keep("images", f"{suite}-{arch}-{key}.tar", title, fill, Console(json_mode=True))
    import_image(engine, tar, name, {"amd64": "amd64", "ppc64el": "ppc64le"}[arch])
    return name


def import_image(engine: Engine, tar: Path, name: str, arch: str) -> None:
    """An image of one layer. `docker import` would record this machine's architecture."""
    with tempfile.TemporaryDirectory(dir=tar.parent) as folder:
        context = Path(folder)
        os.link(tar, context / "root.tar")
        (context / "Dockerfile").write_text('FROM scratch\nADD root.tar /\nCMD ["/bin/sh"]\n')
        engine.client.images.build(
            path=folder, tag=name, platform=f"linux/{arch}", rm=True, forcerm=True, nocache=True
        )


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
