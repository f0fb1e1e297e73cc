# SPDX-License-Identifier: Apache-2.0
"""The compiler in a real container. Needs a container engine and an image of an older system."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_wheels import run, start
from lmsbuild_world import World

from lmsbuild.cache import scratch
from lmsbuild.console import Console
from lmsbuild.container import compiler, render
from lmsbuild.debian import codename, main_archive
from lmsbuild.errors import CompileError, ConfigError
from lmsbuild.frameworks import resolve
from lmsbuild.project import Project, cache_dir

OWNER = "lmsbuild.owner"
TOOLSET = """
[frameworks.alpha.tags."v1.0".toolset]
image = "lmsbuild-test:bullseye"
compilers = ["/nowhere/g++", "g++"]
packages = { apt-get = ["g++"] }
"""


def test_dockerfile_is_rendered(world: World, real_project: Project) -> None:
    with pytest.raises(ConfigError, match="no toolset"):
        render(world.target)
    text = render(resolve(real_project, "v2.6.0"))
    assert "FROM pytorch/manylinux-builder:cuda12.4\n" in text and "devtoolset-9" in text
    assert "FROM other:1\n" in render(resolve(real_project, "v2.6.0"), "other:1")


def test_no_engine_is_named(world: World, official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = world.project.frameworks_file
    toml.write_text(toml.read_text() + TOOLSET)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    code, _, err = run("wheel", "v1.0", "--container", "--source", "git")
    assert code == 22 and "no engine answers" in err and "DOCKER_HOST" in err


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    docker = pytest.importorskip("docker.client")
    try:
        client = docker.DockerClient.from_env()
        client.ping()
    except Exception as error:
        pytest.skip(f"no container engine answers: {error}")
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """LMSBUILD_TEST_IMAGE, else one of Debian 11 made here."""
    given = os.environ.get("LMSBUILD_TEST_IMAGE")
    if given:
        return given
    archive = main_archive(codename() or "")
    if archive is None or shutil.which("debootstrap") is None or os.getuid() != 0:
        pytest.skip("no image can be made without root, debootstrap and Debian's archive")
    root = tmp_path_factory.mktemp("image") / "root"
    command = [
        "debootstrap",
        "--variant=minbase",
        "--include=g++",
        "bullseye",
        str(root),
        archive.uri,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    name = "lmsbuild-test:bullseye"
    tar = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
    subprocess.run(["docker", "import", "-", name], stdin=tar.stdout, check=True)
    return name


@pytest.fixture
def contained(world: World, official: Path, image: str) -> list[str]:
    toml = world.project.frameworks_file
    toml.write_text(toml.read_text() + TOOLSET)
    return ["wheel", "v1.0", "--base-image", image, "--source", "git"]


def ours(engine: Any) -> list[Any]:
    return list(engine.containers.list(all=True, filters={"label": OWNER}))


@pytest.mark.slow
@pytest.mark.net
def test_wheel_of_an_older_system(world: World, engine: Any, contained: list[str]) -> None:
    code, out, err = run(*contained, "--json")
    assert code == 0, err
    first = json.loads(out)
    manifest = json.loads(Path(first["manifest"]).read_text())
    assert "system" in manifest["toolchain"] and " 10." in manifest["toolchain"]["compiler"]
    assert not ours(engine)
    # On this machine it is another wheel, and both are kept apart by their toolchain.
    code, out, _ = run("wheel", "v1.0", "--json")
    assert code == 0 and json.loads(out)["key"] != first["key"]
    code, out, _ = run(*contained, "--output", str(world.folder / "again"), "--json")
    assert (json.loads(out)["compiled"], json.loads(out)["sha256"]) == (0, first["sha256"])
    assert {path.stat().st_uid for path in world.folder.rglob("*")} == {os.getuid()}


@pytest.mark.slow
@pytest.mark.net
def test_files_are_the_users(
    world: World, contained: list[str], image: str, monkeypatch: pytest.MonkeyPatch,
    console: Console,
) -> None:  # fmt: skip
    """The compiler writes as the calling user, and only where it must."""
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 5678)
    (cache_dir() / "tmp").mkdir()
    (cache_dir() / "tmp").chmod(0o777)
    monkeypatch.setattr("lmsbuild.cache.tempfile.mkdtemp", open_to_all)
    with compiler(world.target, world.upstream, image, console) as found, scratch() as folder:
        source = folder / "unit.cpp"
        source.write_text("int unit;")
        found.run("-c", str(source), "-o", str(folder / "unit.o"), temporary=folder)
        made = (folder / "unit.o").stat()
        assert (made.st_uid, made.st_gid) == (1234, 5678)
        for place in (world.upstream, cache_dir()):
            with pytest.raises(CompileError, match="Read-only"):
                found.run("-c", str(source), "-o", str(place / "unit.o"), temporary=folder)


def open_to_all(dir: Path) -> str:
    folder = dir / "open"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    return str(folder)


@pytest.mark.slow
@pytest.mark.net
def test_killed_run_leaves_no_container(
    world: World, engine: Any, contained: list[str], console: Console
) -> None:
    process = start(*contained)
    deadline = time.monotonic() + 120
    # One that was made and not yet started is left to the next run.
    while not engine.containers.list(filters={"label": OWNER}) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while ours(engine) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not ours(engine)
    assert run(*contained)[0] == 0


@pytest.mark.slow
@pytest.mark.net
def test_abandoned_container_is_removed(
    world: World, engine: Any, contained: list[str], image: str
) -> None:
    """One that the engine kept, of a process that is gone; one of a living process stays."""
    gone = engine.containers.create(
        image, "true", labels={OWNER: f"{socket.gethostname()} 999999999 1.0"}
    )
    elsewhere = engine.containers.create(image, "true", labels={OWNER: "elsewhere 1 1.0"})
    try:
        code, _, err = run(*contained)
        assert code == 0, err
        assert [container.id for container in ours(engine)] == [elsewhere.id]
    finally:
        elsewhere.remove()
    assert gone.id not in [container.id for container in ours(engine)]


@pytest.mark.slow
@pytest.mark.net
def test_image_without_a_compiler_is_named(engine: Any, contained: list[str]) -> None:
    code, _, err = run(*contained[:3], "no-such-image:1", *contained[4:])
    assert code == 22 and "no-such-image" in err and "--base-image" in err
