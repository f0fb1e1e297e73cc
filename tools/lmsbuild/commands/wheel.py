# SPDX-License-Identifier: Apache-2.0
"""lmsbuild wheel"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.checkout import default_path
from lmsbuild.choices import Choices
from lmsbuild.console import Console
from lmsbuild.frameworks import resolve
from lmsbuild.options import (
    build_options,
    dry_run_option,
    examples,
    json_option,
    markdown_option,
    tag_argument,
)
from lmsbuild.pipeline import wheel
from lmsbuild.project import find_project


@click.command(
    "wheel",
    epilog=examples(
        "lmsbuild wheel v2.6.0",
        "lmsbuild wheel v2.6.0 --python 3.12 --output dist --jobs 4",
    ),
)
@tag_argument
@click.option(
    "--output", "-o", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the wheel [default: work/<framework>-<tag>/wheels].",
)  # fmt: skip
@build_options
@dry_run_option
@markdown_option
@json_option
def command(
    tag: str, output: Path | None, choices: Choices, dry_run: bool, console: Console
) -> None:
    """Make the overlay wheel of TAG: the official wheel with the patched libraries and files.

    Fetches and applies first if need be. Says so, within two seconds, when nothing has changed.
    """
    target = resolve(find_project(), tag).for_cuda(choices.cuda)
    path = default_path(target, choices.into)
    if dry_run and not (path.exists() and any(path.iterdir())):
        console.say(f"would fetch {target.label} to {path}, apply its series and build its wheel")
        console.result({"path": path, "wheel": target.version, "dry_run": True})
        return
    _, done = wheel(target, choices, console, output, dry_run)
    what = "unchanged" if done.reused else "would write" if dry_run else "wrote"
    console.say(f"{what} {done.wheel}")
    if not dry_run:
        console.say(f"manifest {done.manifest}")
        console.say(f"needs {done.needs}")
    console.result(done)
