# SPDX-License-Identifier: Apache-2.0
"""Commands that look at a checkout without its lock, and another lmsbuild that begins after they
have found nobody at work there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lmsbuild_processes
import pytest
from lmsbuild_kill import snapshot
from lmsbuild_world import World

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.git import Repository
from lmsbuild.base.transaction import hold
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.switch import CheckoutTransaction
from lmsbuild.upkeep import status

pytestmark = pytest.mark.default
BUSY = 16
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
    changes = status._users_changes

    def begun(user: Repository) -> list[str]:
        patch.undo()
        switching(clone, at_work)
        return changes(user)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status, "_users_changes", begun)
        capsys.readouterr()
        assert run(["status", "v1.0", "--into", str(clone), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["checkouts"]
    assert found["running"]["command"] == " ".join(DROP) and not found["unfinished"]
    assert found["next"].startswith("wait for `lmsbuild drop v1.0 1` (process ")
