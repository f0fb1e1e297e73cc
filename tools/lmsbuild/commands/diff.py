# SPDX-License-Identifier: Apache-2.0
"""lmsbuild diff"""

from __future__ import annotations

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import completer, examples, json_option
from lmsbuild.series.compare import compare, version


@click.command(
    "diff",
    epilog=examples(
        "lmsbuild diff v2.6.0@HEAD              # what is not committed here",
        "lmsbuild diff v2.6.0@HEAD~1 v2.6.0@HEAD",
        "lmsbuild diff v2.14.1 v2.2.0 --short   # two tags",
    ),
)
@click.argument("first", metavar="SERIES-A", shell_complete=completer("tags"))
@click.argument("second", metavar="[SERIES-B]", required=False, shell_complete=completer("tags"))
@click.option("--short", is_flag=True, help="Only which patches differ, and not in what.")
@json_option
def command(*, first: str, second: str | None, short: bool, console: Console) -> None:
    """Compare two series patch by patch, as `git range-diff` does.

    A series is TAG, or TAG@REVISION for what it was in a revision of this project's repository;
    without SERIES-B it is that of the same TAG as it is now. The framework's code is not needed.
    Hooks are compared: the runtime is `git diff REVISION -- lms`. Changes nothing.
    """
    project = find_project()
    sides = version(project, first), version(project, second or first.partition("@")[0])
    with console.task(f"comparing {sides[0].label} and {sides[1].label}"):
        pairs = compare(*sides)
    rows = [(pair.first or "", pair.state, pair.second or "") for pair in pairs]
    console.table("", (sides[0].label, "", sides[1].label), rows)
    for pair in pairs:
        if pair.diff and not short:
            console.say(f"{pair.first} -> {pair.second}")
            console.say(pair.diff.rstrip("\n"))
    console.result(
        {"first": sides[0].label, "second": sides[1].label, "patches": pairs, "short": short}
    )
