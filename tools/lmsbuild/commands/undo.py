# SPDX-License-Identifier: Apache-2.0
"""lmsbuild undo"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.base.project import find_project
from lmsbuild.base.transaction import PROJECT_STATE, undo_files
from lmsbuild.checkout.apply import Undone, undo
from lmsbuild.checkout.switch import last_of
from lmsbuild.cli.options import dry_run_option, examples, into_option, json_option, tag_choice
from lmsbuild.upkeep.status import places


@click.command(
    "undo",
    epilog=examples(
        "lmsbuild undo v2.6.0                   # takes the series off the checkout again",
        "lmsbuild undo --refresh                # gives back the patches before the last refresh",
    ),
)
@tag_choice
@into_option
@click.option(
    "--refresh",
    is_flag=True,
    help="Take back the last change of the project's files: a `refresh`, or the end of a `port` "
    "or `add`.",
)
@dry_run_option
@json_option
def command(
    *, tag: str | None, into: Path | None, refresh: bool, dry_run: bool, console: Console
) -> None:
    """Take back the last `apply`, or change of patches, of a checkout; with --refresh what last
    changed the files of the project: a `refresh`, or a `port` or `add` that came to its end (the
    commits in its checkout stay).

    It takes back one; `git reflog` in the checkout names the commit that each command left.
    Refuses, and changes nothing, when commits or changes of yours lie on it.
    """
    project = find_project()
    if refresh:
        if tag or into:
            raise UsageError(
                "--refresh cannot go with TAG or --into because a refresh is taken back in the "
                "project; leave them out"
            )
        last = undo_files(project.root, project.root / PROJECT_STATE, dry_run=dry_run)
        done = Undone(project.root, last.command, None)
    else:
        found = places(project, tag, into, one=True)
        # Without a name it must be clear which one is meant.
        undoable = [place for place in found if last_of(place.user)] if len(found) > 1 else found
        if len(undoable) != 1:
            labels = ", ".join(place.target.label for place in undoable) or "none"
            raise UsageError(
                f"nothing was taken back because it is not clear what (candidates: {labels}); "
                "name the TAG, or --into DIR, or --refresh"
            )
        done = undo(undoable[0].user, console, dry_run=dry_run)
    would = "would take back" if dry_run else "took back"
    console.say(f"{would} lmsbuild {done.command}: {done.path}")
    console.result(done)
