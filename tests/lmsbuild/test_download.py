# SPDX-License-Identifier: Apache-2.0
"""Downloads that are stopped and go on, from a real server; and no download at all."""

from __future__ import annotations

import fcntl
import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest
from lmsbuild_processes import run
from lmsbuild_wheels import PYTHON, let_go
from lmsbuild_world import REPOSITORY, UPSTREAM, World, leave, small_disk, write

from lmsbuild.__main__ import run as run_here
from lmsbuild.base import settings
from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    DownloadError,
    FileError,
    MismatchError,
    OfflineError,
    SourceError,
)
from lmsbuild.base.git.command import environment
from lmsbuild.tags.download import download_url, partial, pip_download

CONTENT = os.urandom(300_000)


@dataclass
class Server:
    """Serves one file; can break off after some bytes, once."""

    content: bytes = CONTENT
    etag: str | None = '"one"'
    ranges: bool = True
    break_after: int | None = None
    slowly: bool = False
    requests: list[str | None] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/alpha.tar.xz"


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.requests.append(wanted)
            start = 0
            same = self.headers.get("If-Range") == state.etag
            if wanted and state.ranges and same:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(state.content):
                    self.send_error(416)
                    return
            body = state.content[start:]
            self.send_response(206 if start else 200)
            if state.etag:
                self.send_header("ETag", state.etag)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.break_after is not None:
                body, state.break_after = body[: state.break_after], None
            for at in range(0, len(body), 10_000):
                self.wfile.write(body[at : at + 10_000])
                if state.slowly:
                    time.sleep(0.1)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        state.port = found.server_address[1]
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield state
        found.shutdown()


@pytest.fixture
def to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMSBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "got"


def broken(server: Server, to: Path, console: Console) -> None:
    server.break_after = 100_000
    with pytest.raises(SourceError, match=r"ended after 100000 of 300000 bytes.*goes on where"):
        download_url(server.url, to, console)
    assert not to.exists()


def test_download_goes_on_where_it_stopped(server: Server, to: Path, console: Console) -> None:
    broken(server, to, console)
    download_url(server.url, to, console)
    assert server.requests == [None, "bytes=100000-"]
    assert to.read_bytes() == CONTENT
    assert not list((to.parent / "cache/partial").iterdir())


def test_changed_file_is_had_from_the_start(server: Server, to: Path, console: Console) -> None:
    broken(server, to, console)
    server.content, server.etag = CONTENT[::-1], '"two"'
    download_url(server.url, to, console)
    assert to.read_bytes() == CONTENT[::-1]


def test_server_without_ranges_or_validator(server: Server, to: Path, console: Console) -> None:
    server.ranges = False
    broken(server, to, console)
    server.etag = None
    broken(server, to, console)
    download_url(server.url, to, console)
    assert server.requests == [None, "bytes=100000-", None]
    assert to.read_bytes() == CONTENT


def test_partial_file_that_is_too_long(server: Server, to: Path, console: Console) -> None:
    """The server refuses the range; the file is had from the start."""
    broken(server, to, console)
    (partial,) = (to.parent / "cache/partial").iterdir()
    (partial / "data").write_bytes(bytes(400_000))
    download_url(server.url, to, console)
    assert to.read_bytes() == CONTENT


@pytest.mark.parametrize("text", ["", "[1]", "\0"])
def test_damaged_record_of_a_partial_file(
    server: Server, to: Path, console: Console, text: str
) -> None:
    """As a full disk leaves it: nothing tells that the server's file is the same."""
    broken(server, to, console)
    (partial,) = (to.parent / "cache/partial").iterdir()
    (partial / "validator.json").write_text(text)
    download_url(server.url, to, console)
    assert to.read_bytes() == CONTENT


def test_killed_download_goes_on(server: Server, to: Path, console: Console) -> None:
    server.slowly = True
    code = (
        "import sys; from pathlib import Path; from lmsbuild.base.console import Console\n"
        "from lmsbuild.tags.download import download_url\n"
        "download_url(sys.argv[1], Path(sys.argv[2]), Console())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, server.url, str(to)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")},
    )
    data = to.parent / "cache/partial"
    while sum(file.stat().st_size for file in data.rglob("data")) < 50_000:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.slowly = False
    download_url(server.url, to, console)
    assert server.requests[1] is not None
    assert to.read_bytes() == CONTENT


def test_who_waits_for_a_download_has_it_alone(to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the folder that it waited for went with the end of the other."""
    real = fcntl.flock
    waited: list[int] = []

    def flock(handle: int, how: int) -> None:
        if not waited:
            waited.append(handle)
            with partial("name"):  # another's, at its end before this one has the lock
                pass
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with partial("name") as folder:
        handle = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            real(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
    assert waited and not folder.exists()


def test_hash_tells_when_the_server_cannot(server: Server, to: Path, console: Console) -> None:
    """No validator, as many mirrors: it goes on, and starts anew if the file was another."""
    digest = sha256(CONTENT).hexdigest()
    server.etag = None
    broken(server, to, console)
    download_url(server.url, to, console, digest)
    assert server.requests == [None, "bytes=100000-"]
    to.unlink()
    server.content = CONTENT[::-1]
    broken(server, to, console)
    server.content = CONTENT
    download_url(server.url, to, console, digest)
    assert server.requests[2:] == [None, "bytes=100000-", None]
    assert to.read_bytes() == CONTENT
    server.content = b"other"
    with pytest.raises(MismatchError, match=rf"has 5 bytes and SHA-256 .*, not {digest}"):
        download_url(server.url, to, console, digest)
    assert not list((to.parent / "cache/partial").rglob("data"))


# Offline -----------------------------------------------------------------------------------------

DENY = """
import os, socket, sys

def _hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        if event == "socket.connect" and not isinstance(arguments[1], tuple):
            return
        with open(os.environ["DENY_LOG"], "a") as log:
            log.write(f"{event} {arguments[1:]}\\n")
        raise PermissionError("the network is off")

sys.addaudithook(_hook)
"""


@pytest.fixture
def no_network(world: World) -> Iterator[dict[str, str]]:
    """Variables under which any Python process that would use the network fails and is noted."""
    site = world.folder / "deny"
    write(site, {"sitecustomize.py": DENY})
    log = world.folder / "network.log"
    path = f"{site}{os.pathsep}{REPOSITORY / 'tools'}"
    yield {"PYTHONPATH": path, "DENY_LOG": str(log)}
    assert not log.exists(), log.read_text()


def tried(world: World, no_network: dict[str, str]) -> str:
    """That the trap works: what is noted when somebody does use the network."""
    code = "import urllib.request as r; r.urlopen('http://127.0.0.1:9')"
    env = {**os.environ, **no_network}
    subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    log = world.folder / "network.log"
    text = log.read_text()
    log.unlink()
    return text


@pytest.mark.default
def test_offline_uses_what_was_fetched(
    world: World, official: Path, no_network: dict[str, str]
) -> None:
    assert "socket." in tried(world, no_network)
    assert run("wheel", "v1.0")[0] == 0
    shutil.rmtree(world.folder / "work")
    shutil.rmtree(world.upstream)
    shutil.rmtree(world.folder / "index")
    code, out, err = run("wheel", "v1.0", "--offline", env=no_network)
    assert code == 0 and "wrote" in out, err
    for command in (["fetch"], ["apply"], ["wheel"]):
        code, _, err = run(*command, "v1.0", env={**no_network, "LMSBUILD_OFFLINE": "1"})
        assert code == 0, err


def far(world: World) -> None:
    """Upstream is somewhere in the network."""
    toml = world.framework_file
    text = toml.read_text().replace(world.upstream.as_uri(), "https://upstream.invalid/alpha.git")
    toml.write_text(text)


def test_offline_ends_with_its_command(world: World) -> None:
    """A second command of the same process may download."""
    far(world)
    before = dict(os.environ)
    assert run_here(["fetch", "v1.0", "--source", "git", "--offline"]) == OfflineError.exit_code
    assert dict(os.environ) == before and not settings.offline()
    with settings.without_network():
        assert environment()["GIT_ALLOW_PROTOCOL"] == "file"
    assert environment().get("GIT_ALLOW_PROTOCOL") != "file"


@pytest.mark.default
def test_offline_names_what_is_missing(
    world: World, official: Path, no_network: dict[str, str]
) -> None:
    far(world)
    for command in (["fetch", "v1.0"], ["apply", "v1.0"], ["wheel", "v1.0"]):
        code, _, err = run(*command, "--offline", env=no_network)
        assert code == 21, err
        assert "the source of alpha:v1.0" in err and "run `lmsbuild fetch alpha:v1.0" in err
    url = "https://upstream.invalid/alpha-1.0.tar.xz"
    code, _, err = run("fetch", "v1.0", "--offline", "--source", url, env=no_network)
    assert code == 21 and url in err
    tree = world.folder / "tree"
    write(tree, UPSTREAM)
    code, _, err = run("wheel", "v1.0", "--offline", "--source", str(tree), env=no_network)
    assert code == 21 and f"alpha 1.0 for Python {PYTHON} cannot be used" in err
    assert f"run `lmsbuild wheel alpha:v1.0 --python {PYTHON}`" in err
    assert not list((world.folder / "cache").glob("packages/*.whl"))


@pytest.mark.default
def test_damaged_entry_offline(world: World, official: Path, no_network: dict[str, str]) -> None:
    """It is not there, as far as a command that may not download is concerned."""
    assert run("wheel", "v1.0")[0] == 0
    (cached,) = (world.folder / "cache/packages").rglob("*.whl")
    cached.write_bytes(b"")
    let_go()
    shutil.rmtree(world.target.work / "wheels")
    code, _, err = run("wheel", "v1.0", "--offline", env=no_network)
    assert code == 21 and "damaged" in err and "alpha 1.0 for Python" in err


@pytest.mark.default
def test_a_download_without_its_record_is_found_offline(
    world: World, official: Path, no_network: dict[str, str]
) -> None:
    assert run("wheel", "v1.0")[0] == 0
    let_go()
    for record in (world.folder / "cache/packages").glob("*.entry"):
        record.unlink()
    shutil.rmtree(world.target.work / "wheels")
    code, out, err = run("wheel", "v1.0", "--offline", env=no_network)
    assert code == 0 and "wrote" in out, err


@pytest.mark.default
@pytest.mark.parametrize("words", [["fetch", "v1.0"], ["fetch", "v1.0", "--source", "git"]])
@pytest.mark.parametrize("room", [4096, 16_384, 32_768])
def test_a_full_cache_is_told_as_such(world: World, words: list[str], room: int) -> None:
    """And not as what came of it on the way: an address that nobody knows."""
    with small_disk(world.folder / "small", "1m") as disk:
        leave(disk, room)
        code, _, err = run(*words, env={"LMSBUILD_CACHE": str(disk)})
    assert code == FileError.exit_code and str(disk) in err, err
    assert "No space left on device" in err and "free space" in err


def test_a_full_disk_in_a_download(server: Server, tmp_path: Path, console: Console,
                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    with small_disk(tmp_path / "small", "128k") as disk:
        monkeypatch.setenv("LMSBUILD_CACHE", str(disk))
        with pytest.raises(FileError, match="No space left on device; free space"):
            download_url(server.url, disk / "alpha.tar.xz", console)


def test_a_constraint_of_pips_is_named(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no matter of the network: pip refuses before it asks."""
    write(tmp_path, {"constraints.txt": "alpha<=2.0\n", "alpha-2.1-py3-none-any.whl": ""})
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    words = ["--find-links", str(tmp_path), "--dest", str(tmp_path), "alpha==2.1"]
    with pytest.raises(DownloadError, match=r"allows only alpha<=2\.0; see `pip config list`"):
        pip_download("alpha 2.1", words, console)
