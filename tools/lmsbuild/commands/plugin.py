# SPDX-License-Identifier: Apache-2.0
"""lmsbuild plugin"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import (
    container_option,
    dry_run_option,
    examples,
    jobs_option,
    json_option,
    markdown_option,
    offline_option,
    output_option,
    python_option,
    tag_argument,
)
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.pipeline import container_for, plugin_wheel
from lmsbuild.tags.new_release import add
from lmsbuild.wheel.plugin import resolve


@click.command(
    "plugin",
    epilog=examples(
        "lmsbuild plugin v2.11.0",
        "lmsbuild plugin v2.6.0 --output dist --jobs 4",
        "lmsbuild plugin v2.11.0 --container     # runs on older systems than this one",
        "lmsbuild test v2.11.0 --plugin",
        "lmsbuild plugin tensorflow:2.21.0",
        "lmsbuild plugin 2.16.0 --new && lmsbuild test 2.16.0 --plugin",
    ),
)
@tag_argument
@click.option(
    "--new", is_flag=True,
    help="Add the release to plugin.toml first, untested, with what the package index says of it.",
)  # fmt: skip
@output_option("the wheel and the sdist")
@container_option
@python_option
@jobs_option
@offline_option
@dry_run_option
@markdown_option
@json_option
def command(
    *,
    tag: str,
    new: bool,
    output: Path | None,
    in_container: bool,
    base_image: str | None,
    python: str,
    jobs: int | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Make the package beside the official release TAG: a wheel, and an sdist of it.

    torch_lms needs only the headers of the official wheel. One wheel is for all Pythons, and for
    all patch releases of its minor version; its sdist builds at install.
    tensorflow_large_model_support compiles nothing: one wheel is for all releases.
    """
    project = find_project()
    if new:
        entry = add(project, tag.rpartition(":")[0] or "pytorch", tag, console, dry_run=dry_run)
        console.say(entry)
        if dry_run:
            console.result({"entry": entry})
            return
    found = resolve(project, tag)
    choices = Choices("auto", None, None, python, None, jobs)
    container = container_for(
        found.target, wanted=in_container, base_image=base_image, choices=choices, console=console
    )
    done = plugin_wheel(found, choices, console, output, dry_run=dry_run, container=container)
    what = "unchanged" if done.reused else "would write" if dry_run else "wrote"
    console.say(f"{what} {done.wheel}")
    console.say(f"sdist {done.sdist}")
    console.result(done)
