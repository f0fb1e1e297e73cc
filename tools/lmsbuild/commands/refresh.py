# SPDX-License-Identifier: Apache-2.0
"""lmsbuild refresh"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.console import Console
from lmsbuild.frameworks import resolve
from lmsbuild.options import dry_run_option, examples, json_option, tag_argument
from lmsbuild.project import find_project
from lmsbuild.refresh import refresh


@click.command(
    "refresh",
    epilog=examples(
        "lmsbuild refresh v2.6.0                                 # runtime patch from lms/",
        "lmsbuild refresh v2.6.0 --from work/pytorch-v2.6.0/source   # and the hooks",
    ),
)
@tag_argument
@click.option(
    "--from", "source", metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A checkout whose commits after the runtime commit are the hooks of TAG.",
)  # fmt: skip
@dry_run_option
@json_option
def command(tag: str, source: Path | None, dry_run: bool, console: Console) -> None:
    """Write the patches of TAG anew: the runtime from lms/, the hooks from a checkout.

    Records the blob ids of the upstream files that the hooks touch in frameworks.toml.
    """
    target = resolve(find_project(), tag)
    done = refresh(target, source, dry_run)
    would = "would be " if dry_run else ""
    for name in done.written:
        console.say(f"{would}written: {name}")
    for name in done.removed:
        console.say(f"{would}removed: {name}")
    if not done.written and not done.removed:
        console.say(f"{target.label}: every patch is as it should be")
    console.result(done)
