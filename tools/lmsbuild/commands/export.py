# SPDX-License-Identifier: Apache-2.0
"""lmsbuild export"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import FileError, SeriesError, UsageError
from lmsbuild.base.hashing import sha256_bytes
from lmsbuild.base.outputs import check_file, write_output
from lmsbuild.base.project import find_project, full_path
from lmsbuild.checkout.verify import provable
from lmsbuild.cli.options import (
    UserPath,
    dry_run_option,
    examples,
    json_option,
    tag_argument,
)
from lmsbuild.series.series import export, export_name
from lmsbuild.tags.frameworks import Target, resolve


@click.command(
    "export",
    epilog=examples(
        "lmsbuild export v2.6.0     # pytorch_v2.6.0_large_model_support.patch",
        "lmsbuild export v2.6.0 -o /tmp/lms.patch",
        "lmsbuild export v2.6.0 -o - | git -C ~/src/pytorch am",
    ),
)
@tag_argument
@click.option(
    "--output", "-o", metavar="FILE|-", default=".",
    type=UserPath(path_type=str, allow_dash=True),
    help="The file to write, or a folder for it, or - for standard output [default: "
    "<framework>_<tag>_large_model_support.patch in the current folder].",
)  # fmt: skip
@dry_run_option
@json_option
def command(*, tag: str, output: str, dry_run: bool, console: Console) -> None:
    """Write the series of TAG as one mail file that `git am` applies.

    Where the tag's code is at hand (`lmsbuild fetch`), the series is tried on it first. One that
    does not apply, or does not leave what its index lines say, is refused.
    """
    if output == "/dev/stdout":
        output = "-"
    if output == "-" and console.json_mode:
        raise UsageError(
            "-o - and --json cannot be combined because both write to standard output; give a FILE"
        )
    target = resolve(find_project(), tag)
    path = None if output == "-" else _place(target, output)
    _prove(target, console)
    content = export(target)
    if path is None:
        if not dry_run:
            rest = memoryview(content)
            while rest:  # an unbuffered stream (PYTHONUNBUFFERED) may take a part only
                rest = rest[sys.stdout.buffer.write(rest) :]
            sys.stdout.buffer.flush()
        return
    if not dry_run:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_output(path, content)
        except OSError as error:
            raise FileError(
                f"{path} was not written because {error.strerror}; choose another file with -o"
            ) from error
    console.say(f"{'would write' if dry_run else 'wrote'} {path} ({len(content):,} bytes)")
    console.result({"path": path, "bytes": len(content), "sha256": sha256_bytes(content)})


def _place(target: Target, output: str) -> Path:
    """The file to write. Raises UsageError and FileError where none can be."""
    path = full_path(output)
    if path.is_dir() or output.endswith("/"):
        path /= export_name(target)
    if path.resolve().is_relative_to(target.project.patches.resolve()):
        raise UsageError(
            f"{path} was not written because the project keeps its patches in that folder, one a "
            "file; choose a place outside of it with -o"
        )
    check_file(path)
    return path


def _prove(target: Target, console: Console) -> None:
    """Raise SeriesError for a series that git would not take, or would take for something else."""
    check = provable(target, console)
    if check.problems:
        raise SeriesError(
            f"{target.label} was not exported because git would not make of it what it promises; "
            f"see `lmsbuild verify {target.tag_name}`, and begin with: {check.problems[0]}",
            problems=check.problems,
        )
    if check.skipped:
        console.warn(f"it was not tried because there is {check.skipped}")
