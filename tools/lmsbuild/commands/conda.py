# SPDX-License-Identifier: Apache-2.0
"""lmsbuild conda"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import (
    OutputFolder,
    UserPath,
    build_options,
    container_option,
    dry_run_option,
    examples,
    json_option,
    markdown_option,
    tag_argument,
)
from lmsbuild.ship.choices import Choices


@click.command(
    "conda",
    epilog=examples(
        "lmsbuild conda v2.6.0",
        "lmsbuild conda v2.6.0 --python 3.12 --channel https://conda.example.org/main",
        "lmsbuild conda v2.6.0 --companions      # torchvision and torchaudio",
        "lmsbuild conda v2.11.0 --plugin --output dist",
        "lmsbuild conda v2.6.0 --arch linux-ppc64le --wheel torch-2.6.0+cu124.lms.1-cp311-cp311-"
        "linux_ppc64le.whl --test none",
        "lmsbuild conda lmsbuild                 # the package of lmsbuild itself",
    ),
)
@tag_argument
@click.option(
    "--output", "-o", metavar="DIR", type=OutputFolder(),
    help="Folder for the packages, each in its subdir [default: work/<framework>-<tag>/conda].",
)  # fmt: skip
@click.option("--plugin", is_flag=True, help="The plug-in's package for the release TAG.")
@click.option(
    "--companions", is_flag=True,
    help="Instead the packages of official wheels that go beside that of TAG (torchvision and the "
    "like), where those of other channels are for another build.",
)  # fmt: skip
@click.option(
    "--arch", default="linux-64", show_default=True, metavar="SUBDIR",
    help="The platform of the package; another than this machine's takes a --wheel for it.",
)  # fmt: skip
@click.option(
    "--wheel", "given", metavar="FILE",
    type=UserPath(exists=True, dir_okay=False),
    help="Package this wheel of TAG instead of building it.",
)  # fmt: skip
@click.option(
    "--test", "kind", type=click.Choice(["auto", "channel", "none"]), default="auto",
    show_default=True,
    help="Where the recipe's tests find what the package needs. channel: in --channel; auto: "
    "there if one is given, else in a TEST channel made of this machine's Python and of wheels.",
)  # fmt: skip
@click.option(
    "--channel", "channels", metavar="URL", multiple=True,
    help="A channel for the recipe's tests. Can be given several times.",
)  # fmt: skip
@click.option(
    "--test-channel", metavar="DIR", type=OutputFolder(),
    help="Make the TEST channel in this new folder too, and keep it: what a client needs beside "
    "the package where no other channel can be reached.",
)  # fmt: skip
@container_option
@build_options
@dry_run_option
@markdown_option
@json_option
def command(
    *,
    tag: str,
    output: Path | None,
    plugin: bool,
    companions: bool,
    arch: str,
    given: Path | None,
    kind: str,
    channels: tuple[str, ...],
    test_channel: Path | None,
    in_container: bool,
    base_image: str | None,
    choices: Choices,
    dry_run: bool,
    console: Console,
) -> None:
    """Make the conda package of TAG from its wheel, and metapackages that pull it.

    The package needs what the wheel needs, under conda's names (conda-recipes/dependencies.toml),
    and its recipe's tests have passed.
    """
    from lmsbuild.ship.condabuild import Order, build

    order = Order(
        tag=tag, arch=arch, plugin=plugin, wheel=given, test=kind, channels=channels,
        in_container=in_container, base_image=base_image, test_channel=test_channel,
        companions=companions,
    )  # fmt: skip
    done = build(find_project(), order, choices, console, output, dry_run=dry_run)
    if dry_run:
        for plan in done.planned:
            console.say(f"would write {plan}")
        console.result({"packages": done.planned})
        return
    for made in done.made:
        console.say(f"{'unchanged' if made.reused else 'wrote'} {made.package.path}")
    if not done.made[0].tested:
        console.say("the recipe's tests were not run")
    rows = [
        {
            "package": made.package.label, "path": made.package.path, "reused": made.reused,
            "sha256": made.package.sha256, "bytes": made.package.bytes, "tested": made.tested,
            "depends": made.package.depends, "manifest": made.manifest,
        }
        for made in done.made
    ]  # fmt: skip
    console.result({"packages": rows})
