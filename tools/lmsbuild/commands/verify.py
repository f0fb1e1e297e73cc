# SPDX-License-Identifier: Apache-2.0
"""lmsbuild verify"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from lmsbuild.base.console import Console, counted
from lmsbuild.base.errors import SeriesError
from lmsbuild.checkout.verify import verify
from lmsbuild.cli.options import chosen, clone_option, examples, json_option, tags_option


@click.command(
    "verify",
    epilog=examples(
        "lmsbuild verify v2.6.0",
        "lmsbuild verify --all",
        "lmsbuild verify v2.6.0 --from ~/src/pytorch   # on the tag's code in this clone",
    ),
)
@tags_option
@clone_option
@json_option
def command(*, tags: tuple[str, ...], every: bool, place: Path | None, console: Console) -> None:
    """Check that the patches of each TAG are not stale and are what `refresh` would write.

    Downloads nothing: what needs the tag's code is checked when a clone, the work folder or the
    cache has it. Tells every failure and changes nothing.
    """
    done = [verify(target, console, place) for target in chosen(tags, every=every, place=place)]
    for one in done:
        for check in one.checks:
            why = f" ({check.skipped})" if check.skipped else ""
            console.say(f"{check.state:11}  {one.label}  {check.name}: {check.meaning}{why}")
            for problem in check.problems:
                console.say(f"    {problem}")
    header = ["tag", *(check.name for check in done[0].checks)]
    console.table("", header, [[one.label, *(c.state for c in one.checks)] for one in done])
    problems = [problem for one in done for problem in one.problems]
    if problems:
        raise SeriesError(
            f"{', '.join(one.label for one in done if one.problems)} is not in order because "
            f"{counted(len(problems), 'check')} failed (all are listed above); begin with: "
            f"{problems[0]}",
            tags=[asdict(one) for one in done],
        )
    console.result(done)
