# SPDX-License-Identifier: Apache-2.0
"""lmsbuild abort"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.base.transaction import PROJECT_STATE, FileTransaction, abort
from lmsbuild.checkout import checkout
from lmsbuild.checkout.switch import CheckoutTransaction, state_of
from lmsbuild.cli.options import dry_run_option, examples, into_option, json_option, tag_choice
from lmsbuild.tags.frameworks import targets
from lmsbuild.upkeep.status import places, wheel_folders
from lmsbuild.wheel.publish import abandon

_WORDS = {
    "nothing": "had changed nothing, cleaned up",
    "restored": "taken back, everything is as it was before it",
    "completed": "had finished, cleaned up",
}


@dataclass(frozen=True)
class _Done:
    path: Path
    command: str
    outcome: str


@click.command(
    "abort",
    epilog=examples(
        "lmsbuild abort                         # whatever was stopped",
        "lmsbuild abort v2.6.0 --into ~/pytorch --dry-run",
    ),
)
@tag_choice
@into_option
@dry_run_option
@json_option
def command(*, tag: str | None, into: Path | None, dry_run: bool, console: Console) -> None:
    """Put back what a command that was stopped in the middle had begun to change.

    Looks at the project and at the checkouts of TAG (of all tags). A file that you changed since
    is never overwritten: it is named, and nothing is done.
    """
    project = find_project()
    supported = [checkout.default_path(target, None) for target in targets(project)]
    for path in () if dry_run else (*supported, *project.work.glob("*/source")):
        checkout.hold(path)  # before it is looked at, so that `clean` leaves it
    kinds: list[tuple[type[FileTransaction], Path, Path]] = [
        (CheckoutTransaction, place.user.path, state_of(place.user))
        for place in places(project, tag, into)
    ]
    if into is None:
        kinds.append((FileTransaction, project.root, project.root / PROJECT_STATE))
    done = []
    for kind, root, state in kinds:
        found = abort(kind, root, state, dry_run=dry_run)
        if found:
            done.append(_Done(root, found.command, found.outcome))
            would = "would be: " if dry_run else ""
            back = ""
            if found.outcome == "completed" and not found.command.startswith("undo"):
                undo = "undo" if kind is CheckoutTransaction else "undo --refresh"
                back = f"; `lmsbuild {undo}` takes it back"
            console.say(f"{root}: lmsbuild {found.command}: {would}{_WORDS[found.outcome]}{back}")
    if into is None:
        for folder in wheel_folders(project):
            if abandon(folder, dry_run=dry_run):
                done.append(_Done(folder, "wheel", "nothing"))
                would = "would be " if dry_run else ""
                console.say(f"{folder}: a build that was killed {would}cleaned up")
        for target in targets(project):
            for left in checkout.abandon(target, dry_run=dry_run):
                done.append(_Done(left, "fetch", "nothing"))
                would = "would be " if dry_run else ""
                console.say(f"{left}: a fetch that was killed {would}cleaned up")
    if not done:
        console.say("nothing was stopped in the middle")
    console.result({"aborted": done})
