# SPDX-License-Identifier: Apache-2.0
"""`wheel` killed or without space: the earlier wheel stays, and the next run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lmsbuild_kill import Killer
from lmsbuild_processes import run
from lmsbuild_wheels import ENGINE, check_record, edit
from lmsbuild_world import World, small_disk

from lmsbuild.base.hashing import sha256_file

pytestmark = pytest.mark.default

LATER = ENGINE.replace("return 2", "return 3")


@dataclass
class Wheels:
    """A world with a wheel, and a runtime that has changed since."""

    world: World
    killer: Killer
    before: dict[str, bytes]
    after: dict[str, bytes]

    @property
    def output(self) -> Path:
        return self.world.folder / "work/alpha-v1.0/wheels"

    def found(self) -> dict[str, bytes]:
        return {f.name: f.read_bytes() for f in self.output.iterdir() if f.name != ".lock"}

    def reset(self) -> None:
        """The earlier wheel, and nothing compiled of the later one."""
        for file in self.output.iterdir():
            file.unlink()
        for name, content in self.before.items():
            (self.output / name).write_bytes(content)
        for note in (self.world.folder / "work/cache/objects").rglob("*.o"):
            note.unlink()


COMMAND = ["wheel", "v1.0", "--jobs", "1", "--source", "git"]


@pytest.fixture
def wheels(world: World, official: Path, monkeypatch: pytest.MonkeyPatch) -> Wheels:
    # The killer looks at one folder.
    monkeypatch.setenv("LMSBUILD_CACHE", str(world.folder / "work/cache"))
    made = Wheels(world, Killer(world.folder, world.folder / "work"), {}, {})
    edit(world, LATER)
    assert run(*COMMAND)[0] == 0
    made.after = made.found()
    for file in made.output.iterdir():
        file.unlink()
    edit(world, ENGINE)
    assert run("undo", "v1.0")[0] == 0
    assert run(*COMMAND)[0] == 0
    made.before = made.found()
    edit(world, LATER)
    assert run("undo", "v1.0")[0] == run("apply", "v1.0")[0] == 0
    assert made.before.keys() == made.after.keys() and len(made.before) == 2
    return made


def check(wheels: Wheels, steps: list[str], number: int) -> None:
    wheels.reset()
    assert wheels.killer.at_file(number, COMMAND, wheels.world.folder), steps[number - 1]
    if number <= commit_of(steps):
        for name, content in wheels.before.items():
            assert (wheels.output / name).read_bytes() == content, steps[number - 1]
    code, _, err = run(*COMMAND)
    assert code == 0, (steps[number - 1], err)
    assert wheels.found() == wheels.after, steps[number - 1]


def commit_of(steps: list[str]) -> int:
    """The step that decides whether the new wheel is there."""
    (found,) = (
        number
        for number, step in enumerate(steps, 1)
        if step.startswith("os.rename") and step.endswith("/wheels/.ready")
    )
    return found


def test_earlier_wheel_stays_until_the_new_one_is_whole(wheels: Wheels) -> None:
    wheels.reset()
    steps = wheels.killer.file_steps(COMMAND, wheels.world.folder)
    commit = commit_of(steps)
    compiled = next(i for i, step in enumerate(steps, 1) if "/objects/" in step)
    for number in (compiled + 1, commit, commit + 1, commit + 2):
        check(wheels, steps, number)
    # What was compiled before the kill is not compiled again.
    wheels.reset()
    assert wheels.killer.at_file(commit - 1, COMMAND, wheels.world.folder)
    assert list(wheels.output.glob(".build-*"))
    code, out, _ = run(*COMMAND, "--json")
    assert (code, json.loads(out)["compiled"]) == (0, 0)
    assert not list(wheels.output.glob(".build-*"))


@pytest.mark.slow
def test_killed_at_every_step(wheels: Wheels) -> None:
    wheels.reset()
    steps = wheels.killer.file_steps(COMMAND, wheels.world.folder)
    for number in range(1, len(steps) + 1):
        check(wheels, steps, number)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "64k") as folder:
        yield folder


def test_full_disk_is_named(world: World, official: Path, disk: Path) -> None:
    command = ["wheel", "v1.0", "--output", str(disk), "--source", "git"]
    assert run(*command)[0] == 0
    (earlier,) = disk.glob("*.whl")
    digest = sha256_file(earlier)
    edit(world, LATER)
    assert run("undo", "v1.0")[0] == 0
    (disk / "other").write_bytes(bytes(64 * 1024 - 45_000))
    code, _, err = run(*command)
    assert code == 18 and str(disk) in err and "No space left on device" in err
    assert sha256_file(earlier) == digest
    check_record(earlier)
    assert not list(disk.glob(".build-*"))
