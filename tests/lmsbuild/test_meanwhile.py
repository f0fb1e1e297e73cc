# SPDX-License-Identifier: Apache-2.0
"""Commands that look at a checkout without its lock, and another lmsbuild that begins after they
have found nobody at work there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import lmsbuild_processes
import pytest
from lmsbuild_kill import snapshot
from lmsbuild_world import World

from lmsbuild.__main__ import run
from lmsbuild.base import use
from lmsbuild.base.console import Console
from lmsbuild.base.errors import BusyError
from lmsbuild.base.git import repository
from lmsbuild.base.transaction import hold
from lmsbuild.checkout import checkout
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.switch import CheckoutTransaction
from lmsbuild.upkeep import status
from lmsbuild.wheel import inputs
from lmsbuild.wheel.toolchain import Compiler

pytestmark = pytest.mark.default
BUSY = BusyError.exit_code
DROP = ("drop", "v1.0", "1")
COMMANDS = [
    ("apply", "--dry-run"),
    ("pop", "--dry-run"),
    ("refresh",),
    ("refresh", "--patch", "2", "--dry-run"),
    ("undo",),
    ("undo", "--dry-run"),
]


class Killed(BaseException):
    pass


@pytest.fixture
def clone(world: World, console: Console) -> Path:
    """A checkout with the series."""
    made = world.clone()
    apply(world.target, made, console)
    return made


@pytest.fixture
def at_work() -> Iterator[ExitStack]:
    """The locks of those who are in the middle of something."""
    with ExitStack() as stack:
        yield stack


def switching(clone: Path, at_work: ExitStack) -> None:
    """One who has switched the first of several files."""
    forward = CheckoutTransaction._forward

    def once(self: CheckoutTransaction, number: int, step: object) -> None:
        if number:
            raise Killed
        forward(self, number, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckoutTransaction, "_forward", once)
        patch.setattr(CheckoutTransaction, "roll_back", lambda self: None)
        with pytest.raises(Killed):
            run([*DROP, "--into", str(clone)])
    at_work.enter_context(hold(clone / ".git/lmsbuild/lock", " ".join(DROP), clone))


def done(clone: Path, _: ExitStack) -> None:
    code, _out, err = lmsbuild_processes.run(*DROP, "--into", str(clone))
    assert code == 0, err


def begins(monkeypatch: pytest.MonkeyPatch, other: Callable[[], None]) -> None:
    """Have `other` begin right after the next check of a checkout."""
    check = CheckoutTransaction.check_none_unfinished

    def checked(*given: Any) -> None:
        check(*given)
        monkeypatch.undo()
        other()

    monkeypatch.setattr(CheckoutTransaction, "check_none_unfinished", checked)


def begins_within(
    patch: pytest.MonkeyPatch, place: object, name: str, other: Callable[[], object]
) -> None:
    """Have `other` begin right before what has this name there next does its work."""
    original = getattr(place, name)

    def late(*given: Any) -> Any:
        patch.undo()
        other()
        return original(*given)

    patch.setattr(place, name, late)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (switching, "`lmsbuild drop v1.0 1` (process "),
        (done, "it moved to another commit meanwhile; run the command again"),
    ],
    ids=["at work", "done"],
)
def test_what_another_has_half_done_is_no_reason_to_refuse(
    clone: Path,
    at_work: ExitStack,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    other: Callable[[Path, ExitStack], None],
    message: str,
) -> None:
    now: list[dict[str, str]] = []

    def begin() -> None:
        other(clone, at_work)
        now.append(snapshot(clone))

    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        begins(patch, begin)
        code = run([words[0], "v1.0", *words[1:], "--into", str(clone), "--json"])
    printed = capsys.readouterr().out
    assert code == BUSY, printed
    assert message in json.loads(printed)["error"]["message"]
    assert now == [snapshot(clone)]


def test_status_tells_one_who_began_while_it_looked(
    clone: Path, at_work: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """And takes what that has half done for no change of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        begins_within(patch, status, "_users_changes", lambda: switching(clone, at_work))
        capsys.readouterr()
        assert run(["status", "v1.0", "--into", str(clone), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["checkouts"]
    assert found["running"]["command"] == " ".join(DROP) and not found["unfinished"]
    assert found["next"].startswith("wait for `lmsbuild drop v1.0 1` (process ")


def test_no_wheel_is_made_of_what_is_half_switched(
    world: World, clone: Path, at_work: ExitStack, console: Console
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        begins_within(patch, inputs, "overlooked", lambda: switching(clone, at_work))
        with pytest.raises(BusyError, match=r"`lmsbuild drop v1\.0 1` \(process "):
            inputs.gather(world.target, clone, "3.11", console, cast("Compiler", None))


@pytest.mark.parametrize("command", ["abort", "status"])
def test_a_checkout_that_clean_would_remove(
    world: World, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """It is no damaged one. Who may have to go on with it keeps it; who only looks does not."""
    assert run(["fetch", "v1.0"]) == 0
    use.let_go()
    codes: list[int] = []

    def clean() -> None:
        codes.append(lmsbuild_processes.run("clean", "--all")[0])

    with pytest.MonkeyPatch.context() as patch:
        begins_within(patch, repository, "_opened", clean)
        capsys.readouterr()
        assert run([command, "--json"]) == 0, capsys.readouterr().err
    told = json.loads(capsys.readouterr().out)
    kept = command == "abort"
    assert codes == [BUSY if kept else 0]
    assert (world.target.work / "source").exists() == kept
    assert not told.get("damaged")
    use.let_go()


def test_abort_beside_another_that_cleans_up(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    left = world.target.work / ".lmsbuild-new-source-killed"
    left.mkdir(parents=True)
    leftovers = checkout.leftovers

    def listed(folder: Path) -> list[Path]:
        found = leftovers(folder)
        if found:
            assert lmsbuild_processes.run("clean")[0] == 0
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkout, "leftovers", listed)
        capsys.readouterr()
        assert run(["abort", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["aborted"] == []
    use.let_go()
