# SPDX-License-Identifier: Apache-2.0
"""lmsbuild drop"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.checkout.arrange import without
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
    "drop",
    epilog=examples(
        "lmsbuild drop v2.6.0 2                 # by its number",
        "lmsbuild drop v2.6.0 offer-large --dry-run   # by a part of its name",
    ),
)
@tag_argument
@patches_argument
@into_option
@dry_run_option
@json_option
def command(
    *, tag: str, patches: tuple[str, ...], into: Path | None, dry_run: bool, console: Console
) -> None:
    """Take PATCHes out of the series of the checkout of TAG.

    Those after them are put on again without them. The files in patches/ have them until the next
    `lmsbuild refresh`; `lmsbuild undo` gives back the checkout, as long as no other command has
    changed its patches since.
    """
    need(patches, 1, "PATCH", "drop")
    words = ("drop", *patches)
    run(tag, into, words, lambda s: without(s, s.hooks(patches)), console, dry_run=dry_run)
