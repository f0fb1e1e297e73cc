# SPDX-License-Identifier: Apache-2.0
"""lmsbuild apply"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import SeriesError
from lmsbuild.base.project import find_project
from lmsbuild.checkout.checkout import is_there, working_path
from lmsbuild.checkout.verify import provable
from lmsbuild.cli.options import (
    dry_run_option,
    examples,
    into_option,
    json_option,
    markdown_option,
    reference_option,
    source_option,
    tag_argument,
)
from lmsbuild.series.series import names, series_of
from lmsbuild.ship.sources import applied, fetched
from lmsbuild.tags.frameworks import Target, resolve


@click.command(
    "apply",
    epilog=examples(
        "lmsbuild apply v2.6.0                  # the clone you stand in, else work/pytorch-v2.6.0",
        "lmsbuild apply v2.6.0 --into ~/pytorch --dry-run",
    ),
)
@tag_argument
@source_option
@reference_option
@into_option
@dry_run_option
@markdown_option
@json_option
def command(
    *,
    tag: str,
    source: str,
    reference: Path | None,
    into: Path | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Apply the series of TAG with git's own engine, all of it or nothing.

    Works on the framework clone you stand in, else on work/<framework>-<tag>/source (fetched
    when it is not there) or the folder given with --into. The tree must be clean.
    """
    target = resolve(find_project(), tag)
    path = working_path(target, into)
    if not is_there(path):
        if dry_run:
            patches = names(series_of(target).patches)
            console.say(f"would fetch {target.label} to {path} and apply {len(patches)} patches")
            console.result({"path": path, "patches": patches, "dry_run": True})
            return
        path = fetched(target, source, path, console, reference).path
    done = applied(target, path, console, dry_run=dry_run)
    for name in done.patches:
        console.say(f"{'would apply' if dry_run else 'applied'} {name}")
    if not done.patches:
        _check_unedited(target, done.path, console)
        console.say("already applied, nothing to do")
    console.say(f"{target.label}: {done.path}")
    console.result(done)


def _check_unedited(target: Target, path: Path, console: Console) -> None:
    """Raise SeriesError for a series whose index lines are those of the checkout, which is all that
    was looked at, and whose text is not."""
    problems = provable(target, console).problems
    if problems:
        raise SeriesError(
            f"{path} has the series as its index lines have it, and is not what its text says, "
            f"because a patch was edited by hand; begin with: {problems[0]}",
            problems=problems,
        )
