# SPDX-License-Identifier: Apache-2.0
"""A running container: a place for the compiler, for upstream's build and for the suites.

Commands run there under the user's own id, without network, on the same folders under the same
paths: what is not to be written is read-only. So any image with the tools will do, and everything
else is the same as without a container.
The container lives while its standard input, a connection to this process, is open: it goes when
this process ends, however it ends. What an engine failed to remove, the next run removes.
"""

from __future__ import annotations

import codecs
import contextlib
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from docker.errors import APIError

from lmsbuild.base import cache, interrupt, log
from lmsbuild.base.errors import ContainerError
from lmsbuild.base.hashing import sha256_value
from lmsbuild.places.docker import Engine, client_at, owner
from lmsbuild.wheel.toolchain import Compiler

_PACKAGES = "dpkg-query -W || rpm -qa || apk info -v"


@dataclass(frozen=True)
class Inside:
    """A container that an environment of Python lives in: made and run there."""

    box: Container
    image: str  # id
    compiler: Compiler
    python: str
    pip: str  # this machine's, as a program that any Python can run

    def variables(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        return {"HOME": "/tmp", "PYTHONNOUSERSITE": "1", **(extra or {})}


@contextlib.contextmanager
def running(
    engine: Engine, image: str, folders: Mapping[Path, str], machine: str | None = None,
    *, network: bool = False,
) -> Iterator[Container]:  # fmt: skip
    """A container of `image` that sees `folders` (with "ro" or "rw"). The cache must be of them.

    Raises ContainerError when the engine does not run on this machine.
    """
    api = engine.client.api
    # The shell collects what is left of commands, and ends with the connection that cat reads.
    alive = ["sh", "-c", "cat >/dev/null; exit"]
    made = api.create_container(
        image, alive, user=engine.user, stdin_open=True, labels=owner(),
        working_dir="/", network_disabled=not network, entrypoint="", platform=machine,
        host_config=api.create_host_config(
            auto_remove=True, cap_drop=["ALL"], network_mode=None if network else "none",
            security_opt=["no-new-privileges"],
            binds={str(path): {"bind": str(path), "mode": mode} for path, mode in folders.items()},
        ),
    )  # fmt: skip
    container = engine.client.containers.get(made["Id"])
    connection = container.attach_socket(params={"stdin": 1, "stream": 1})
    try:
        container.start()
        log.note(f"container {container.id} of image {image}")
        box = Container(container.id, engine.host)
        box.check(folders)
        yield box
    finally:
        connection.close()
        with contextlib.suppress(APIError):
            container.remove(force=True)


@dataclass(frozen=True)
class Container:
    """A running container as a place for commands (see toolchain.Machine)."""

    id: str
    host: str
    _local: threading.local = field(default_factory=threading.local)

    def _api(self) -> Any:
        """A connection of the calling thread's own."""
        if not hasattr(self._local, "client"):
            self._local.client = client_at(self.host)
        return self._local.client.api

    def _execute(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None
    ) -> tuple[int, bytes, bytes]:
        api = self._api()
        made = api.exec_create(
            self.id, list(command), environment=dict(environment), workdir=str(cwd or "/")
        )
        out, err = api.exec_start(made["Id"], demux=True)
        code = api.exec_inspect(made["Id"])["ExitCode"]
        return code, out or b"", err or b""

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        code, out, err = self._execute(command, environment, cwd)
        done = subprocess.CompletedProcess(
            list(command), code, out.decode(errors="replace"), err.decode(errors="replace")
        )
        log.process(command, code, done.stdout + done.stderr)
        return done

    def follow(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path,
        line: Callable[[str], bool],
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """As log.follow: both outputs in one, and each line logged and given as it comes."""
        interrupt.check()
        api = self._api()
        made = api.exec_create(
            self.id, list(command), environment=dict(environment), workdir=str(cwd)
        )
        log.note(f"$ {shlex.join(command)}")
        began = time.monotonic()
        kept: list[str] = []
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        rest = ""

        def take(text: str) -> None:
            log.note(text)
            if line(text):
                kept.append(text)

        for chunk in api.exec_start(made["Id"], stream=True):
            *whole, rest = (rest + decoder.decode(chunk)).splitlines(keepends=True) or [""]
            if rest.endswith("\n"):
                whole, rest = [*whole, rest], ""
            for text in whole:
                take(text)
        if rest:
            take(rest)
        code = api.exec_inspect(made["Id"])["ExitCode"]
        log.note(f"exit code {code} ({time.monotonic() - began:.2f} s)")
        return subprocess.CompletedProcess(list(command), code, "".join(kept), "")

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
            f"nothing can be run because the image has none of {', '.join(names)}; give "
            "another with --base-image"
        )

    def check(self, folders: Mapping[Path, str]) -> None:
        """The engine must run on this machine, or the folders would be others."""
        with cache.scratch() as folder:
            (folder / "probe").touch()
            wanted = " ".join(shlex.quote(str(path)) for path in [folder / "probe", *folders])
            writable = [
                f"test -w {shlex.quote(str(p))}" for p, mode in folders.items() if mode == "rw"
            ]
            script = " && ".join([f"ls -d {wanted}", *writable])
            if self.run(["sh", "-c", script], {}).returncode != 0:
                raise ContainerError(
                    f"the container cannot use {', '.join(map(str, folders))} because the engine "
                    "runs elsewhere or may not see them; use an engine of this machine"
                )
