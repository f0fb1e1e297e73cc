# SPDX-License-Identifier: Apache-2.0
"""lmsbuild reorder"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.checkout.arrange import Plan, Stack, reordered
from lmsbuild.cli.arranging import need, run
from lmsbuild.cli.options import (
    dry_run_option,
    examples,
    into_option,
    json_option,
    patches_argument,
    tag_argument,
)


@click.command(
    "reorder",
    epilog=examples(
        "lmsbuild reorder v2.6.0 3 --before 1",
        "lmsbuild reorder v2.6.0 1 2 --after offer-large --dry-run",
    ),
)
@tag_argument
@patches_argument
@click.option("--before", metavar="PATCH", help="Put them before this one.")
@click.option("--after", metavar="PATCH", help="Put them after this one.")
@into_option
@dry_run_option
@json_option
def command(
    *,
    tag: str,
    patches: tuple[str, ...],
    before: str | None,
    after: str | None,
    into: Path | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Put PATCHes elsewhere in the series of the checkout of TAG, in the order they are named.

    A patch that does not fit its new place stops as in `lmsbuild push`.
    """
    need(patches, 1, "PATCH", "reorder")
    place = before if after is None else after
    if place is None or (before is not None and after is not None):
        raise UsageError(
            "`lmsbuild reorder` cannot start because it does not say where to; give one of "
            "--before PATCH and --after PATCH"
        )
    option = "--before" if after is None else "--after"

    def plan(stack: Stack) -> Plan:
        at = stack.find(place)
        return reordered(stack, stack.hooks(patches), at, after=after is not None)

    run(tag, into, ("reorder", *patches, option, place), plan, console, dry_run=dry_run)
