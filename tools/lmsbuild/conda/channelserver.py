# SPDX-License-Identifier: Apache-2.0
"""A channel over http: the index and the packages, nothing else of the folder, and read only."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from lmsbuild import __version__
from lmsbuild.base import log
from lmsbuild.base.errors import PortError
from lmsbuild.conda.channel import INDEX, Channel
from lmsbuild.conda.condapackage import SUBDIRS, SUFFIX

_PATH = re.compile(
    rf"/({'|'.join(SUBDIRS)})/({'|'.join(map(re.escape, INDEX))}|[\w.+!-]+{re.escape(SUFFIX)})"
)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}"


class _Server6(Server):
    address_family = socket.AF_INET6


class _Handler(SimpleHTTPRequestHandler):
    """What is no file of a channel is not there: no listing, no lock, nothing outside."""

    server_version = f"lmsbuild/{__version__}"
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if self._is_channels():
            super().do_GET()

    def do_HEAD(self) -> None:
        if self._is_channels():
            super().do_HEAD()

    def _is_channels(self) -> bool:
        if _PATH.fullmatch(unquote(urlsplit(self.path).path)):
            return True
        self.send_error(HTTPStatus.NOT_FOUND, "No file of this channel")
        return False

    def log_message(self, format: str, *args: object) -> None:
        log.note(f"{self.address_string()} {format % args}")


def server(channel: Channel, host: str, port: int) -> Server:
    """A server that listens; `serve_forever` answers. Raises ChannelError or PortError."""
    channel.entries()  # a folder that is none is told now
    try:
        kind = _Server6 if ipaddress.ip_address(host).version == 6 else Server
    except ValueError:
        kind = Server
    try:
        return kind((host, port), partial(_Handler, directory=str(channel.root)))
    except OSError as error:
        # Of an address that is none, or not this machine's, no port will do.
        wrong = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        other = "--host" if wrong else "--port (0: a free one)"
        raise PortError(
            f"{host} port {port} cannot be listened on because {error.strerror or error}; choose "
            f"another with {other}"
        ) from error
