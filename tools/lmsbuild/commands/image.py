# SPDX-License-Identifier: Apache-2.0
"""lmsbuild image"""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import (
    UserPath,
    base_image_option,
    build_options,
    dry_run_option,
    examples,
    json_option,
    markdown_option,
    tag_argument,
)
from lmsbuild.places.docker import ARCHITECTURES, connect, machine
from lmsbuild.places.image import KINDS, build, check_wheel, recipe, runtime_wheels
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.pipeline import wheel as overlay_wheel
from lmsbuild.tags.download import wheels_for
from lmsbuild.tags.frameworks import resolve


@click.command(
    "image",
    epilog=examples(
        "lmsbuild image v2.6.0                              # trains with Large Model Support",
        "lmsbuild image v2.6.0 --kind build --arch ppc64le --render",
        "lmsbuild image v2.6.0 --kind test --python 3.12 --base-image registry.example/python:3.12",
    ),
)
@tag_argument
@click.option(
    "--kind", type=click.Choice(KINDS), default="runtime", show_default=True,
    help="What it is for: the overlay's compiler, upstream's whole build, use, or the suites.",
)  # fmt: skip
@click.option(
    "--arch", type=click.Choice(list(ARCHITECTURES)), help="Its machine [default: this one's]."
)
@base_image_option
@click.option(
    "--wheel", "wheel", metavar="FILE",
    type=UserPath(exists=True, dir_okay=False),
    help="The wheel of TAG that a runtime image gets [default: the overlay wheel].",
)  # fmt: skip
@click.option(
    "--light",
    is_flag=True,
    help="Leave out of a runtime image what only a GPU has a use for (2.5 GB of CUDA's libraries).",
)
@click.option("--render", is_flag=True, help="Print the Dockerfile and do nothing.")
@build_options
@dry_run_option
@markdown_option
@json_option
def command(
    *,
    tag: str,
    kind: str,
    arch: str | None,
    base_image: str | None,
    wheel: Path | None,
    light: bool,
    render: bool,
    choices: Choices,
    dry_run: bool,
    console: Console,
) -> None:
    """Build a container image of TAG from its template in docker/.

    Works with any engine that speaks Docker's API (Docker, podman). The image's name is
    lmsbuild/<framework>-<tag>:<kind>-py<X.Y>-<cuNNN or cpu>-<machine>, that of a compiler only
    <kind>-<machine>.
    """
    target = resolve(find_project(), tag).for_cuda(choices.cuda)
    chosen = next(known for known in KINDS if known == kind)
    found = recipe(target, chosen, target.python(choices.python), arch, base_image)
    if kind != "runtime" and (wheel or light):
        raise UsageError(
            f"--wheel and --light cannot be used for a {kind} image because only a runtime image "
            "gets a wheel; leave them out, or give --kind runtime"
        )
    if wheel:
        check_wheel(wheel, found)
    if render or dry_run:
        text = found.render()
        console.say(text if render else f"would build {found.name} on {found.base}")
        console.result({"dockerfile": text, "name": found.name, "base": found.base})
        return
    with connect() as engine:
        wheels = []
        if kind == "runtime":
            if wheel is None and found.machine != machine():
                raise UsageError(
                    f"a runtime image for {found.machine} cannot be made here because official "
                    f"wheels are for {machine()}; give one that a complete build made with --wheel"
                )
            wheel = wheel or overlay_wheel(target, choices, console)[1].wheel
            wheels = runtime_wheels(found, wheel, light=light, console=console)
        elif found.requirements:
            title = f"Python packages of the {kind} image of {target.label}"
            wheels = wheels_for(
                found.requirements, found.python, found.machine, title, console, tag=target.label
            )
        done = build(engine, found, wheels, console)
    console.say(f"built {found.name}")
    console.result({"name": found.name, "id": done, "base": found.base, "machine": found.machine})
