# SPDX-License-Identifier: Apache-2.0
"""kill -9 at every step of a command that changes something: status, abort, and go on."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_kill import Killer, snapshot
from lmsbuild_world import World, plain_git

from lmsbuild.__main__ import run

SAMPLE = 4  # of the default tier


@pytest.fixture
def killer(world: World) -> Killer:
    folder = world.folder / "killer"
    folder.mkdir()
    return Killer(folder, world.folder / "run")


class Runs:
    """Copies of one checkout, and lmsbuild in this process on them."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self.world = world
        self.capsys = capsys
        self.root = world.folder / "run"
        self.pristine = world.clone("pristine")
        plain_git(self.pristine, "checkout", "-q", "-b", "mine")

    def fresh(self) -> Path:
        shutil.rmtree(self.root, ignore_errors=True)
        checkout = self.root / "checkout"
        shutil.copytree(self.pristine, checkout, symlinks=True)
        plain_git(checkout, "update-index", "-q", "--refresh")
        return checkout

    def tool(self, *arguments: str, code: int = 0) -> Any:
        self.capsys.readouterr()
        assert run([*arguments, "--json"]) == code, self.capsys.readouterr().err
        return json.loads(self.capsys.readouterr().out)


@pytest.fixture
def runs(world: World, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(world, capsys)


def check_recovery(
    runs: Runs, checkout: Path, before: dict[str, str], where: str, over: Path | None = None
) -> str:
    """status explains, abort gives all or nothing, and the next apply and undo work.

    `over` is there when the git that outlived its caller has ended.
    """
    into = ("v1.0", "--into", str(checkout))
    while (stands := runs.tool("status", *into)["checkouts"][0])["running"]:
        time.sleep(0.1)  # a git that the killed process started
    aborted = runs.tool("abort", *into)["aborted"]
    outcome: str = aborted[0]["outcome"] if aborted else "none"
    while over and not over.exists():
        time.sleep(0.1)
    assert bool(stands["unfinished"]) == bool(aborted), where
    now = snapshot(checkout)
    if now != before:
        # All of it: killed when it was done.
        assert outcome in ("completed", "none"), where
        patches = runs.tool("status", *into)["checkouts"][0]["patches"]
        assert [patch["state"] for patch in patches] == ["applied"] * 3, where
        assert plain_git(checkout, "status", "--porcelain") == "", where
    elif outcome == "restored":
        assert "middle" in stands["unfinished"]["state"], where
    assert not (checkout / ".git/lmsbuild/work").exists(), where
    assert not list(checkout.rglob(".*.lmsbuild-new")), where
    assert not list((checkout / ".git").rglob("*.lock")), where
    runs.tool("apply", *into)
    assert (checkout / "core/lms/engine.cpp").exists(), where
    assert plain_git(checkout, "status", "--porcelain") == "", where
    runs.tool("undo", *into)
    after = snapshot(checkout)
    # The entries of files that were rewritten have other times in the index.
    assert {**after, "index file": ""} == {**before, "index file": ""}, where
    assert plain_git(checkout, "status", "--porcelain") == "", where
    return outcome


def chosen(steps: list[str], every: bool, keep: str) -> list[int]:
    """Numbers (from 1) of all steps, or some of them and each third that has `keep` in it."""
    numbers = list(range(1, len(steps) + 1))
    if every:
        return numbers
    matching = [number for number in numbers if keep in steps[number - 1]]
    return sorted({*numbers[:: max(1, len(numbers) // SAMPLE)], *matching[::3]})


TIERS = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.default
@pytest.mark.parametrize("every", TIERS)
def test_apply_killed_at_a_change_of_a_file(runs: Runs, killer: Killer, every: bool) -> None:
    apply = ["apply", "v1.0", "--into", str(runs.root / "checkout")]
    steps = killer.file_steps(apply, runs.fresh())
    outcomes = set()
    for number in chosen(steps, every, "os.rename /checkout"):
        checkout = runs.fresh()
        before = snapshot(checkout)
        assert killer.at_file(number, apply, checkout), steps[number - 1]
        outcomes.add(check_recovery(runs, checkout, before, steps[number - 1]))
    assert "restored" in outcomes


@pytest.mark.default
@pytest.mark.parametrize("every", TIERS)
@pytest.mark.parametrize("mode", ["before", "after", "orphan"])
def test_apply_killed_at_a_git_call(runs: Runs, killer: Killer, every: bool, mode: str) -> None:
    apply = ["apply", "v1.0", "--into", str(runs.root / "checkout")]
    steps = killer.git_steps(apply, runs.fresh())
    moves = next(number for number, step in enumerate(steps, 1) if "update-ref -m" in step)
    for number in range(1, len(steps) + 1) if every else (len(steps) // 2, moves):
        checkout = runs.fresh()
        before = snapshot(checkout)
        assert killer.at_git(number, mode, apply, checkout), steps[number - 1]
        over = killer.folder / "count.over" if mode == "orphan" else None
        check_recovery(runs, checkout, before, f"{mode} {steps[number - 1]}", over)
        if over:
            over.unlink()


@pytest.mark.default
def test_apply_and_its_git_killed_while_refs_are_locked(runs: Runs, killer: Killer) -> None:
    apply = ["apply", "v1.0", "--into", str(runs.root / "checkout")]
    steps = killer.git_steps(apply, runs.fresh())
    number = max(number for number, step in enumerate(steps, 1) if "update-ref -m" in step)
    checkout = runs.fresh()
    before = snapshot(checkout)
    assert killer.at_git(number, "both", apply, checkout)
    assert list((checkout / ".git").rglob("mine.lock"))
    assert check_recovery(runs, checkout, before, "both") == "restored"


def project_files(world: World) -> dict[str, bytes]:
    root = world.project.root
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".lmsbuild" not in path.relative_to(root).parts
    }


@pytest.mark.default
@pytest.mark.parametrize("every", TIERS)
def test_refresh_killed_at_a_change_of_a_file(world: World, runs: Runs, every: bool) -> None:
    """Edits in lms/ and commits in a checkout go into four files, or none."""
    checkout = runs.fresh()
    runs.tool("apply", "v1.0", "--into", str(checkout))
    world.commit(checkout, {"python/api.py": "def memory():\n    return 5\n"}, "Show\n\nMore.")
    engine = "int engine() { return 8; }\n"
    world.commit(checkout, {"core/lms/engine.cpp": engine}, "Edit the engine\n\nA reason.")
    pristine = world.folder / "pristine-project"
    shutil.copytree(world.project.root, pristine)

    def fresh() -> None:
        shutil.rmtree(world.project.root)
        shutil.copytree(pristine, world.project.root)

    folder = world.folder / "killer"
    folder.mkdir()
    killer = Killer(folder, world.project.root)
    refresh = ["refresh", "v1.0", "--from", str(checkout)]
    # The first one notes in the checkout what it took, which every later one looks at.
    runs.tool(*refresh)
    fresh()
    before = project_files(world)
    steps = killer.file_steps(refresh, world.folder)
    after = project_files(world)
    assert len({name for name in after if after[name] != before.get(name)}) >= 3
    outcomes = set()
    for number in chosen(steps, every, "os.rename /patches"):
        where = steps[number - 1]
        fresh()
        assert killer.at_file(number, refresh, world.folder), where
        unfinished = runs.tool("status")["project"]["unfinished"]
        aborted = runs.tool("abort")["aborted"]
        assert bool(unfinished) == bool(aborted), where
        outcome = aborted[0]["outcome"] if aborted else "none"
        outcomes.add(outcome)
        if project_files(world) != before:
            assert outcome in ("completed", "none"), where
            assert project_files(world) == after, where
        else:
            runs.tool(*refresh)
            assert project_files(world) == after, where
        runs.tool("undo", "--refresh")
        assert project_files(world) == before, where
    assert "restored" in outcomes


@pytest.mark.default
@pytest.mark.parametrize("every", TIERS)
def test_undo_killed_at_a_change_of_a_file(runs: Runs, killer: Killer, every: bool) -> None:
    into = ["v1.0", "--into", str(runs.root / "checkout")]
    checkout = runs.fresh()
    before = snapshot(checkout)
    runs.tool("apply", *into)
    saved = runs.world.folder / "applied"
    shutil.copytree(checkout, saved, symlinks=True)

    def fresh() -> None:
        shutil.rmtree(checkout)
        shutil.copytree(saved, checkout, symlinks=True)
        plain_git(checkout, "update-index", "-q", "--refresh")

    fresh()
    steps = killer.file_steps(["undo", *into], checkout)
    for number in chosen(steps, every, "os.rename /checkout"):
        fresh()
        after = snapshot(checkout)
        assert killer.at_file(number, ["undo", *into], checkout), steps[number - 1]
        runs.tool("abort", *into)
        if snapshot(checkout) == after:
            runs.tool("undo", *into)
        now = snapshot(checkout)
        assert {**now, "index file": ""} == {**before, "index file": ""}, steps[number - 1]
        assert plain_git(checkout, "status", "--porcelain") == "", steps[number - 1]
