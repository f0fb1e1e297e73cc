# SPDX-License-Identifier: Apache-2.0
"""lmsbuild map"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.checkout.touches import Touched, no_such_file, series_map
from lmsbuild.cli.options import clone_option, examples, json_option, tag_choice
from lmsbuild.tags.frameworks import resolve, targets


@click.command(
    "map",
    epilog=examples(
        "lmsbuild map v2.6.0",
        "lmsbuild map v2.6.0 --file c10/cuda/CUDACachingAllocator.cpp",
        "lmsbuild map --json   # every tag",
    ),
)
@tag_choice
@click.option("--file", metavar="PATH", help="Only this file of the framework, hunk by hunk.")
@clone_option
@json_option
def command(tag: str | None, file: str | None, place: Path | None, console: Console) -> None:
    """Show which patches of TAG (of all tags) touch which files and functions of the framework.

    `+name` is a function that the patch adds. Without the tag's code at hand functions are what
    git wrote into the hunks' headers. Where a patch went upstream is what its trailers
    `Forwarded:` and `Applied-Upstream:` say. Changes nothing.
    """
    project = find_project()
    wanted = [resolve(project, tag)] if tag else targets(project)
    found = [one for target in wanted for one in series_map(target, console, file, place)]
    if file is not None and not found:
        raise no_such_file(wanted, file)
    several = len(wanted) > 1
    header = [*(["tag"] if several else []), "patch", "file", "", "+", "-", "functions"]
    rows = [[*([one.tag] if several else []), *_row(one)] for one in found]
    console.table("", header, rows)
    for patch, where in {one.patch: one.whereabouts for one in found if one.whereabouts}.items():
        console.say(f"{patch}: {where}")
    if file:
        for one in found:
            console.say(f"{one.patch}:")
            for hunk in one.hunks:
                console.say(f"    {hunk}")
    console.result(found)


def _row(one: Touched) -> list[str]:
    functions = [*one.functions, *(f"+{name}" for name in one.new_functions)]
    folder, number = one.patch.split("/")[0], one.patch.split("/")[1][:4]
    return [
        f"{folder}/{number}", one.file, one.kind, str(one.added), str(one.removed),
        "\n".join(functions),
    ]  # fmt: skip
