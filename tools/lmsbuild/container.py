# SPDX-License-Identifier: Apache-2.0
"""The compiler in a container: an older C library than this machine's, for older systems.

Only the compiler runs there, under the user's own id, without network, on the same folders under
the same paths: the tree and the cache to read, the cache's temporary folders to write. So any
image with a compiler will do, and everything else is the same as without a container.
The container lives while its standard input, a connection to this process, is open: it goes when
this process ends, however it ends. What an engine failed to remove, the next run removes.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import psutil
import requests
from docker.client import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound

from lmsbuild import cache, log
from lmsbuild.console import Console
from lmsbuild.errors import ConfigError, ContainerError
from lmsbuild.frameworks import Target, Toolset
from lmsbuild.hashing import sha256_value
from lmsbuild.project import cache_dir
from lmsbuild.toolchain import Compiler

TEMPLATE = "toolset.Dockerfile.j2"
_OWNER = "lmsbuild.owner"  # label: host, process and its start
_PACKAGES = "dpkg-query -W || rpm -qa || apk info -v"
_FAILURES = (DockerException, requests.RequestException, OSError)


def render(target: Target, base_image: str | None = None) -> str:
    """The Dockerfile for a tag. Raises ConfigError when the tag has no toolset."""
    toolset = _toolset(target)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lmsbuild"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(TEMPLATE).render(
        image=base_image or toolset.image,
        compilers=toolset.compilers,
        packages=toolset.packages,
    )


def _toolset(target: Target) -> Toolset:
    if target.tag.toolset is None:
        raise ConfigError(
            f"{target.label} cannot be built in a container because frameworks.toml has no "
            "toolset for it; add one, or build without --container"
        )
    return target.tag.toolset


@contextlib.contextmanager
def compiler(
    target: Target, tree: Path, base_image: str | None, console: Console
) -> Iterator[Compiler]:
    """The compiler of the tag's image, which can read `tree`. Raises ContainerError."""
    try:
        client = DockerClient.from_env()
        client.ping()
    except _FAILURES as error:
        raise ContainerError(
            f"no container can be run because no engine answers ({_reason(error)}); start Docker, "
            "or set DOCKER_HOST"
        ) from error
    with contextlib.closing(client), _translated("the container was not run"):
        _remove_abandoned(client)
        image = _build(client, target, base_image, console)
        with _running(client, image, tree) as container:
            box = Container(container.id, tree)
            box.check()
            yield Compiler((box.which(_toolset(target).compilers),), box)


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        raise ContainerError(
            f"{what} because the engine says {_reason(error)}; see the log"
        ) from error


def _reason(error: Exception) -> str:
    text = getattr(error, "explanation", None) or str(error)
    return (str(text).strip().splitlines() or [type(error).__name__])[-1]


def _build(client: Any, target: Target, base_image: str | None, console: Console) -> str:
    """The id of the image; layers that did not change are reused."""
    text = render(target, base_image)
    base = base_image or _toolset(target).image
    if cache.offline():
        try:
            client.images.get(base)
        except ImageNotFound:
            command = f"lmsbuild wheel {target.label} --container"
            cache.require_network(f"the image {base}", command)
    log.note(text)
    with console.step(f"building the image on {base}") as step:
        lines = client.api.build(
            fileobj=io.BytesIO(text.encode()), rm=True, forcerm=True, decode=True,
            tag=f"lmsbuild-toolset:{sha256_value(text)[:12]}",
            network_mode="none" if cache.offline() else None,
        )  # fmt: skip
        image = ""
        for line in lines:
            said = str(line.get("stream") or line.get("status") or line.get("error") or "").strip()
            if said:
                log.note(said)
            if "error" in line:
                raise ContainerError(
                    f"the image on {base} was not built because {said}; give another with "
                    "--base-image",
                    image=base,
                )
            image = line.get("aux", {}).get("ID", image)
        step.digest = image.removeprefix("sha256:")
    return image


def _owner() -> str:
    me = psutil.Process()
    return f"{socket.gethostname()} {me.pid} {me.create_time()}"


def _remove_abandoned(client: Any) -> None:
    """Containers of processes of this machine that are gone."""
    for container in client.containers.list(all=True, filters={"label": _OWNER}):
        host, pid, start = container.labels[_OWNER].split(" ")
        try:
            alive = str(psutil.Process(int(pid)).create_time()) == start
        except psutil.Error:
            alive = False
        if host == socket.gethostname() and not alive:
            with contextlib.suppress(APIError):
                container.remove(force=True)


@contextlib.contextmanager
def _running(client: Any, image: str, tree: Path) -> Iterator[Any]:
    temporary = cache_dir() / "tmp"
    temporary.mkdir(exist_ok=True)
    folders = {tree: "ro", cache_dir(): "ro", temporary: "rw"}
    api = client.api
    made = api.create_container(
        image, ["cat"], user=f"{os.getuid()}:{os.getgid()}", stdin_open=True, labels={
            _OWNER: _owner()
        },
        working_dir="/", network_disabled=True, entrypoint="",
        host_config=api.create_host_config(
            auto_remove=True, init=True, cap_drop=["ALL"], network_mode="none",
            security_opt=["no-new-privileges"],
            binds={str(path): {"bind": str(path), "mode": mode} for path, mode in folders.items()},
        ),
    )  # fmt: skip
    container = client.containers.get(made["Id"])
    connection = container.attach_socket(params={"stdin": 1, "stream": 1})
    try:
        container.start()
        log.note(f"container {container.id} of image {image}")
        yield container
    finally:
        connection.close()
        with contextlib.suppress(APIError):
            container.remove(force=True)


@dataclass(frozen=True)
class Container:
    """A running container as a place for the compiler (see toolchain.Machine)."""

    id: str
    tree: Path
    _local: threading.local = field(default_factory=threading.local)

    def _api(self) -> Any:
        """A connection of the calling thread's own."""
        if not hasattr(self._local, "client"):
            self._local.client = DockerClient.from_env(timeout=3600)
        return self._local.client.api

    def _execute(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[int, bytes, bytes]:
        api = self._api()
        made = api.exec_create(self.id, list(command), environment=dict(environment), workdir="/")
        out, err = api.exec_start(made["Id"], demux=True)
        code = api.exec_inspect(made["Id"])["ExitCode"]
        return code, out or b"", err or b""

    def run(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        code, out, err = self._execute(command, environment)
        done = subprocess.CompletedProcess(
            list(command), code, out.decode(errors="replace"), err.decode(errors="replace")
        )
        log.process(command, code, done.stdout + done.stderr)
        return done

    def read(self, path: str) -> bytes:
        code, out, err = self._execute(["cat", path], {})
        if code != 0:
            raise ContainerError(
                f"{path} of the image was not read because {err.decode(errors='replace').strip()}; "
                "give another with --base-image"
            )
        return out

    @cached_property
    def system(self) -> str:
        """Of all packages of the image: they are what its headers and libraries come from."""
        done = self.run(["sh", "-c", f"({_PACKAGES}) 2>/dev/null | LC_ALL=C sort"], {})
        return sha256_value(done.stdout)

    def which(self, names: Sequence[str]) -> str:
        for name in names:
            done = self.run(["sh", "-c", f"command -v {shlex.quote(name)}"], {})
            if done.returncode == 0:
                return done.stdout.strip()
        raise ContainerError(
            f"nothing can be compiled because the image has none of {', '.join(names)}; give "
            "another with --base-image"
        )

    def check(self) -> None:
        """The engine must run on this machine, or the folders would be others."""
        with cache.scratch() as folder:
            probe = f"ls {shlex.quote(str(self.tree))} && touch {shlex.quote(str(folder))}/probe"
            self.run(["sh", "-c", probe], {})
            if not (folder / "probe").is_file():
                raise ContainerError(
                    f"the container cannot use {self.tree} and {cache_dir()} because the engine "
                    "runs elsewhere or may not see them; use an engine of this machine"
                )
