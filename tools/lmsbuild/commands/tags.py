# SPDX-License-Identifier: Apache-2.0
"""lmsbuild tags"""

from __future__ import annotations

from typing import cast

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import examples, json_option
from lmsbuild.tags.frameworks import Target, targets
from lmsbuild.trials import bites, passed


@click.command("tags", epilog=examples("lmsbuild tags", "lmsbuild tags -v", "lmsbuild tags --json"))
@click.option(
    "-v", "--verbose", is_flag=True,
    help="Name the safeguards that no record shows to bite.",
)  # fmt: skip
@json_option
def command(*, verbose: bool, console: Console) -> None:
    """List the supported frameworks and tags, and when and how far each was last verified.

    applied: the series on the tag's own code; built: the overlay wheel from it; trained: the
    regression suites on that wheel. Below the table: what passed of the whole matrices, which take
    hours and are run in parts (`lmsbuild test --record`), and on which commit; and how many of the
    safeguards bite, that is, have a test that was seen to fail without them.
    """
    project = find_project()
    known = targets(project)
    record = passed.read(project)
    standings = bites.standings(project, record.bites)
    rows = [
        {
            "tag": target.label,
            "commit": target.tag.commit[:12],
            "patches": len(target.patches),
            "version": target.version,
            "cuda": list(target.tag.cuda),
            "pythons": target.pythons,
            "machines": {cuda: target.for_cuda(cuda).machines for cuda in target.tag.cuda},
            "verified": target.tag.verified,
            "full": list(target.tag.full.ran) if target.tag.full else None,
            "complete_build": _container_command(target),
            "passed": [part for part in record.parts if _concerns(part.of, target)],
            "negative": [each for each in standings if _concerns(each.of, target)],
        }
        for target in known
    ]
    console.table(
        "",
        [
            "tag",
            "commit",
            "patches",
            "wheel",
            "CUDA",
            "Python",
            "machine",
            "last verified",
            "complete build",
        ],
        [
            [
                *(str(row[name]) for name in ("tag", "commit", "patches", "version")),
                " ".join(target.tag.cuda),
                " ".join(target.pythons),
                " ".join(target.machines),
                last_verified(target),
                _complete(target),
            ]
            for row, target in zip(rows, known, strict=True)
        ],
    )
    if any(target.tag.full for target in known):
        console.say(
            "a complete build is for what no official wheel covers; `lmsbuild wheel TAG --full` "
            "makes one, in a container"
        )
    packages = _packages(known)
    console.table(
        "",
        ["package", "version", "beside", "tested with"],
        [
            [
                *(str(each[name]) for name in ("package", "version", "framework")),
                " ".join(map(str, cast("list[str]", each["tested"]))),
            ]
            for each in packages
        ],
    )
    for line in passed.summary(record.parts):
        console.say(line)
    for each in standings:
        console.say(each.line)
        if verbose and each.missing:
            console.say(f"  not shown to bite: {', '.join(each.missing)}")
    console.result(rows)


def _concerns(of: str, target: Target) -> bool:
    plugin = target.framework.plugin
    beside = plugin is not None and of.partition(":")[0] == plugin.name
    return beside or of in (target.label, target.framework_name, bites.ENGINE)


def _packages(known: list[Target]) -> list[dict[str, object]]:
    """The packages beside official wheels, and the releases that each was tested with."""
    frameworks = {target.framework_name: target.framework for target in known}
    return [
        {
            "package": plugin.name,
            "framework": name,
            "version": plugin.version,
            "tested": [version for version, at in plugin.releases.items() if at.tested],
        }
        for name, framework in frameworks.items()
        if (plugin := framework.plugin)
    ]


def last_verified(target: Target) -> str:
    found = target.tag.verified
    return f"{found.on}: {found.how}" if found else "never"


def _container_command(target: Target) -> str | None:
    """That makes upstream's own build of the patched source; None where there is no recipe."""
    return None if target.tag.full is None else f"lmsbuild wheel {target.label} --full"


def _complete(target: Target) -> str:
    """What is known of upstream's own build of the patched source."""
    how = target.tag.full
    return "not described" if how is None else ", ".join(how.ran) or "never run in full"
