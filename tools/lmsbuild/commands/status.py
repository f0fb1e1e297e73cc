# SPDX-License-Identifier: Apache-2.0
"""lmsbuild status"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import examples, into_option, json_option, tag_choice
from lmsbuild.series.patchstate import EMPTY
from lmsbuild.upkeep.listed import LMS, Listed
from lmsbuild.upkeep.status import HALF, CheckoutStatus, ProjectStatus, status

_SHOWN = 5


@click.command(
    "status",
    epilog=examples(
        "lmsbuild status                        # the clone you stand in, and the work folder",
        "lmsbuild status v2.6.0 --into ~/pytorch --json",
    ),
)
@tag_choice
@into_option
@json_option
def command(tag: str | None, into: Path | None, console: Console) -> None:
    """Say where the checkouts of TAG (of all tags) and the project stand.

    For each checkout: its patches, by the numbers that `drop` and its like take, and where the
    patch files have them otherwise; where they went upstream (by their trailers `Forwarded:` and
    `Applied-Upstream:`), changes and commits of yours, work that was stopped in the middle, and
    what to do next. Changes nothing.
    """
    project = find_project()
    found = status(project, tag, into)
    _say_project(found.project, console)
    for checkout in found.checkouts:
        _say_checkout(checkout, console)
    for message in found.damaged:
        console.say(message)
    if not found.checkouts and not found.damaged:
        console.say("no checkout: `lmsbuild apply TAG` makes one")
    console.result(found)


def _say_project(project: ProjectStatus, console: Console) -> None:
    console.say(f"project {project.path}")
    if project.running:
        console.say(f"  running: {project.running}")
    elif project.unfinished:
        stopped = project.unfinished
        console.say(f"  unfinished: lmsbuild {stopped.command}, {stopped.state}; {stopped.next}")
    for folder in project.wheels:
        console.say(f"  unfinished: a build in {folder}; lmsbuild wheel goes on, abort cleans up")
    for folder in project.fetches:
        console.say(
            f"  unfinished: a fetch in {folder}; lmsbuild fetch starts anew, abort cleans up"
        )
    if project.undo:
        console.say(f"  can be taken back: lmsbuild {project.undo} (lmsbuild undo --refresh)")


def _say_checkout(found: CheckoutStatus, console: Console) -> None:
    branch = found.branch.removeprefix("refs/heads/")
    of = f" (a port of {found.port_of})" if found.port_of else ""
    console.say(f"{found.tag}{of} {found.path}")
    half = found.unfinished is not None and found.unfinished.state == HALF
    state = "not clean" if found.changes or found.under_way or half else "clean"
    console.say(f"  {'detached' if branch == 'HEAD' else branch} at {found.head[:12]}, {state}")
    for patch in found.patches:
        notes = "; ".join(filter(None, (_file(patch), patch.whereabouts)))
        console.say(f"  {patch.state:<12} {patch.patch}{f'  ({notes})' if notes else ''}")
    listed = [patch.patch for patch in found.patches]
    for name in (name for name in found.popped if name not in listed):
        console.say(f"  {'popped':<12} {name}")
    if found.other:
        console.say(f"  other code: {found.other}")
    if found.damage:
        console.say(f"  damaged: {found.damage}")
    _some("changed", [entry[3:] for entry in found.changes], console)
    _some("edited, not refreshed:", found.edited, console)
    _some("in the patches: commit" if found.refreshed else "your commit", found.on_top, console)
    if found.under_way:
        console.say(f"  under way: {found.under_way}")
    if found.running:
        console.say(f"  running: {found.running}")
    if found.unfinished:
        stopped = found.unfinished
        console.say(f"  unfinished: lmsbuild {stopped.command}, {stopped.state}")
    if found.undo and found.undo_blocked:
        console.say(f"  undo would refuse: {found.undo_blocked}")
    elif found.undo:
        console.say(f"  can be taken back: lmsbuild {found.undo} (lmsbuild undo)")
    console.say(f"  next: {found.next}")


def _file(patch: Listed) -> str:
    """How the patch file differs from what the checkout has."""
    if not patch.file:
        return "becomes no patch" if patch.state == EMPTY else "in no file yet"
    if patch.file == LMS:
        return f"goes to {LMS}"
    other = f"as {patch.file}" if patch.file != patch.patch else ""
    if patch.differs:
        return f"in the files otherwise{other and ', '}{other}"
    return f"in the files {other}" if other else ""


def _some(title: str, lines: list[str], console: Console) -> None:
    for line in lines[:_SHOWN]:
        console.say(f"  {title:<12} {line}")
    if len(lines) > _SHOWN:
        console.say(f"  {title:<12} and {len(lines) - _SHOWN} more")
