# SPDX-License-Identifier: Apache-2.0
"""lmsbuild fold"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.checkout.arrange import Plan, Stack, inserted
from lmsbuild.checkout.incoming import diffs
from lmsbuild.cli.arranging import need, run
from lmsbuild.cli.options import (
    dry_run_option,
    examples,
    files_argument,
    into_option,
    json_option,
    patch_option,
    tag_argument,
)


@click.command(
    "fold",
    epilog=examples(
        "git diff > fix.diff && lmsbuild fold v2.6.0 fix.diff --patch 2",
        "lmsbuild fold v2.6.0 review.diff --dry-run   # into the last patch",
    ),
)
@tag_argument
@files_argument
@patch_option
@into_option
@dry_run_option
@json_option
def command(
    *,
    tag: str,
    files: tuple[Path, ...],
    patch: str | None,
    into: Path | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Make the diffs in FILEs a part of a patch on the checkout of TAG.

    A diff must fit the code as that patch leaves it, or name blobs that the checkout has; then it
    is merged three ways. What is edited in the checkout itself: `lmsbuild refresh --patch`.
    """
    need(files, 1, "FILE", "fold")

    def plan(stack: Stack) -> Plan:
        at = stack.hooks([patch])[0] if patch else len(stack.on) - 1
        return inserted(stack, at, diffs(stack, at, files))

    words = ("fold", *files, *(["--patch", patch] if patch else []))
    run(tag, into, words, plan, console, dry_run=dry_run)
