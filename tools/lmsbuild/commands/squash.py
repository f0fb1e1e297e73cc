# SPDX-License-Identifier: Apache-2.0
"""lmsbuild squash"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.checkout.arrange import Plan, Stack, squashed
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
    "squash",
    epilog=examples(
        "lmsbuild squash v2.6.0 1 3             # patch 3 becomes a part of patch 1",
        "lmsbuild squash v2.6.0 2 3 4 --dry-run",
        "lmsbuild squash v2.6.0 1 3 --message 'Call the engine and count'",
    ),
)
@tag_argument
@patches_argument
@click.option(
    "-m",
    "--message",
    metavar="TEXT",
    help="What its message says instead; the trailers of all of them are kept.",
)
@into_option
@dry_run_option
@json_option
def command(
    *,
    tag: str,
    patches: tuple[str, ...],
    message: str | None,
    into: Path | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Make one patch of several: the first that is named, with the others in it.

    Without --message its message begins with its own subject and says all that the others' say.
    """
    need(patches, 2, "a second PATCH", "squash")

    def plan(stack: Stack) -> Plan:
        first, *others = (stack.hooks([spec])[0] for spec in patches)
        return squashed(stack, first, others, message)

    run(tag, into, ("squash", *patches), plan, console, dry_run=dry_run)
