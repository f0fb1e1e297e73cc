# SPDX-License-Identifier: Apache-2.0
"""lmsbuild doctor"""

from __future__ import annotations

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import MissingToolError
from lmsbuild.base.project import cache_path, find_project
from lmsbuild.cli.options import examples, json_option
from lmsbuild.places import numa
from lmsbuild.places.doctor import checks


@click.command("doctor", epilog=examples("lmsbuild doctor", "lmsbuild doctor --json"))
@json_option
def command(console: Console) -> None:
    """Say what this machine lacks, with the command that installs it.

    Where GPUs are near different NUMA nodes, it also says how numactl starts a program beside each.
    """
    done = checks(find_project().work, cache_path())
    console.table(
        "",
        ["", "what", "found", "needed"],
        [
            ["ok" if c.good else "MISSING" if c.required else "-", c.name, c.found, c.needed]
            for c in done
        ],
    )
    lacking = [check for check in done if check.required and not check.good]
    if lacking:
        raise MissingToolError(
            f"this machine cannot build because of {', '.join(check.name for check in lacking)}; "
            f"run: {'; '.join(check.fix for check in lacking)}",
            checks=[vars(check) for check in done],
        )
    console.say("nothing is missing")
    near = [gpu for gpu in numa.gpus() if gpu.node is not None]
    for gpu in near:
        console.say(f"a program beside the memory that GPU {gpu.index} reaches fastest:")
        console.say(f"  {gpu.command}")
    console.result(
        {"checks": done, "gpus": [{**vars(gpu), "command": gpu.command} for gpu in near]}
    )
