# SPDX-License-Identifier: Apache-2.0
"""lmsbuild rebuild"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import MismatchError
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import (
    UserPath,
    build_options,
    container_option,
    dry_run_option,
    examples,
    json_option,
    markdown_option,
)
from lmsbuild.series.series import series_of
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.pipeline import container_for
from lmsbuild.ship.release import explain, read, rebuild
from lmsbuild.tags.frameworks import resolve


@click.command(
    "rebuild",
    epilog=examples(
        "lmsbuild rebuild work/pytorch-v2.6.0/releases/*cp311*/release.json",
        "lmsbuild rebuild torch-2.6.0+cu124.lms.1-cp311-*.whl.manifest.json --json",
    ),
)
@click.argument("manifest", type=UserPath(exists=True, dir_okay=False))
@container_option
@build_options
@dry_run_option
@markdown_option
@json_option
def command(
    *,
    manifest: Path,
    in_container: bool,
    base_image: str | None,
    choices: Choices,
    dry_run: bool,
    console: Console,
) -> None:
    """Make what MANIFEST records again, every file compiled anew, and compare bit for bit.

    MANIFEST is a release's release.json or the .manifest.json beside a wheel; it says for which
    Python and CUDA version. A difference is explained: which patch, input, tool or setting is not
    the recorded one. Nothing outside the cache is written.
    """
    recorded = read(manifest)
    about = recorded["wheel"]
    target = resolve(find_project(), recorded["tag"]).for_cuda(about["cuda"])
    choices = dataclasses.replace(choices, python=about["python"], cuda=about["cuda"])
    if dry_run:
        patches = {patch.name: patch.sha256 for patch in series_of(target).patches}
        now = {**about, "patches": patches, "version": target.version}
        why = [line for line in explain(about, now) if "reproducible" not in line]
        if why:
            raise MismatchError(
                f"{manifest} cannot come out as recorded because {'; '.join(why)}; use the "
                "project's commit that it was made of",
                why=why,
            )
        console.say(f"would build {about['wheel']['name']} again and compare it")
        console.result({"wheel": about["wheel"]["name"]})
        return
    container = container_for(
        target, wanted=in_container, base_image=base_image, choices=choices, console=console
    )
    compared = rebuild(target, recorded, choices, console, container)
    console.table(
        "", ["file", "SHA-256", ""], [[one.name, one.rebuilt[:16], "the same"] for one in compared]
    )
    console.say("bit for bit as recorded")
    console.result({"compared": compared, "same": True})
