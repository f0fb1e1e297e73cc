# SPDX-License-Identifier: Apache-2.0
"""lmsbuild import"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.checkout.arrange import Plan, Stack, inserted
from lmsbuild.checkout.incoming import mails
from lmsbuild.cli.arranging import need, run
from lmsbuild.cli.options import (
    dry_run_option,
    examples,
    files_argument,
    into_option,
    json_option,
    tag_argument,
)


@click.command(
    "import",
    epilog=examples(
        "lmsbuild import v2.6.0 review.mbox     # each mail becomes a patch, after the last",
        "lmsbuild import v2.6.0 0001-Fix-it.patch --after 2 --dry-run",
    ),
)
@tag_argument
@files_argument
@click.option("--after", metavar="PATCH", help="Put them after this patch instead.")
@into_option
@dry_run_option
@json_option
def command(
    *,
    tag: str,
    files: tuple[Path, ...],
    after: str | None,
    into: Path | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Add the mails in FILEs (a mail, an mbox, what `git format-patch` wrote) to the series of the
    checkout of TAG.

    Renames, binary files and encodings are taken as `git am` takes them. A mail that does not fit
    is merged three ways if the checkout has the blobs that it names.
    """
    need(files, 1, "FILE", "import")

    def plan(stack: Stack) -> Plan:
        at = stack.find(after) if after else len(stack.on) - 1
        return inserted(stack, at, mails(stack, at, files))

    words = ("import", *files, *(["--after", after] if after else []))
    run(tag, into, words, plan, console, dry_run=dry_run)
