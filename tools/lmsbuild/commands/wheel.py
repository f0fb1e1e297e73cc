# SPDX-License-Identifier: Apache-2.0
"""lmsbuild wheel"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.apply import apply
from lmsbuild.checkout import fetch
from lmsbuild.console import Console
from lmsbuild.frameworks import resolve
from lmsbuild.options import (
    dry_run_option,
    examples,
    into_option,
    jobs_option,
    json_option,
    python_option,
    running_python,
    source_option,
    tag_argument,
)
from lmsbuild.overlay import build
from lmsbuild.project import find_project


@click.command(
    "wheel",
    epilog=examples(
        "lmsbuild wheel v2.6.0",
        "lmsbuild wheel v2.6.0 --python 3.12 --output dist --jobs 4",
    ),
)
@tag_argument
@python_option
@click.option(
    "--output", "-o", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the wheel [default: work/<framework>-<tag>/wheels].",
)  # fmt: skip
@jobs_option
@source_option
@into_option
@dry_run_option
@json_option
def command(
    tag: str,
    python: str | None,
    output: Path | None,
    jobs: int | None,
    source: str,
    into: Path | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Make the overlay wheel of TAG: the official wheel with the patched libraries and files.

    Fetches and applies first if need be. Says so, within two seconds, when nothing has changed.
    """
    target = resolve(find_project(), tag)
    checkout = fetch(target, source, into, console)
    apply(target, checkout.path, console, dry_run)
    done = build(
        target,
        checkout.path,
        python or running_python(),
        output.absolute() if output else target.work / "wheels",
        console,
        jobs,
        dry_run,
    )
    what = "unchanged" if done.reused else "would write" if dry_run else "wrote"
    console.say(f"{what} {done.wheel}")
    if not dry_run:
        console.say(f"manifest {done.manifest}")
    console.result(done)
