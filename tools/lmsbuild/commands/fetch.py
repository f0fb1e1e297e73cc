# SPDX-License-Identifier: Apache-2.0
"""lmsbuild fetch"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.checkout.checkout import default_path
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
from lmsbuild.ship.sources import fetched
from lmsbuild.tags.frameworks import resolve


@click.command(
    "fetch",
    epilog=examples(
        "lmsbuild fetch v2.6.0",
        "lmsbuild fetch pytorch:v2.6.0 --source debian",
        "lmsbuild fetch v2.6.0 --source git --reference ~/src/pytorch",
        "lmsbuild fetch v2.6.0 --source ~/src/pytorch --into /tmp/torch",
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
    """Get the source of TAG and check it against the recorded blob ids."""
    target = resolve(find_project(), tag)
    if dry_run:
        path = default_path(target, into)
        console.say(f"would fetch {target.label} to {path} (source: {source})")
        console.result({"path": path, "source": source})
        return
    done = fetched(target, source, into, console, reference)
    console.say(f"{target.label} is at {done.path} (source: {done.route}, {done.why})")
    console.result(done)
