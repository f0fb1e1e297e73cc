# SPDX-License-Identifier: Apache-2.0
"""The compiler in a real container."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_engine import Engine
from lmsbuild_wheels import PYTHON, run, start
from lmsbuild_world import World

from lmsbuild.cache import scratch
from lmsbuild.console import Console
from lmsbuild.container import compiler
from lmsbuild.engine import OWNER
from lmsbuild.errors import CompileError
from lmsbuild.project import cache_dir

pytestmark = [pytest.mark.net, pytest.mark.default]

TOOLSET = """
[frameworks.alpha.tags."v1.0".images.compiler]
base = { x86_64 = "no-such-image:1" }
compilers = ["/nowhere/g++", "g++"]
packages = { apt-get = ["g++"] }
"""


@pytest.fixture
def contained(
    world: World, official: Path, debian: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    toml = world.project.frameworks_file
    toml.write_text(toml.read_text() + TOOLSET)
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    return ["wheel", "v1.0", "--base-image", debian, "--source", "git"]


def ours(engine: Engine) -> list[Any]:
    return list(engine.client.containers.list(all=True, filters={"label": OWNER}))


def test_wheel_of_an_older_system(world: World, engine: Engine, contained: list[str]) -> None:
    code, out, err = run(*contained, "--json")
    assert code == 0, err
    first = json.loads(out)
    manifest = json.loads(Path(first["manifest"]).read_text())
    assert "system" in manifest["toolchain"]
    assert not ours(engine)
    # On this machine it is another wheel, and both are kept apart by their toolchain.
    code, out, _ = run("wheel", "v1.0", "--json")
    assert code == 0 and json.loads(out)["key"] != first["key"]
    code, out, _ = run(*contained, "--output", str(world.folder / "again"), "--json")
    assert (json.loads(out)["compiled"], json.loads(out)["sha256"]) == (0, first["sha256"])
    assert {path.stat().st_uid for path in world.folder.rglob("*")} == {os.getuid()}


def test_files_are_the_users(
    world: World, contained: list[str], debian: str, monkeypatch: pytest.MonkeyPatch,
    console: Console,
) -> None:  # fmt: skip
    """The compiler writes as the calling user, and only where it must."""
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 5678)
    (cache_dir() / "tmp").mkdir()
    (cache_dir() / "tmp").chmod(0o777)
    monkeypatch.setattr("lmsbuild.cache.tempfile.mkdtemp", open_to_all)
    with (
        compiler(world.target, world.upstream, debian, PYTHON, console) as found,
        scratch() as folder,
    ):
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


def test_killed_run_leaves_no_container(
    world: World, engine: Engine, contained: list[str], console: Console
) -> None:
    process = start(*contained)
    deadline = time.monotonic() + 120
    # One that was made and not yet started is left to the next run.
    while not engine.client.containers.list(filters={"label": OWNER}) and process.poll() is None:
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


def test_abandoned_container_is_removed(
    world: World, engine: Engine, contained: list[str], debian: str
) -> None:
    """One that the engine kept, of a process that is gone; one of a living process stays."""
    gone = engine.client.containers.create(
        debian, "true", labels={OWNER: f"{socket.gethostname()} 999999999 1.0"}
    )
    elsewhere = engine.client.containers.create(debian, "true", labels={OWNER: "elsewhere 1 1.0"})
    try:
        code, _, err = run(*contained)
        assert code == 0, err
        assert [container.id for container in ours(engine)] == [elsewhere.id]
    finally:
        elsewhere.remove()
    assert gone.id not in [container.id for container in ours(engine)]
