# SPDX-License-Identifier: Apache-2.0
"""lmsbuild wheel"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.base.project import find_project
from lmsbuild.checkout.checkout import working_path
from lmsbuild.cli.options import (
    base_image_option,
    build_options,
    dry_run_option,
    examples,
    json_option,
    markdown_option,
    output_option,
    tag_argument,
)
from lmsbuild.places.docker import ARCHITECTURES, machine
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.pipeline import container_for, wheel
from lmsbuild.ship.sources import patched
from lmsbuild.tags.frameworks import Target, resolve


@click.command(
    "wheel",
    epilog=examples(
        "lmsbuild wheel                          # in a checkout, or with only one in work/",
        "lmsbuild wheel v2.6.0",
        "lmsbuild wheel v2.6.0 --python 3.12 --output dist --jobs 4",
        "lmsbuild wheel v2.6.0 --container       # runs on older systems than this one",
        "lmsbuild wheel v2.14.1 --arch aarch64   # where the tag has an official wheel for it",
        "lmsbuild wheel v2.6.0 --full --jobs 8",
        "lmsbuild wheel v2.6.0 --full --arch ppc64le --base-image registry.example/cuda-ppc64le",
    ),
)
@tag_argument
@output_option("the wheel")
@click.option(
    "--container", "in_container", is_flag=True,
    help="Compile in a container with the official wheel's toolset: the wheel then runs on older "
    "systems than this one. Needs Docker.",
)  # fmt: skip
@click.option(
    "--full", is_flag=True,
    help="Upstream's own complete build of the patched source in a container, for what no official "
    "wheel covers. Takes hours for a real framework; when it was stopped, run it again.",
)  # fmt: skip
@click.option(
    "--arch", type=click.Choice(list(ARCHITECTURES)),
    help="The machine that the wheel is for [default: this one's]. An overlay for another is "
    "compiled by a cross compiler. With --full another is emulated, which takes many times as "
    "long: run it on such a machine if you can.",
)  # fmt: skip
@base_image_option
@build_options
@dry_run_option
@markdown_option
@json_option
def command(
    *,
    tag: str,
    output: Path | None,
    in_container: bool,
    full: bool,
    arch: str | None,
    base_image: str | None,
    choices: Choices,
    dry_run: bool,
    console: Console,
) -> None:
    """Make the overlay wheel of TAG: the official wheel with the patched libraries and files.

    Builds from the clone of the framework you stand in, else from work/<framework>-<tag>/source or
    --into; fetches and applies first if need be. Says so, within two seconds, when nothing has
    changed.
    """
    target = resolve(find_project(), tag).for_cuda(choices.cuda)
    if not full:
        target = target.for_machine(arch)
        if arch not in (None, *target.machines):
            raise UsageError(
                f"an overlay wheel for {arch} cannot be made because official wheels, which it is "
                f"made from, are for {', '.join(target.machines)}; build all of it with --full"
            )
        if arch not in (None, machine()) and (in_container or base_image):
            raise UsageError(
                f"--container cannot go with --arch {arch} because an overlay for another machine "
                "is compiled by a cross compiler here; leave one of them out"
            )
    path = working_path(target, choices.into)
    if full:
        _full(
            target,
            path,
            arch,
            base_image,
            output,
            choices=choices,
            dry_run=dry_run,
            console=console,
        )
        return
    container = container_for(
        target, wanted=in_container, base_image=base_image, choices=choices, console=console
    )
    _, done = wheel(target, choices, console, output, dry_run=dry_run, container=container)
    what = "unchanged" if done.reused else "would write" if dry_run else "wrote"
    console.say(f"{what} {done.wheel}")
    if not dry_run:
        console.say(f"manifest {done.manifest}")
    if done.needs:
        console.say(f"runs on {done.needs.platform} and later: {done.needs.because}")
        nearer = container is None and target.machine == machine()
        if nearer and done.needs.platform != done.needs.official:
            console.say(f"the official wheel: {done.needs.official}; --container gets nearer to it")
    console.result(done)


def _full(
    target: Target, path: Path, arch: str | None, base_image: str | None, output: Path | None,
    *, choices: Choices, dry_run: bool, console: Console,
) -> None:  # fmt: skip
    from lmsbuild.places.full import build_full, settings
    from lmsbuild.places.image import recipe

    python = target.python(choices.python)
    how = settings(target)
    found = recipe(target, "build", python, arch, base_image)
    if dry_run:
        console.say(f"would build {found.name} on {found.base}")
        for words in [*how.fetch, *how.commands]:
            console.say(f"would run `{shlex.join(words)}` in a copy of {path}")
        console.result({"path": path, "settings": how})
        return
    path = patched(target, choices, console)
    folder = output.absolute() if output else target.work / "wheels"
    with console.step("full build") as step:
        done = build_full(found, path, folder, console, choices.jobs)
        step.note = "unchanged" if done.reused else f"with {done.jobs} jobs"
        step.size, step.digest = done.wheel.stat().st_size, done.sha256
    console.say(f"{'unchanged' if done.reused else 'wrote'} {done.wheel}")
    console.say(f"manifest {done.manifest}")
    if not how.ran:
        console.say(f"record it in {target.file}: `ran` of the table `full`")
    console.result(done)
