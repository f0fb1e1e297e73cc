# SPDX-License-Identifier: Apache-2.0
"""The regression suites of a tag, from what they need to what the console says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from packaging.requirements import Requirement

from lmsbuild.base.console import Console
from lmsbuild.base.errors import SuiteError
from lmsbuild.places.environment import TEST_TOOLS
from lmsbuild.ship.pipeline import Wanted, prepared
from lmsbuild.tags.frameworks import Target
from lmsbuild.trials.suite import Order, Outcome, run_suites

_SHOWN = 10  # failures named on the console; the report has all


def packages(target: Target) -> tuple[Sequence[str], Sequence[str]]:
    """What the suites use beside the framework; the second without what it requires."""
    shows, tag = target.framework.shows, target.tag
    own = {Requirement(text).name: text for text in tag.tools}

    def chosen(texts: Sequence[str]) -> list[str]:
        return [own.get(Requirement(text).name, text) for text in texts]

    return (*TEST_TOOLS, *chosen(shows.packages)), (*chosen(shows.alone), *tag.alone)


def run(
    wanted: Wanted, files: Sequence[Path], console: Console,
    *, tier: str = "default", shard: tuple[int, int] | None = None, select: str = "",
) -> Outcome:  # fmt: skip
    """Run `files` in environments that are made for it, and say how it went."""
    ready = prepared(wanted, console)
    order = Order(
        target=wanted.target,
        source=ready.source,
        stock=ready.stock,
        lms=ready.lms,
        device=wanted.device,
        tier=tier,
        shard=shard,
        variables=ready.variables,
        select=select,
    )
    with console.step("suites") as step:
        done = run_suites(order, files, console)
        step.note = f"{done.passed} passed, {done.failed} failed, {done.skipped} skipped"
    console.say(
        f"{done.passed} passed, {done.failed} failed, {done.skipped} skipped "
        f"in {done.seconds:.0f} s"
    )
    for name, reason in list(zip(done.failures, done.reasons, strict=True))[:_SHOWN]:
        console.say("\n    ".join([f"failed: {name}", *reason]))
    if len(done.failures) > _SHOWN:
        console.say(f"failed: {len(done.failures) - _SHOWN} more")
    console.say(f"report: {done.html}")
    return done


def result(done: Outcome, value: object, console: Console) -> None:
    """The end of a command that ran suites. With --json a failure is its one value: `check`'s."""
    if not (done.failed and console.json_mode):
        console.result(value)


def check(done: Outcome) -> None:
    """Raises SuiteError when a test failed."""
    if done.failed:
        raise SuiteError(
            f"{done.failed} of {done.passed + done.failed} tests failed, {done.failures[0]} first, "
            f"because of what the report says; see {done.html}",
            **asdict(done),
        )
