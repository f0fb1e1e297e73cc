# SPDX-License-Identifier: Apache-2.0
"""lmsbuild apply"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console, counted
from lmsbuild.base.errors import SeriesError, UsageError
from lmsbuild.base.git import checkout_git
from lmsbuild.base.project import find_project
from lmsbuild.checkout.arrange import abort, arrange, go_on, open_stack, skip, up_to
from lmsbuild.checkout.arranging import popped
from lmsbuild.checkout.checkout import is_there, working_path
from lmsbuild.checkout.verify import provable
from lmsbuild.cli.arranging import show, tell, telling
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
        "lmsbuild apply v2.6.0 --to 2           # patches 3 and later are off it for now",
        "lmsbuild apply --continue              # what `git add` took is the patch",
        "lmsbuild apply --skip                  # without the patch that needs a person",
        "lmsbuild apply --abort                 # the checkout as it was before all of it",
    ),
)
@tag_argument
@click.option(
    "--to",
    "last",
    metavar="PATCH",
    help="Only up to this patch, by its number or a part of its name; 0 is the runtime.",
)
@click.option("--continue", "step", flag_value="continue", help="Go on with what is staged.")
@click.option("--skip", "step", flag_value="skip", help="Leave the patch out, and go on.")
@click.option("--abort", "step", flag_value="abort", help="Put the checkout back as it was.")
@source_option
@reference_option
@into_option
@dry_run_option
@markdown_option
@json_option
def command(
    *,
    tag: str,
    last: str | None,
    step: str | None,
    source: str,
    reference: Path | None,
    into: Path | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Apply the series of TAG with git's own engine, all of it or nothing.

    Works on the framework clone you stand in, else on work/<framework>-<tag>/source (fetched
    when it is not there) or the folder given with --into. The tree must be clean.

    With --to it has the series up to a patch, whatever it had before; `lmsbuild push` and `pop` go
    on from there one by one. When a patch that is put on needs a person (here, or in push, reorder,
    squash, drop, fold, import and refresh --patch), it is laid out as by a merge of git's: `git
    add` what is right and --continue, or --skip it, or --abort.
    """
    target = resolve(find_project(), tag)
    if step is not None:
        _go_on(step, last, working_path(target, into), console, dry_run=dry_run)
        return
    path = working_path(target, into)
    if not is_there(path):
        if dry_run:
            patches = names(series_of(target).patches)
            console.say(
                f"would fetch {target.label} to {path} and apply {counted(len(patches), 'patch')}"
            )
            console.result({"path": path, "patches": patches})
            return
        path = fetched(target, source, path, console, reference).path
    if last is not None or _has_popped(path):
        stack = open_stack(target, path)
        count = len(stack.all) if last is None else stack.find(last) + 1
        words = f"apply {target.tag_name}" + (f" --to {last}" if last else "")
        with telling(console):
            arranged = arrange(stack, up_to(stack, count), words, console, dry_run=dry_run)
        if last is not None or dry_run or not arranged.in_patches:
            tell(arranged, console)  # what is on it and in no file yet is not to be taken off
            return
        show(arranged.patches, console)
    done = applied(target, path, console, dry_run=dry_run)
    for name in done.patches:
        console.say(f"{'would apply' if dry_run else 'applied'} {name}")
    if not done.patches:
        _check_unedited(target, done.path, console)
        console.say("already applied, nothing to do")
    console.say(f"{target.label}: {done.path}")
    console.result(done)


_STEPS = {"continue": go_on, "skip": skip, "abort": abort}


def _go_on(step: str, last: str | None, path: Path, console: Console, *, dry_run: bool) -> None:
    if last is not None or dry_run:
        other = "--dry-run" if dry_run else "--to"
        raise UsageError(
            f"--{step} cannot go with {other} because it is about the patch that stopped; leave it "
            "out"
        )
    if not is_there(path):
        raise UsageError(
            f"nothing can be gone on with because {path} is not there; name the checkout with "
            "--into"
        )
    with telling(console):
        tell(_STEPS[step](path, console), console)


def _has_popped(path: Path) -> bool:
    user = checkout_git(path)
    return user is not None and bool(popped(user))


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
