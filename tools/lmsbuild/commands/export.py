# SPDX-License-Identifier: Apache-2.0
"""lmsbuild export"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.console import Console
from lmsbuild.frameworks import resolve
from lmsbuild.options import dry_run_option, examples, json_option, tag_argument
from lmsbuild.project import find_project
from lmsbuild.series import export, export_name


@click.command(
    "export",
    epilog=examples(
        "lmsbuild export v2.6.0",
        "lmsbuild export v2.6.0 --output /tmp && git am "
        "/tmp/pytorch_v2.6.0_large_model_support.patch",
    ),
)
@tag_argument
@click.option(
    "--output", "-o", metavar="DIR", default=Path(),
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the file [default: the current one].",
)  # fmt: skip
@dry_run_option
@json_option
def command(tag: str, output: Path, dry_run: bool, console: Console) -> None:
    """Write the series of TAG as one mail file that `git am` applies."""
    target = resolve(find_project(), tag)
    content = export(target)
    path = output.absolute() / export_name(target)
    if not dry_run:
        output.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    console.say(f"{'would write' if dry_run else 'wrote'} {path} ({len(content):,} bytes)")
    console.result({"path": path, "bytes": len(content), "dry_run": dry_run})
