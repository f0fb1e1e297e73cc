# SPDX-License-Identifier: Apache-2.0
"""lmsbuild clean"""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich import filesize

from lmsbuild.base.console import Console
from lmsbuild.base.errors import BusyError
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import dry_run_option, examples, json_option
from lmsbuild.tags.frameworks import resolve, targets
from lmsbuild.upkeep.cleaning import IN_USE, Item, cached, clean, leftovers, worked


@click.command(
    "clean",
    epilog=examples(
        "lmsbuild clean                                # leftovers of killed runs",
        "lmsbuild clean --cache --older-than 30        # what was not used for a month",
        "lmsbuild clean v2.6.0 --work --dry-run",
    ),
)
@click.argument("tag", required=False)
@click.option("--cache", "of_cache", is_flag=True, help="The cache too: downloads, objects.")
@click.option("--work", "of_work", is_flag=True, help="Checkouts, environments and wheels too.")
@click.option("--all", "of_all", is_flag=True, help="The same as --cache --work.")
@click.option(
    "--older-than", metavar="DAYS", type=click.FloatRange(min=0),
    help="Only what was not used for so long.",
)  # fmt: skip
@click.option(
    "--force", is_flag=True, help="Remove checkouts with commits or changes of yours as well."
)
@dry_run_option
@json_option
def command(
    *,
    tag: str | None,
    of_cache: bool,
    of_work: bool,
    of_all: bool,
    older_than: float | None,
    force: bool,
    dry_run: bool,
    console: Console,
) -> None:
    """Remove what killed runs left; on demand also the cache and work folders, of TAG or of all.

    Everything can be had again, but for work of yours in a checkout, which stays, as does what no
    command has put into the folder of a tag; and all of a tag that another lmsbuild is at work
    with: that is the exit code, then.
    """
    project = find_project()
    chosen = resolve(project, tag) if tag else None
    known = [chosen] if chosen else targets(project)
    with console.task("looking for what can go"):
        items = leftovers(known)
        if of_cache or of_all:
            items += cached(chosen)
        if of_work or of_all:
            listed = {item.path for item in items}
            items += [item for item in worked(known, force=force) if item.path not in listed]
    with console.task("removing"):
        done = clean(items, older_than, dry_run=dry_run)
    gone = [item for item in done if not item.kept]
    if gone:
        console.table("", ["", "what", "items", "size", "in"], _rows(gone))
    for line in _kept([item for item in done if item.kept]):
        console.say(line)
    total = sum(item.bytes for item in gone)
    did = "would remove" if dry_run else "removed"
    console.say(f"{did} {len(gone)} items, {filesize.decimal(total)}")
    facts = {"items": [item.facts() for item in done], "bytes": total}
    busy = [item for item in done if item.what == "work" and item.kept == IN_USE]
    if busy:
        more = f" and {len(busy) - 1} more" if len(busy) > 1 else ""
        raise BusyError(
            f"{busy[0].path}{more} stays because another lmsbuild is at work with it; run again "
            "when that has ended",
            **facts,
        )
    console.result(facts)


def _kept(items: list[Item]) -> list[str]:
    """One line for all that stays for a reason: a cache has hundreds of entries."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault((item.what, item.kept), []).append(item)
    lines = []
    for (_, why), found in groups.items():
        paths = [str(item.path) for item in found]
        what = paths[0] if len(paths) == 1 else f"{len(paths)} items in {os.path.commonpath(paths)}"
        size = filesize.decimal(sum(item.bytes for item in found))
        lines.append(f"kept {what} ({size}): {why}")
    return lines


def _rows(items: list[Item]) -> list[list[str]]:
    """One line for all items of a kind, the largest first."""
    groups: dict[tuple[str, str, Path], list[int]] = {}
    for item in items:
        folder = next(p for p in item.path.parents if len(p.name) != 2)
        groups.setdefault((item.what, item.title, folder), []).append(item.bytes)
    return [
        [what, title, str(len(sizes)), filesize.decimal(sum(sizes)), str(folder)]
        for (what, title, folder), sizes in sorted(groups.items(), key=lambda g: -sum(g[1]))
    ]
