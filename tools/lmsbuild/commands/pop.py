# SPDX-License-Identifier: Apache-2.0
"""lmsbuild pop"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.checkout.arrange import Plan, Stack, up_to
from lmsbuild.cli.arranging import run
from lmsbuild.cli.options import dry_run_option, examples, into_option, json_option, tag_argument


@click.command(
    "pop",
    epilog=examples(
        "lmsbuild pop v2.6.0            # the last patch off; it is kept for `lmsbuild push`",
        "lmsbuild pop v2.6.0 --all --dry-run",
    ),
)
@tag_argument
@click.option("--all", "every", is_flag=True, help="Every patch: the tag's own code is left.")
@into_option
@dry_run_option
@json_option
def command(*, tag: str, into: Path | None, every: bool, dry_run: bool, console: Console) -> None:
    """Take the last patch off the checkout of TAG, and keep it as its commit has it.

    What is then committed lies below it when `lmsbuild push` puts it back. To go to a certain
    patch: `lmsbuild apply --to`.
    """

    def plan(stack: Stack) -> Plan:
        if not stack.on:
            raise UsageError(
                f"nothing can be popped because no patch is on {stack.user.path}; put some on with "
                "`lmsbuild push` first"
            )
        return up_to(stack, 0 if every else len(stack.on) - 1)

    run(tag, into, ("pop", *(["--all"] if every else [])), plan, console, dry_run=dry_run)
