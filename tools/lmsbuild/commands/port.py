# SPDX-License-Identifier: Apache-2.0
"""lmsbuild port"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.base.project import find_project
from lmsbuild.checkout import port, porting
from lmsbuild.checkout.newcode import Wanted
from lmsbuild.checkout.picking import find
from lmsbuild.cli.options import (
    completer,
    dry_run_option,
    examples,
    into_option,
    json_option,
    reference_option,
    source_option,
)
from lmsbuild.cli.porting import end_options, foresee, tell, telling
from lmsbuild.tags.frameworks import resolve

_STEPS = {"continue": port.go_on, "skip": port.skip}


@click.command(
    "port",
    epilog=examples(
        "lmsbuild port v2.6.0 v2.7.0 --source ~/src/pytorch --dry-run",
        "lmsbuild port v2.6.0 v2.7.0 --source ~/src/pytorch   # into work/pytorch-v2.7.0/source",
        "lmsbuild port --continue               # what `git add` took is the patch",
    ),
)
@click.argument("series", metavar="[FROM]", required=False, shell_complete=completer("tags"))
@click.argument("tag", metavar="[TO]", required=False)
@click.option("--continue", "step", flag_value="continue", help="Go on with what is staged.")
@click.option("--skip", "step", flag_value="skip", help="Leave the patch out, and go on.")
@click.option("--abort", "step", flag_value="abort", help="Put the checkout back as it was.")
@source_option
@reference_option
@into_option
@end_options
@dry_run_option
@json_option
def command(
    *,
    series: str | None,
    tag: str | None,
    step: str | None,
    source: str,
    reference: Path | None,
    into: Path | None,
    compiled: bool,
    tested: bool,
    dry_run: bool,
    console: Console,
) -> None:
    """Take the series of the tag FROM to the tag TO, which is not supported yet, patch by patch.

    In the checkout of TO (fetched to work/<framework>-<TO>/source or --into when it is not there)
    each patch becomes a commit: applied, moved, merged or renamed as in `survey`; one that is empty
    or already upstream becomes none. The first that needs a person is laid out there as by a merge
    of git's: `git add` what is right and --continue, or --skip it, or --abort. At the end the
    patches go to patches/<framework>/<TO>, with a tag.toml that has the blobs they were made for
    and says what is not known yet.
    """
    project = find_project()
    wheels = compiled or tested
    if step is not None:
        _check_alone(step, series, dry_run=dry_run)
        path = find(project, into, porting.place, ("port", "`lmsbuild port FROM TO`"))
        if step == "abort":
            undone = port.abort(path, console)
            console.say(f"took back the port of {undone.series} to {undone.tag}: {undone.path}")
            console.result(undone)
            return
        with telling(console):
            done = _STEPS[step](path, console, wheels=wheels)
    else:
        if series is None or tag is None:
            raise UsageError(
                "`lmsbuild port` cannot start because FROM or TO is missing; name both, or give "
                "--continue, --skip or --abort"
            )
        target = resolve(project, series)
        if dry_run:
            foresee(target, tag, source, into, console)
            return
        with telling(console):
            done = port.begin(target, tag, Wanted(source, reference, wheels=wheels), into, console)
    tell(done, console, compiled=compiled, tested=tested)


def _check_alone(step: str, series: str | None, *, dry_run: bool) -> None:
    if series is not None or dry_run:
        other = "--dry-run" if dry_run else f"FROM ({series})"
        raise UsageError(
            f"--{step} cannot go with {other} because it is about the port that is under way; "
            "leave it out"
        )
