# SPDX-License-Identifier: Apache-2.0
"""lmsbuild refresh"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.base.project import find_project
from lmsbuild.checkout.arrange import arrange, open_stack
from lmsbuild.checkout.incoming import with_changes
from lmsbuild.checkout.refresh import find_checkout, refresh
from lmsbuild.cli.arranging import show, tell, telling
from lmsbuild.cli.options import UserPath, dry_run_option, examples, json_option, tag_argument
from lmsbuild.tags.frameworks import Target, resolve


@click.command(
    "refresh",
    epilog=examples(
        "lmsbuild refresh v2.6.0             # from lms/ and the checkout's commits",
        "lmsbuild refresh v2.6.0 --from ~/pytorch --dry-run",
        "lmsbuild refresh v2.6.0 --runtime   # from lms/ alone",
        "lmsbuild refresh v2.6.0 --patch 2   # first puts what is not committed into patch 2",
    ),
)
@tag_argument
@click.option(
    "--from", "--into", "source", metavar="DIR",
    type=UserPath(exists=True, file_okay=False),
    help="The checkout to take commits from [default: the one you stand in, else "
    "work/<framework>-<tag>/source if it is there].",
)  # fmt: skip
@click.option("--runtime", is_flag=True, help="Only the runtime patch, from lms/ alone.")
@click.option(
    "--patch",
    metavar="PATCH",
    help="Make what is changed and not committed in the checkout a part of this patch, by its "
    "number or a part of its name.",
)
@dry_run_option
@json_option
def command(
    *,
    tag: str,
    source: Path | None,
    runtime: bool,
    patch: str | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Write the patches of TAG anew, from lms/ and from the commits of a checkout.

    A commit after the runtime commit is a patch of TAG. Its edits of runtime files go into lms/
    instead, and the runtime patch is made from there; a commit with both is split. Only what is
    committed counts. What changed both here and in the checkout since the series was applied is a
    conflict, and nothing is written. `lmsbuild undo --refresh` takes a refresh back.

    With --patch the changes of files that git tracks, and new ones that were added with `git add`,
    are put into the commit of that patch first; `lmsbuild undo` gives them back. While patches are
    popped, that is all that it does.
    """
    if runtime and (source or patch):
        raise UsageError(
            f"--runtime and {'--from' if source else '--patch'} cannot be combined because "
            "--runtime looks at no checkout; leave one out"
        )
    target = resolve(find_project(), tag)
    place = None if runtime else source or find_checkout(target)
    if patch is not None and not _amend(target, patch, place, console, dry_run=dry_run):
        return
    with console.task(f"refreshing {target.label}"):
        done = refresh(target, place, dry_run=dry_run)
    would = "would be " if dry_run else ""
    console.say(f"from lms/ and the commits in {place}" if place else "from lms/ alone")
    for note in done.notes:
        console.say(note)
    for name in done.runtime:
        console.say(f"{would}changed: {name}")
    for name in done.written:
        console.say(f"{would}written: {name}")
    for name in done.removed:
        console.say(f"{would}removed: {name}")
    if not done.written and not done.removed and not done.notes:
        what = "every patch is as it should be" if place else "the runtime patch is as lms/ has it"
        console.say(f"{target.label}: {what}")
    console.result(done)


def _amend(
    target: Target, patch: str, place: Path | None, console: Console, *, dry_run: bool
) -> bool:
    """Put the changes of the checkout into a patch; whether all that is left is to refresh."""
    if place is None:
        raise UsageError(
            f"--patch {patch} cannot be used because there is no checkout of {target.label}; name "
            "it with --from"
        )
    stack = open_stack(target, place)
    at = stack.find(patch)
    plan = with_changes(stack, at)
    command = f"refresh {target.tag_name} --patch {patch}"
    with telling(console):
        done = arrange(stack, plan, command, console, dry_run=dry_run)
    if done.popped or dry_run:
        tell(done, console)
        return False
    show(done.patches, console)
    return True
