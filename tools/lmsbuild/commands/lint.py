# SPDX-License-Identifier: Apache-2.0
"""lmsbuild lint"""

from __future__ import annotations

from dataclasses import asdict

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import LintError
from lmsbuild.cli.options import chosen, examples, json_option, tags_option
from lmsbuild.series.lint import lint


@click.command("lint", epilog=examples("lmsbuild lint v2.6.0", "lmsbuild lint --all --json"))
@tags_option
@json_option
def command(*, tags: tuple[str, ...], every: bool, console: Console) -> None:
    """Check the patches of each TAG against the project's rules.

    The message says why and names a test and upstream's code; no stray whitespace, carriage
    returns, binary files or lines that are too long; a licence in every new file; no file in two
    patches without a stated reason. CONTRIBUTING.md explains the rules. Changes nothing.
    """
    wanted = chosen(tags, every=every)
    # The runtime patches are the same for every tag of a framework.
    findings = list(dict.fromkeys(finding for target in wanted for finding in lint(target)))
    for finding in findings:
        console.say(str(finding))
    if findings:
        raise LintError(
            f"the patches of {', '.join(target.label for target in wanted)} do not pass because "
            f"of {len(findings)} findings (listed above); begin with: {findings[0]}",
            findings=[asdict(finding) for finding in findings],
        )
    console.say(f"{', '.join(target.label for target in wanted)}: no findings")
    console.result(findings)
