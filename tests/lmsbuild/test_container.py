# SPDX-License-Identifier: Apache-2.0
"""The compiler in a real container."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import tomli
from docker.errors import ContainerError as DockerContainerError
from lmsbuild_conda import give_conda
from lmsbuild_engine import Engine
from lmsbuild_processes import run
from lmsbuild_training import LIMIT, QUIET, TENSORFLOW
from lmsbuild_wheels import PYTHON, start
from lmsbuild_world import World, real_checkout, write

from lmsbuild.base.cache import scratch
from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    CompileError,
    ConfigError,
    EngineError,
    OfflineError,
    RebuildError,
    UsageError,
)
from lmsbuild.base.project import Project, cache_dir
from lmsbuild.places.docker import OWNER
from lmsbuild.places.tagcontainer import compiler
from lmsbuild.tags.frameworks import resolve
from lmsbuild.wheel import plugin, wheelfile
from lmsbuild.wheel.headers import header_folders

pytestmark = [pytest.mark.net, pytest.mark.default]

TOOLSET = """
[images.compiler]
base = { x86_64 = "no-such-image:1" }
compilers = ["/nowhere/g++", "g++"]
packages = { apt-get = ["g++"] }
"""


@pytest.fixture
def contained(
    world: World, official: Path, debian: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    toml = world.tag_file
    toml.write_text(toml.read_text() + TOOLSET)
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    return ["wheel", "v1.0", "--base-image", debian, "--source", "git"]


def ours(engine: Engine) -> list[Any]:
    return list(
        engine.client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)
    )


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


def test_a_dry_run_builds_no_image(world: World, contained: list[str]) -> None:
    """It asks no engine for anything, with a checkout and without one."""
    nowhere = {"DOCKER_HOST": f"unix://{world.folder}/no.sock"}
    for _ in range(2):
        code, out, err = run(*contained, "--dry-run", env=nowhere)
        assert code == 0 and "would write " in out, err
        assert not list(world.project.root.rglob("*.whl"))
        assert run("apply", "v1.0", "--source", "git")[0] == 0


def test_files_are_the_users(
    world: World, contained: list[str], debian: str, monkeypatch: pytest.MonkeyPatch,
    console: Console,
) -> None:  # fmt: skip
    """The compiler writes as the calling user, and only where it must."""
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 5678)
    (cache_dir() / "tmp").mkdir()
    (cache_dir() / "tmp").chmod(0o777)
    monkeypatch.setattr("lmsbuild.base.cache.tempfile.mkdtemp", open_to_all)
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
    while (
        not engine.client.containers.list(filters={"label": OWNER}, ignore_removed=True)
        and process.poll() is None
    ):
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


PLUGIN = """
name = "torch_lms"
version = "0.1"
sources = "lms/plugin"
include = ["tree:"]
flags = ["-O1", "-fPIC"]
layout = [{ source = "lms/plugin/csrc", target = "plugin", patterns = ["*.cpp"] }]
[images.compiler]
base = { x86_64 = "no-such-image:1" }
compilers = ["/nowhere/g++", "g++"]
packages = { apt-get = ["g++"] }
[releases."1.0"]
requires = ">=1,<2"
cxx_standard = "gnu++17"
"""


@pytest.fixture
def plugged(world: World, official: Path) -> World:
    """With a package beside the official wheel, of which one file is compiled."""
    tag = tomli.loads(world.tag_file.read_text())
    about = tag["cuda"]["0"]["wheel"]
    release = (
        '[releases."1.0".cuda."0"]\nabi = 1\nheaders = []\n'
        + '[releases."1.0".cuda."0".wheel]\n'
        + "".join(f"{key} = {json.dumps(about[key])}\n" for key in about if key != "sha256")
        + '[releases."1.0".cuda."0".wheel.sha256]\n'
        + "".join(f'"{key}" = "{value}"\n' for key, value in about["sha256"].items())
    )
    write(world.project.root, {
        "patches/alpha/plugin.toml": PLUGIN + release,
        "lms/plugin/csrc/plug.cpp": "#include <string>\nstd::string plugged() { return {}; }\n",
        "lms/plugin/package/torch_lms.pth": "",
        "LICENSE": "mine",
    })  # fmt: skip
    return world


def test_plugin_of_an_older_system(
    plugged: World, engine: Engine, debian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    contained = ["plugin", "v1.0", "--container", "--base-image", debian]
    code, out, err = run(*contained, "--output", "dist", "--json")
    assert code == 0, err
    first = json.loads(out)
    wheel = Path(first["wheel"])
    manifest = json.loads(
        wheelfile.read(wheel, f"torch_lms-0.1+torch1.0.dist-info/{plugin.MANIFEST}")
    )
    assert "system" in manifest["toolchain"] and first["compiled"] == 2
    assert not ours(engine)
    again = json.loads(run(*contained, "--output", "dist", "--json")[1])
    assert again["reused"] and again["sha256"] == first["sha256"]
    # On this machine it is another.
    code, out, err = run("plugin", "v1.0", "--output", "here", "--json")
    assert code == 0 and json.loads(out)["sha256"] != first["sha256"], err
    assert {path.stat().st_uid for path in plugged.folder.rglob("*")} == {os.getuid()}


def test_the_image_of_a_plugin_is_the_one_it_names(
    plugged: World, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run pulls nothing, and makes no container."""
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    code, _, err = run("plugin", "v1.0", "--container", "--offline")
    assert code == OfflineError.exit_code and "the image no-such-image:1" in err, err
    code, out, err = run("plugin", "v1.0", "--container", "--dry-run")
    assert code == 0 and "would write" in out, err


def test_a_plugin_without_an_engine_or_an_image(plugged: World, engine: Engine) -> None:
    nowhere = {"DOCKER_HOST": f"unix://{plugged.folder}/no.sock"}
    code, _, err = run("plugin", "v1.0", "--container", env=nowhere)
    assert code == EngineError.exit_code and "no.sock" in err and "Traceback" not in err
    file = plugged.project.patches / "alpha/plugin.toml"
    kept = file.read_text()
    images, _, rest = kept.partition("[images.compiler]")
    file.write_text(images + "[releases" + rest.partition("[releases")[2])
    code, _, err = run("plugin", "v1.0", "--container", env={"DOCKER_HOST": engine.host})
    assert code == ConfigError.exit_code
    assert "because patches/alpha/plugin.toml has no images; add it to `images`" in err
    file.write_text(re.sub("(?m)^layout = .*$", "", kept))
    code, _, err = run("plugin", "v1.0", "--container", env=nowhere)
    assert code == UsageError.exit_code and "nothing of torch_lms is compiled" in err, err


@pytest.mark.slow
def test_release_from_a_container(
    world: World, engine: Engine, contained: list[str], debian: str
) -> None:
    """Packages and release hold the wheel compiled there; only there it comes out again."""
    give_conda(world)
    common = ["--container", "--base-image", debian, "--source", "git", "--json"]
    code, out, err = run("conda", "v1.0", *common)
    assert code == 0, err
    made = json.loads(Path(json.loads(out)["packages"][0]["manifest"]).read_text())
    code, out, err = run("release", "v1.0", *common)
    assert code == 0, err
    manifest = Path(json.loads(out)["folder"]) / "release.json"
    released = json.loads(manifest.read_text())
    assert "system" in released["wheel"]["toolchain"]
    assert made["wheel_sha256"] == released["wheel"]["wheel"]["sha256"]
    code, out, err = run("rebuild", str(manifest), *common)
    assert code == 0, err
    assert {made["package"], made["wheel"]} <= {one["name"] for one in json.loads(out)["compared"]}
    code, _, err = run("rebuild", str(manifest), "--source", "git")
    assert code == RebuildError.exit_code and "system" in err and "is gone" in err
    assert not ours(engine)


def on_real_tag(*command: str, base_image: str) -> Any:
    """What the tool says, as JSON, of one of the tags in this repository's checkouts."""
    common = ["--base-image", base_image, "--python", "3.11", "--json"]
    with real_checkout():
        code, out, err = run(*command, *common, timeout=1500)
    assert code == 0, err
    return json.loads(out)


@pytest.mark.engine
@pytest.mark.slow
def test_suite_of_v2_6_0(
    real_project: Project, debian: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overlay wheel is compiled in a container, and a suite runs on it there."""
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    done = on_real_tag("test", "v2.6.0", "--no-stock", "statistics", base_image=debian)
    assert done["passed"] > 10 and done["skipped"] == 0


# A multilayer perceptron that needs twice the device.
TRAINING = """
import sys
import simcuda
simcuda.load(memory=96 << 20)
import torch
device = sys.argv[1]
torch.manual_seed(0)
layers = [torch.nn.Linear(1024, 1024) for _ in range(6)]
model = torch.nn.Sequential(*(m for layer in layers for m in (layer, torch.nn.ReLU()))).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(2048, 1024).to(device)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item().hex())
"""


@pytest.mark.engine
@pytest.mark.slow
def test_runtime_image_trains(
    real_project: Project, debian: str, engine: Engine, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, console: Console,
) -> None:  # fmt: skip
    """What does not fit trains with Large Model Support, equal to a CPU run; without, it stops."""
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    wheel = on_real_tag("wheel", "v2.6.0", "--output", str(tmp_path), base_image=debian)["wheel"]
    made = on_real_tag("image", "v2.6.0", "--light", "--wheel", wheel, base_image=debian)
    image = made["name"]
    simulated = cache_dir() / "simcuda"
    folders = {real_project.tools: "ro", cache_dir(): "ro", simulated: "rw"}
    headers = header_folders(resolve(real_project, "v2.6.0"), console)

    def train(device: str, lms: str) -> str:
        said: bytes = engine.client.containers.run(
            image, ["python", "-c", TRAINING, device], remove=True, network_mode="none",
            user=f"{os.getuid()}:{os.getgid()}", stderr=False,
            environment={"PYTHONPATH": str(real_project.tools), "SIMCUDA_CACHE": str(simulated),
                         "SIMCUDA_CUDA_INCLUDE": os.pathsep.join(map(str, headers)),
                         "SIMCUDA_QUIET": "1", "HOME": "/tmp", "PYTORCH_LMS": lms},
            volumes=[f"{path}:{path}:{mode}" for path, mode in folders.items()],
        )  # fmt: skip
        return said.decode().strip()

    with pytest.raises(DockerContainerError, match="out of memory"):
        train("cuda", "0")
    assert train("cuda", "1") == train("cpu", "0") != ""


@pytest.mark.engine
@pytest.mark.slow
def test_runtime_image_of_tensorflow_trains(
    real_project: Project, debian: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large Model Support is on in the image; switched off, the same program stops."""
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    image = on_real_tag("image", "tensorflow:v2.14.1", base_image=debian)["name"]

    def train(variables: dict[str, str]) -> str:
        said: bytes = engine.client.containers.run(
            image, ["python", "-c", TENSORFLOW], remove=True, network_mode="none",
            user=f"{os.getuid()}:{os.getgid()}", environment={**QUIET, "HOME": "/tmp", **variables},
        )  # fmt: skip
        return said.decode().strip()

    with pytest.raises(DockerContainerError, match="OOM when allocating"):
        train({**LIMIT, "TF_LMS": "0"})
    assert train(LIMIT) == train({"TF_LMS": "0"}) != ""
