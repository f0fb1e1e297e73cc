# SPDX-License-Identifier: Apache-2.0
"""A container engine: anything that speaks Docker's API, dockerd's socket or podman's.

What an engine says is translated here into the classes of failure.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests
from docker.client import DockerClient
from docker.errors import APIError, DockerException

from lmsbuild.base.errors import (
    BaseImageError,
    ContainerError,
    EmulationError,
    EngineDiskError,
    EngineError,
    EnginePermissionError,
    LmsbuildError,
    PullError,
)

OWNER = "lmsbuild.owner"  # label: host, process and its start
_SOCKETS = ("/var/run/docker.sock", "{runtime}/docker.sock", "{runtime}/podman/podman.sock",
            "/run/podman/podman.sock")  # fmt: skip
_SECONDS = 3600  # that the engine may take for one answer
_FAILURES = (DockerException, requests.RequestException, OSError)
# Machine (as `uname -m` says) -> the engine's word for it.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}

_EMULATION = re.compile(r"exec format error", re.I)
# runc's words and crun's, where the engine may not raise a limit to what it gives containers.
_ULIMITS = re.compile(r"setting rlimits?\b|setrlimit", re.I)
_DISK = re.compile(r"no space left on device|disk quota exceeded", re.I)
_MISSING = re.compile(
    r"manifest (for \S+ )?(unknown|not found)|pull access denied|not found: manifest|"
    r"no matching manifest|repository \S+ not found|no such image|image not known|"
    r"name unknown|(un)?authorized|short-name .* did not resolve|invalid reference format",
    re.I,
)
_NETWORK = re.compile(
    r"no such host|i/o timeout|unexpected EOF|connection re(set|fused)|network is unreachable|"
    r"TLS handshake|dial tcp|context deadline exceeded|temporary failure (in name )?resolving|"
    r"could not resolve|failed to fetch|lookup \S+( on \S+)?:|short read|\bEOF$",
    re.I,
)


@dataclass(frozen=True)
class Engine:
    """A connection to an engine that has answered."""

    client: Any
    host: str
    rootless: bool  # root in a container is then the calling user

    @property
    def user(self) -> str:
        """The user in a container whose files are the caller's."""
        return "0:0" if self.rootless else f"{os.getuid()}:{os.getgid()}"


def _hosts() -> list[str]:
    """Where an engine may answer, in the order of trial."""
    given = os.environ.get("DOCKER_HOST")
    if given:
        return [given]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    paths = [path.format(runtime=runtime) for path in _SOCKETS]
    return [f"unix://{path}" for path in paths if Path(path).exists()]


def client_at(host: str) -> Any:
    """A connection; what DOCKER_HOST names may need the certificates of DOCKER_CERT_PATH."""
    if host == os.environ.get("DOCKER_HOST"):
        return DockerClient.from_env(timeout=_SECONDS)
    return DockerClient(base_url=host, timeout=_SECONDS)


@contextlib.contextmanager
def connect() -> Iterator[Engine]:
    """DOCKER_HOST, else the first engine that answers. Raises EngineError, EnginePermissionError.

    What goes wrong inside is translated by `translated`.
    """
    hosts = _hosts()
    said = "there is neither Docker's nor podman's socket"
    for host in hosts:
        try:
            client = client_at(host)
            options = client.info().get("SecurityOptions") or []
        except _FAILURES as error:
            if "Permission denied" in str(error):
                raise EnginePermissionError(
                    f"the container engine at {host} cannot be used because this user may not "
                    "write to its socket; join its group (`sudo usermod -aG docker $USER`, then "
                    "log in again), or set DOCKER_HOST to an engine of your own"
                ) from error
            said = f"{host}: {reason(_first(error))}"
            continue
        with contextlib.closing(client), translated("the container was not run"):
            found = Engine(client, host, any("rootless" in option for option in options))
            remove_abandoned(found)
            yield found
        return
    given = "correct" if os.environ.get("DOCKER_HOST") else "set"
    raise EngineError(
        f"no container can be run because no engine answers ({said}); start Docker or `podman "
        f"system service`, or {given} DOCKER_HOST"
    )


def _first(error: BaseException) -> BaseException:
    """What `error`, and all that was made of it on the way, came from."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error


@contextlib.contextmanager
def translated(what: str, base: str = "") -> Iterator[None]:
    """Turn the engine's errors into ours; `what` did not happen, on the image `base`."""
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        raise failure(what, reason(error), base) from error


def failure(what: str, said: str, base: str = "", output: str = "") -> LmsbuildError:
    """The class of failure for what an engine or a step of a build `said`.

    `output` is what it printed before, `base` the image that was built on.
    """
    details = {"output": output, "image": base}
    about = f"{said}\n{output}"
    if _EMULATION.search(about):
        return EmulationError(
            f"{what} because programs of another architecture cannot be run here ({said}); enable "
            "it (Debian: `apt-get install qemu-user-static binfmt-support`, `mount -t binfmt_misc "
            "binfmt_misc /proc/sys/fs/binfmt_misc` where that is empty, `update-binfmts --enable`) "
            "or build on a machine of that architecture",
            **details,
        )
    if _ULIMITS.search(about):
        return ContainerError(
            f"{what} because the engine may not give it the limits that it gives containers "
            f"({said}); name all that it can give, nproc too, in `default_ulimits` of podman's "
            'containers.conf: ["nofile=N:N", "nproc=M:M"] with the N of `ulimit -Hn` and the M of '
            "`ulimit -Hu`",
            **details,
        )
    if _DISK.search(about):
        return EngineDiskError(
            f"{what} because the engine's disk is full ({said}); free space, for example with "
            "`docker system prune`",
            **details,
        )
    if _MISSING.search(said):
        return BaseImageError(
            f"{what} because the image {base or 'to build on'} cannot be had ({said}); give "
            "another with --base-image, or `docker login` to its registry",
            **details,
        )
    if _NETWORK.search(about):
        return PullError(
            f"{what} because the network failed ({said}); run the command again, what is complete "
            "is kept, or give an image that is here with --base-image",
            **details,
        )
    return ContainerError(f"{what} because the engine says {said}; see the log", **details)


def reason(error: BaseException) -> str:
    """The engine's own words, in one line."""
    text = getattr(error, "explanation", None) or str(error)
    return (str(text).strip().splitlines() or [type(error).__name__])[-1]


def machine() -> str:
    """This machine's architecture, as `uname -m` says it."""
    return platform.machine()


def owner() -> Mapping[str, str]:
    """The label of a container of this process."""
    me = psutil.Process()
    return {OWNER: f"{socket.gethostname()} {me.pid} {me.create_time()}"}


def remove_abandoned(engine: Engine) -> None:
    """Containers of processes of this machine that are gone."""
    for container in engine.client.containers.list(
        all=True, filters={"label": OWNER}, ignore_removed=True
    ):
        host, pid, start = container.labels[OWNER].split(" ")
        try:
            alive = str(psutil.Process(int(pid)).create_time()) == start
        except psutil.Error:
            alive = False
        if host == socket.gethostname() and not alive:
            with contextlib.suppress(APIError):
                container.remove(force=True)
