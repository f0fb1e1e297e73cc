# SPDX-License-Identifier: Apache-2.0
"""lmsbuild add"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.checkout import port
from lmsbuild.checkout.newcode import Wanted
from lmsbuild.checkout.newtag import nearest
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


@click.command(
    "add",
    epilog=examples(
        "lmsbuild add pytorch:v2.7.0 --source ~/src/pytorch --dry-run",
        "lmsbuild add pytorch:v2.7.0 --source ~/src/pytorch --wheel",
    ),
)
@click.argument("new", metavar="TAG")
@click.option(
    "--like",
    metavar="TAG",
    shell_complete=completer("tags"),
    help="The supported tag whose series it gets [default: the nearest release].",
)
@source_option
@reference_option
@into_option
@end_options
@dry_run_option
@json_option
def command(
    *,
    new: str,
    like: str | None,
    source: str,
    reference: Path | None,
    into: Path | None,
    compiled: bool,
    tested: bool,
    dry_run: bool,
    console: Console,
) -> None:
    """Support another TAG: write its folder in patches/, with what can be found of it.

    The tag's commit is upstream's, the patches and pre-images come by `lmsbuild port` from the
    nearest supported tag, the official wheels with their Pythons, platform, CUDA and headers from
    the package index. What no source says is named. Where a patch needs a person: `lmsbuild port
    --continue`, --skip or --abort, which go on with this.
    """
    project = find_project()
    target = resolve(project, like) if like else nearest(project, new)
    if dry_run:
        foresee(target, new, source, into, console)
        return
    with telling(console):
        done = port.begin(target, new, Wanted(source, reference, wheels=True), into, console)
    tell(done, console, compiled=compiled, tested=tested)
