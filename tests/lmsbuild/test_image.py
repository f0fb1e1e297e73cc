# SPDX-License-Identifier: Apache-2.0
"""Images from the templates of docker/, and every way in which an engine can fail."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import lmsbuild_engine
import pytest
from lmsbuild_engine import Engine, import_image
from lmsbuild_processes import run
from lmsbuild_wheels import PYTHON, make_wheel, start
from lmsbuild_world import REPOSITORY, World

from lmsbuild.base.errors import EnginePermissionError, MismatchError, WheelError
from lmsbuild.base.project import Project
from lmsbuild.places.docker import connect
from lmsbuild.places.full import settings
from lmsbuild.places.image import KINDS, RUNTIME_USER, check_wheel, recipe
from lmsbuild.tags.frameworks import resolve, targets

IMAGE_PYTHON = "3.11"  # of the base image
IMAGES = """
[images.compiler]
base = {{ x86_64 = "{base}" }}
compilers = ["{compiler}"]
packages = {{ apt-get = ["compiler"] }}
"""


def describe(world: World, base: str = "no-such-image:1", compiler: str = "g++") -> list[str]:
    toml = world.tag_file
    toml.write_text(toml.read_text() + IMAGES.format(base=base, compiler=compiler))
    return ["image", "v1.0", "--kind", "compiler"]


# Without an engine -------------------------------------------------------------------------------


def test_dockerfiles_are_rendered(real_project: Project) -> None:
    target = resolve(real_project, "v2.6.0")
    build = recipe(target, "build", "3.12", "ppc64le").render()
    assert "FROM docker.io/nvidia/cuda:12.4.1-devel-ubi8\n" in build and "python3.12-devel" in build
    compiler = recipe(target, "compiler", "3.12").render()
    assert "manylinux-builder:cuda12.4\n" in compiler and "devtoolset-9" in compiler
    for kind in ("compiler", "build", "runtime", "test"):
        found = recipe(target, kind, "3.13", base="other:1")
        text = found.render()
        assert "FROM other:1" in text and "{" not in text.replace("() {", "").replace("}", "")
        assert kind == "compiler" or found.name.endswith(f":{kind}-py3.13-cu124-x86_64")


def test_every_tag_has_its_images_and_a_complete_build(real_project: Project) -> None:
    """Rendered for each of its Pythons; nothing is left to fill in."""
    filled = {"python", "python_version", "version", "jobs", "output", "state", "cache", "launcher"}
    for target in targets(real_project):
        for kind in KINDS:
            for python in target.pythons:
                found = recipe(target, kind, python, "x86_64")
                assert f"FROM {found.base}" in found.render() and "{" not in found.base
        how = settings(target)
        words = [word for command in [*how.fetch, *how.commands] for word in command]
        names = {name for word in words for name in re.findall(r"{(\w+)}", word)}
        assert {"output"} <= names <= filled
        names |= {n for value in how.environment.values() for n in re.findall(r"{(\w+)}", value)}
        assert {"jobs", "version"} <= names <= filled


def test_image_that_is_not_described(world: World) -> None:
    code, _, err = run("image", "v1.0", "--kind", "build", "--arch", "ppc64le")
    assert code == 4 and "no build image of alpha:v1.0 for ppc64le" in err and "`images`" in err
    code, _, err = run(*describe(world), "--light")
    assert code == 2 and "--light" in err


def test_the_versions_of_cuda_have_images_of_their_own() -> None:
    tag = resolve(Project(REPOSITORY), "tensorflow:v2.14.1")
    names = {cuda: recipe(tag.for_cuda(cuda), "runtime", "3.11").name for cuda in tag.tag.cuda}
    assert names == {
        "cpu": "lmsbuild/tensorflow-v2.14.1:runtime-py3.11-cpu-x86_64",
        "11.8": "lmsbuild/tensorflow-v2.14.1:runtime-py3.11-cu118-x86_64",
    }


def test_nothing_is_done_but_said(world: World) -> None:
    command = describe(world)
    code, out, _ = run(*command, "--dry-run", env={"DOCKER_HOST": "unix:///nowhere.sock"})
    assert code == 0 and "would build lmsbuild/alpha-v1.0:compiler-x86_64" in out
    code, out, _ = run(*command, "--render", "--base-image", "other:1")
    assert code == 0 and "FROM other:1" in out


def test_no_engine_is_named(world: World) -> None:
    code, _, err = run(*describe(world), env={"DOCKER_HOST": "unix:///nowhere.sock"})
    assert code == 30 and err.endswith(
        "no engine answers (unix:///nowhere.sock: [Errno 2] No such file or directory); start "
        "Docker or `podman system service`, or correct DOCKER_HOST\n"
    )


def test_wheel_of_another_tag_is_refused(world: World, tmp_path: Path) -> None:
    describe(world)
    found = recipe(world.target, "compiler", PYTHON)
    abi = f"cp{PYTHON.replace('.', '')}"
    wheel = make_wheel(tmp_path, {}, abi)
    with pytest.raises(MismatchError, match=r"it is alpha 1.0, not alpha 1.0\+lms.1"):
        check_wheel(wheel, found)
    ours = wheel.rename(tmp_path / f"alpha-1.0+lms.1-{abi}-{abi}-linux_x86_64.whl")
    check_wheel(ours, found)
    with pytest.raises(MismatchError, match="not ppc64le"):
        check_wheel(ours, recipe(world.target, "compiler", PYTHON, "ppc64le", "other:1"))
    with pytest.raises(MismatchError, match="not cp399"):
        check_wheel(ours, recipe(world.target, "compiler", "3.99"))
    ours.write_bytes(ours.read_bytes()[:200])
    with pytest.raises(WheelError, match="damaged"):
        check_wheel(ours, found)


def test_wheel_is_looked_at_before_an_engine_is(world: World, tmp_path: Path) -> None:
    toml = world.tag_file
    tables = IMAGES.replace("images.compiler", "images.runtime")
    toml.write_text(toml.read_text() + tables.format(base="no-such-image:1", compiler="g++"))
    wheel = make_wheel(tmp_path, {}, f"cp{PYTHON.replace('.', '')}")
    code, out, err = run("image", "v1.0", "--wheel", str(wheel), "--render")
    assert code == 7 and not out and "it is alpha 1.0, not alpha 1.0+lms.1" in err


def test_project_may_be_written_in_another_way(real_project: Project, tmp_path: Path) -> None:
    found = recipe(resolve(real_project, "tensorflow:v2.14.1"), "runtime", "3.11")
    official = make_wheel(tmp_path, {}, "cp311")
    wheel = f"tensorflow_cpu-{found.target.version}-cp311-cp311-manylinux_2_34_x86_64.whl"
    check_wheel(official.rename(tmp_path / wheel), found)


USER = """
import fcntl, sys, time
users = open(sys.argv[1], "w")
fcntl.flock(users, fcntl.LOCK_SH)
print("uses it", flush=True)
time.sleep(600)
"""


def test_engine_of_the_tests_ends_with_its_last_user(tmp_path: Path) -> None:
    """Killed ones too."""
    with contextlib.ExitStack() as stack:

        def begin(*command: str | Path) -> subprocess.Popen[str]:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        users = [begin(sys.executable, "-c", USER, tmp_path / "users") for _ in range(2)]
        for user in users:
            assert user.stdout is not None and user.stdout.readline() == "uses it\n"
        daemon = begin("sleep", "600")
        (tmp_path / "pid").write_text(str(daemon.pid))
        guarding = begin(sys.executable, lmsbuild_engine.__file__, tmp_path)
        users[0].kill()
        users[0].wait()
        assert daemon.poll() is None and guarding.poll() is None
        users[1].kill()
        assert daemon.wait(60) == -signal.SIGTERM
        assert guarding.wait(60) == 0


# With a real engine ------------------------------------------------------------------------------

real = [pytest.mark.net, pytest.mark.default]


@pytest.fixture
def host(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    return engine


class TestRealEngine:
    pytestmark = real

    def test_permission_is_named(self, host: Engine) -> None:
        socket = Path(host.host.removeprefix("unix://"))
        if os.getuid() != 0 or stat.S_IMODE(socket.stat().st_mode) & 0o002:
            pytest.skip("only root can become a user who may not use this engine")
        child = os.fork()
        if child == 0:
            os.setegid(65534)
            os.seteuid(65534)
            try:
                with connect():
                    os._exit(1)
            except EnginePermissionError as error:
                os._exit(0 if "usermod" in error.message else 2)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_image_is_built_and_reused(self, world: World, host: Engine, debian: str) -> None:
        command = [*describe(world, debian), "--json"]
        code, out, err = run(*command)
        assert code == 0, err
        first = json.loads(out)
        code, out, _ = run(*command)
        assert json.loads(out)["id"] == first["id"]
        assert host.client.images.get(first["name"]).id == first["id"]

    @pytest.mark.slow  # builds it three times
    def test_nothing_is_left_but_the_image(
        self, world: World, host: Engine, debian: str, tmp_path: Path
    ) -> None:
        """Of a build, of a killed one, and of an image that lost its name; what is not ours
        stays."""
        images = host.client.images
        other = images.build(
            fileobj=io.BytesIO(f"FROM {debian}\nLABEL a=b\n".encode()), rm=True, nocache=True
        )[0].id
        wheel = runtime_wheel(tmp_path)
        command = [*runtime(world, debian), "--wheel", str(wheel), "--json"]
        before = loose(host)
        code, out, err = run(*command)
        assert code == 0, err
        first = json.loads(out)
        left = loose(host)
        assert left <= before and other in left
        code, out, _ = run(*command)
        assert code == 0 and json.loads(out)["id"] == first["id"], "it is known again"
        world.tag_file.write_text(
            world.tag_file.read_text() + '[images.runtime.environment]\nA="1"'
        )
        base = with_installer(host, debian, "slow", "sleep 600")
        process = start(*describe(world, base, "no-such-compiler"))
        wait_for(lambda: bool(containers(host, base)) or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not containers(host, base))
        assert loose(host) > left, "what the kill left"
        code, out, err = run(*command)
        assert code == 0, err
        assert json.loads(out)["id"] != first["id"] and loose(host) == left
        images.remove(other)

    def test_whoever_runs_it_is_not_root(
        self, world: World, host: Engine, debian: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        wheel = runtime_wheel(tmp_path)
        code, out, err = run(*runtime(world, debian), "--wheel", str(wheel), "--json")
        assert code == 0, err
        name = json.loads(out)["name"]
        labels = host.client.images.get(name).labels
        told = {k.removeprefix("org.opencontainers.image."): v for k, v in labels.items()}
        assert told["title"].startswith("alpha v1.0 with Large Model Support")
        assert told["version"] == world.target.version
        assert told["revision"] == world.target.tag.commit
        assert told["source"] == world.target.framework.url
        assert told["licenses"] == "Apache-2.0" and told["created"] == "2023-11-14T22:13:20Z"
        script = "import alpha, os; open('x', 'w').close(); print(os.getuid(), os.environ['HOME'])"
        for user, uid in ((None, RUNTIME_USER), ("root", 0), ("4242:4242", 4242)):
            said: bytes = host.client.containers.run(
                name, ["python", "-c", script], user=user, remove=True, network_mode="none"
            )
            assert said.decode().split() == [str(uid), "/home/lms"]
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
        assert run(*runtime(world, debian), "--render")[0] == 2
        monkeypatch.delenv("SOURCE_DATE_EPOCH")
        assert "image.created" not in run(*describe_again(), "--render")[1]

    def test_image_of_another_architecture(
        self, world: World, host: Engine, tmp_path: Path
    ) -> None:
        foreign = foreign_image(host, tmp_path, "ppc64le")
        code, _, err = run(*describe(world, foreign))
        assert code == 33 and "is for ppc64le, not amd64" in err

    def test_missing_emulation_is_named(self, world: World, host: Engine, tmp_path: Path) -> None:
        """A program that no kernel can run."""
        foreign = foreign_image(host, tmp_path, "amd64")
        code, _, err = run(*describe(world, foreign))
        assert code == 32 and "qemu-user-static" in err, err

    def test_failed_step_shows_its_last_lines(
        self, world: World, host: Engine, debian: str
    ) -> None:
        base = with_installer(host, debian, "failing", "seq 1 100; echo about to fail; exit 3")
        code, _, err = run(*describe(world, base, "no-such-compiler"))
        assert code == 22 and "about to fail" in err and "\n50\n" not in err
        log = next(line for line in err.splitlines() if line.startswith("full log: "))
        text = Path(log.removeprefix("full log: ")).read_text()
        assert "\n50\n" in text or " 50\n" in text

    def test_full_disk_is_named(self, world: World, host: Engine, debian: str) -> None:
        base = with_installer(host, debian, "full", "cat /etc/passwd > /dev/full")
        before = loose(host)
        code, _, err = run(*describe(world, base, "no-such-compiler"))
        assert code == 35 and "docker system prune" in err
        # What an earlier build was killed over goes as well.
        assert loose(host) <= before, "what is left is in the way of the next try"

    def test_missing_tool_is_named(self, world: World, host: Engine, debian: str) -> None:
        base = with_installer(host, debian, "empty", "true")
        code, _, err = run(*describe(world, base, "no-such-compiler"))
        assert code == 22 and "the image lacks one of no-such-compiler" in err

    def test_killed_build_leaves_no_container(
        self, world: World, host: Engine, debian: str
    ) -> None:
        not_podman(host, "it ends the step of a build whose client is gone")
        base = with_installer(host, debian, "slow", "sleep 600")
        process = start(*describe(world, base, "no-such-compiler"))
        wait_for(lambda: bool(containers(host, base)) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not containers(host, base))

    def test_missing_base_is_named(self, world: World, host: Engine, registry: str) -> None:
        not_podman(host, "it asks a registry over https only")
        code, _, err = run(*describe(world, f"{registry}/nothing:1"))
        assert code == 33 and f"{registry}/nothing:1" in err and "--base-image" in err
        assert run(*describe_again(), "--offline")[0] == 21

    def test_network_gone_in_mid_pull(self, world: World, host: Engine, registry: str) -> None:
        code, _, err = run(*describe(world, f"{registry}/cut:1"))
        assert code == 34 and "the network failed" in err, err


def not_podman(host: Engine, reason: str) -> None:
    if "Podman" in str(host.client.version()):
        pytest.skip(f"podman: {reason}")


def runtime(world: World, base: str) -> list[str]:
    """The command for a runtime image; its wheel is to be given."""
    toml = world.tag_file
    if "images.runtime" not in toml.read_text():
        table = f"""
[images.runtime]
base = {{ x86_64 = "{base}" }}
pythons = ["python3"]
"""
        toml.write_text(toml.read_text().replace('"3.11" =', f'"{IMAGE_PYTHON}" =') + table)
    return ["image", "v1.0", "--python", IMAGE_PYTHON]


def runtime_wheel(folder: Path) -> Path:
    tag = f"cp{IMAGE_PYTHON.replace('.', '')}"
    return make_wheel(folder, {}, tag, "1.0+lms.1")


def loose(host: Engine) -> set[str]:
    """Images that have no name and are no part of another."""
    return {image.id for image in host.client.images.list(filters={"dangling": True})}


def describe_again() -> list[str]:
    return ["image", "v1.0", "--kind", "compiler"]


def containers(host: Engine, base: str) -> list[object]:
    """Of the image `base` and of what is built on it."""
    return list(
        host.client.containers.list(all=True, filters={"ancestor": base}, ignore_removed=True)
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def with_installer(host: Engine, debian: str, name: str, script: str) -> str:
    """The image with an apt-get that runs `script`."""
    tag = f"lmsbuild-test-{name}:1"
    text = (
        f"FROM {debian}\nRUN echo '#!/bin/sh\\n{script}' > /usr/local/bin/apt-get && "
        "chmod 755 /usr/local/bin/apt-get\n"
    )
    host.client.images.build(fileobj=io.BytesIO(text.encode()), tag=tag, rm=True, forcerm=True)
    return tag


def foreign_image(host: Engine, folder: Path, arch: str) -> str:
    """Its shell is a program for a processor that there is not."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xfe\xca" + bytes(100)
    tar = folder / "foreign.tar"
    with tarfile.open(tar, "w") as archive:
        info = tarfile.TarInfo("bin/sh")
        info.size, info.mode = len(header), 0o755
        archive.addfile(info, io.BytesIO(header))
    name = f"lmsbuild-test-foreign:{arch}"
    import_image(host, tar, name, arch)
    return name


class Registry(BaseHTTPRequestHandler):
    """Knows the image `cut`, whose only layer ends in the middle."""

    def do_GET(self) -> None:
        config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {}}).encode()
        kinds = "application/vnd.docker."
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{kinds}distribution.manifest.v2+json",
            "config": {"mediaType": f"{kinds}container.image.v1+json", **digest(config)},
            "layers": [
                {"mediaType": f"{kinds}image.rootfs.diff.tar.gzip", "size": 1 << 20,
                 "digest": f"sha256:{'0' * 64}"}
            ],
        }  # fmt: skip
        if self.path == "/v2/":
            self.answer(200, b"{}", "application/json")
        elif self.path.startswith("/v2/cut/manifests/"):
            self.answer(200, json.dumps(manifest).encode(), str(manifest["mediaType"]))
        elif self.path.endswith(str(digest(config)["digest"])):
            self.answer(200, config, "application/octet-stream")
        elif self.path.startswith("/v2/cut/blobs/"):
            self.close_connection = True
            if "Range" not in self.headers:  # what goes on where it was cut gets no answer
                self.answer(200, bytes(1000), "application/octet-stream", 1 << 20)
        else:
            unknown = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            self.answer(404, json.dumps(unknown).encode(), "application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, code: int, body: bytes, kind: str, length: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length or len(body)))
        self.send_header("Docker-Content-Digest", str(digest(body)["digest"]))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def digest(content: bytes) -> dict[str, str | int]:
    return {"size": len(content), "digest": f"sha256:{hashlib.sha256(content).hexdigest()}"}


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
