# SPDX-License-Identifier: Apache-2.0
"""lmsbuild push"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.checkout.arrange import Plan, Stack, up_to
from lmsbuild.cli.arranging import run
from lmsbuild.cli.options import dry_run_option, examples, into_option, json_option, tag_argument


@click.command(
    "push",
    epilog=examples(
        "lmsbuild push v2.6.0           # the next patch",
        "lmsbuild push v2.6.0 --all",
    ),
)
@tag_argument
@click.option("--all", "every", is_flag=True, help="Every patch that is off the checkout.")
@into_option
@dry_run_option
@json_option
def command(*, tag: str, into: Path | None, every: bool, dry_run: bool, console: Console) -> None:
    """Put the next patch on the checkout of TAG: the one that was popped last, or is not applied.

    Where its context changed it is merged three ways. When that needs a person, the conflict is
    laid out as by a merge of git's: `git add` what is right and `lmsbuild apply --continue`, or
    --skip or --abort. `lmsbuild undo` takes the last finished one back.
    """

    def plan(stack: Stack) -> Plan:
        if not stack.popped:
            raise UsageError(
                f"nothing can be pushed because all {len(stack.on)} patches are on "
                f"{stack.user.path}; take some off with `lmsbuild pop` first"
            )
        return up_to(stack, len(stack.all) if every else len(stack.on) + 1)

    run(tag, into, ("push", *(["--all"] if every else [])), plan, console, dry_run=dry_run)
