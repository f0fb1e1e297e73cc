# SPDX-License-Identifier: Apache-2.0
"""A channel over http: the index and the packages, nothing else of the folder, and read only."""

from __future__ import annotations

import errno
import ipaddress
import logging
import re
import socket
from types import TracebackType

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from lmsbuild import __version__
from lmsbuild.base import log
from lmsbuild.base.errors import PortError, UsageError
from lmsbuild.conda.channel import INDEX, Channel
from lmsbuild.conda.condapackage import SUBDIRS, SUFFIX

_PATH = re.compile(
    rf"/({'|'.join(SUBDIRS)})/({'|'.join(map(re.escape, INDEX))}|[\w.+!-]+{re.escape(SUFFIX)})"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BACKLOG = 128
_GRACE_SECONDS = 3  # for downloads that run when the server is told to end; clients resume them


class _Files(StaticFiles):
    """What is no file of a channel is not there: no listing, no lock, nothing that a symbolic link
    reaches outside."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        asked = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] in ("GET", "HEAD") and not _PATH.fullmatch(asked):
            raise HTTPException(404, "No file of this channel")
        try:
            return await super().get_response(path, scope)
        except OSError as error:  # a link that leads to itself
            raise HTTPException(404, "No file of this channel") from error


class Server:
    """Listens from the beginning; `serve_forever` answers, until `shutdown` from another thread."""

    def __init__(self, files: _Files, name: str, listener: socket.socket) -> None:
        self._listener = listener
        self._name = name
        app = Starlette(routes=[Mount(f"/{name}" if name else "", files)])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                headers=[("server", f"lmsbuild/{__version__}")],
                server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return f"{url}/{self._name}" if self._name else url

    def serve_forever(self) -> None:
        requests = _Noted()
        logger = logging.getLogger("uvicorn")
        logger.addHandler(requests)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            self._server.run([self._listener])
        finally:
            logger.removeHandler(requests)

    def shutdown(self) -> None:
        self._server.should_exit = True

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()


class _Noted(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log.note(record.getMessage())


def server(channel: Channel, host: str, port: int, name: str = "") -> Server:
    """A server that listens. Clients list the channel as the last step of its URL: `name`, if it
    is given. Raises ChannelError, PortError or UsageError."""
    channel.entries()  # a folder that is none is told now
    if name and not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the channel's name in its URL because it is not made of letters, "
            "digits, '.', '_' and '-'; choose another with --name"
        )
    return Server(_Files(directory=channel.root), name, _listen(host, port))


def _listen(host: str, port: int) -> socket.socket:
    try:
        six = ipaddress.ip_address(host).version == 6
    except ValueError:
        six = False
    listener = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        # Of an address that is none, or not this machine's, no port will do.
        wrong = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        other = "--host" if wrong else "--port (0: a free one)"
        raise PortError(
            f"{host} port {port} cannot be listened on because {error.strerror or error}; choose "
            f"another with {other}"
        ) from error
    return listener
