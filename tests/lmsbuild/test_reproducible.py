# SPDX-License-Identifier: Apache-2.0
"""Same inputs, same bytes: whatever of the machine may differ between two builds does differ."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import zipfile
from pathlib import Path

import pytest
from lmsbuild_processes import run
from lmsbuild_wheels import ENGINE, edit
from lmsbuild_world import REPOSITORY, World

from lmsbuild.base.hashing import sha256_file
from lmsbuild.wheel.overlay import MANIFEST

pytestmark = pytest.mark.default

# Everything that a compiler likes to put in: names of files, dates, names made at random.
TELLTALE = (
    ENGINE
    + """#include "engine.h"
const char *where() { return __FILE__ " " __DATE__ " " __TIME__; }
namespace { struct Hidden { Hidden(); int value; } hidden; }
"""
)


def made(name: str, world: World, tag: str, env: dict[str, str], umask: int) -> Path:
    """Build in folders of their own, told by `name`; gives the wheel."""
    base = world.folder / name
    variables = {
        "LMSBUILD_WORK": str(base / "work"),
        "LMSBUILD_CACHE": str(base / "the cache"),
        "TMPDIR": str(base / "tmp"),
        **env,
    }
    (base / "tmp").mkdir(parents=True)
    before = os.umask(umask)
    try:
        jobs = "1" if umask == 0o022 else "3"
        code, out, err = run(
            "wheel", tag, "--output", str(base / "out"), "--into", str(base / "my tree"),
            "--jobs", jobs, "--json", "--source", "git", env=variables,
        )  # fmt: skip
    finally:
        os.umask(before)
    assert code == 0, err
    return Path(json.loads(out)["wheel"])


def test_two_builds_are_equal(world: World, official: Path) -> None:
    edit(world, TELLTALE.replace("Hidden();", "Hidden() : value(1) {}"))
    first = made("a", world, "v1.0", {}, 0o022)
    hostile = {
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C.UTF-8",
        "LANG": "de_DE.UTF-8",
        "SOURCE_DATE_EPOCH": "1234567890",
        "CPATH": str(world.folder / "evil"),
        "LD_RUN_PATH": "/evil",
        "GCC_COLORS": "error=01;31",
    }
    evil = world.folder / "evil"
    evil.mkdir()
    (evil / "string.h").write_text("#error a header of the environment\n")
    second = made("some other place, with spaces", world, "v1.0", hostile, 0o077)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes(), difference(first, second)
    nothing_of_this_machine(first, world.folder)


def difference(first: Path, second: Path) -> str:
    with zipfile.ZipFile(first) as a, zipfile.ZipFile(second) as b:
        return str([n for n in a.namelist() if a.read(n) != b.read(n)] or "order or header")


def nothing_of_this_machine(wheel: Path, folder: Path) -> None:
    """No path of this machine in what was built, nor in the manifest beside it."""
    beside = Path(f"{wheel}.manifest.json").read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        (manifest,) = (name for name in archive.namelist() if name.endswith(MANIFEST))
        ours = json.loads(archive.read(manifest))["members"]
        contents = [archive.read(name) for name in ours if ours[name] != "removed"]
    for word in (str(folder), str(Path.home()), str(REPOSITORY)):
        for content in [beside, *contents]:
            assert word.encode() not in content


def test_source_route_does_not_matter(world: World, official: Path) -> None:
    """A tree with fewer files (Debian strips some) gives the same wheel."""
    first = made("a", world, "v1.0", {}, 0o022)
    tree = world.folder / "stripped"
    shutil.copytree(world.upstream, tree, ignore=shutil.ignore_patterns(".git", "kept.*"))
    base = world.folder / "b"
    variables = {"LMSBUILD_WORK": str(base / "work"), "LMSBUILD_CACHE": str(base / "cache")}
    code, out, err = run("wheel", "v1.0", "--source", str(tree), "--json", env=variables)
    assert code == 0, err
    assert Path(json.loads(out)["wheel"]).read_bytes() == first.read_bytes()


def test_compiler_with_options_and_wrapper(world: World, official: Path) -> None:
    """$CXX may be several words, as with ccache."""
    first = made("a", world, "v1.0", {}, 0o022)
    wrapper = world.folder / "my ccache"
    wrapper.write_text('#!/bin/sh\nexec "$@"\n')
    wrapper.chmod(0o755)
    compiler = f"{shlex.quote(str(wrapper))} g++"
    assert made("b", world, "v1.0", {"CXX": compiler}, 0o022).read_bytes() == first.read_bytes()


@pytest.mark.net
@pytest.mark.engine
@pytest.mark.slow
def test_real_wheel_twice(tmp_path: Path) -> None:
    """v2.6.0 built from nothing in two places; only downloads are shared."""
    wheels = []
    for name, jobs in (("one", "1"), ("another place", "2")):
        base = tmp_path / name
        shared = Path(os.environ.get("LMSBUILD_CACHE", Path.home() / ".cache" / "lmsbuild"))
        own = base / "cache"
        own.mkdir(parents=True)
        for kind in ("packages", "repositories", "downloads"):
            if (shared / kind).is_dir():
                shutil.copytree(shared / kind, own / kind, copy_function=os.link)
        code, out, err = run(
            "wheel", "v2.6.0", "--jobs", jobs, "--json", timeout=3600,
            env={"LMSBUILD_WORK": str(base / "work"), "LMSBUILD_CACHE": str(own),
                 "LMSBUILD_ROOT": str(REPOSITORY)},
        )  # fmt: skip
        assert code == 0, err
        wheels.append(Path(json.loads(out)["wheel"]))
    assert sha256_file(wheels[0]) == sha256_file(wheels[1]), difference(*wheels)
    nothing_of_this_machine(wheels[0], tmp_path)
