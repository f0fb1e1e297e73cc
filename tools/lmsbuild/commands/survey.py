# SPDX-License-Identifier: Apache-2.0
"""lmsbuild survey"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import SourceError
from lmsbuild.base.project import find_project
from lmsbuild.checkout.survey import Survey, Surveyed, short, survey
from lmsbuild.cli.options import UserPath, completer, examples, json_option, tag_choice
from lmsbuild.tags.frameworks import resolve, targets


@click.command(
    "survey",
    epilog=examples(
        "lmsbuild survey                        # every series on every supported tag at hand",
        "lmsbuild survey v2.6.0 --source ~/src/pytorch --tags 'v2.*' --tags v1.13.1",
        "lmsbuild survey v2.6.0 --source ~/src/pytorch --tags main --json",
    ),
)
@tag_choice
@click.option(
    "--tags", "names", metavar="NAME", multiple=True, shell_complete=completer("tags"),
    help="A tag, a glob of tags or a revision of the clone to look at; again for more [default: "
    "the supported tags of the framework].",
)  # fmt: skip
@click.option(
    "--source", "clone", metavar="CLONE", type=UserPath(exists=True, file_okay=False),
    envvar="LMSBUILD_MIRROR",
    help="A clone of the framework, which is only read [default: the one you stand in, the "
    "checkouts in work/ and the cache].",
)  # fmt: skip
@json_option
def command(
    *, tag: str | None, names: tuple[str, ...], clone: Path | None, console: Console
) -> None:
    """Show how the series of TAG (every series) would stand on many tags at once.

    Reads only the files that the patches touch, downloads nothing and changes nothing. A patch is
    applied, moved (applies at other lines), merged (applies by a three-way merge), renamed (applies
    to a file that has another name), already upstream, empty, or needs a person: its file is
    deleted, there is a conflict, or another patch's was in the way (not reached). Of what does not
    simply apply the hunk is named and, where the clone has the history, the commit that is why.
    """
    project = find_project()
    wanted = [resolve(project, tag)] if tag else targets(project)
    rows: list[Surveyed] = []
    missing: dict[str, dict[str, str]] = {}
    failure: SourceError | None = None
    for target in wanted:
        try:
            done = survey(target, names, clone, console)
        except SourceError as error:
            if tag or names:
                raise
            failure = error  # another framework may have something
            continue
        _say(target.label, done, console)
        rows += done.rows
        missing[target.label] = done.missing
    if failure and not rows:
        raise failure
    console.result({"surveyed": rows, "missing": missing})


def _say(label: str, done: Survey, console: Console) -> None:
    by_tag: dict[str, list[Surveyed]] = {}
    for row in done.rows:
        by_tag.setdefault(row.tag, []).append(row)
    patches = list(dict.fromkeys(row.patch for row in done.rows))
    table = [[tag, *(row.state for row in found)] for tag, found in by_tag.items()]
    console.table(f"{label} on", ["tag", *map(short, patches)], table)
    for row in done.rows:
        for file in row.files:
            for reason in file.reasons:
                console.say(f"{row.tag} {short(row.patch)} {file.state}: {reason}")
    for tag, why in done.missing.items():
        console.say(f"{tag} was not looked at: {why}")
