# SPDX-License-Identifier: Apache-2.0
"""lmsbuild release"""

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
from lmsbuild.ship.pipeline import container_for
from lmsbuild.ship.release import release, sign
from lmsbuild.tags.frameworks import resolve


@click.command(
    "release",
    epilog=examples(
        "lmsbuild release v2.6.0",
        "lmsbuild release v2.6.0 --python 3.12 --container --output /srv/releases",
        "lmsbuild release v2.6.0 --no-conda --add docs/whats-new.pdf",
        "lmsbuild release v2.6.0 --sign ~/.ssh/release_ed25519",
        "lmsbuild release v2.6.0 --image lmsbuild/pytorch-v2.6.0:runtime-py3.11-cu124-x86_64",
    ),
)
@tag_argument
@click.option(
    "--output", "-o", metavar="DIR", type=OutputFolder(),
    help="Where the release's folder goes [default: work/<framework>-<tag>/releases].",
)  # fmt: skip
@click.option(
    "--add", "more", metavar="FILE", multiple=True,
    type=UserPath(exists=True, dir_okay=False),
    help="Another file that is part of it. Can be given several times.",
)  # fmt: skip
@click.option("--conda/--no-conda", default=True, help="With the conda packages [default] or not.")
@click.option(
    "--image", "images", metavar="NAME", multiple=True,
    help="A container image of the engine whose digest is recorded, with a bill of materials. Can "
    "be given several times.",
)  # fmt: skip
@click.option(
    "--sign", "key", metavar="KEY", type=UserPath(exists=True, dir_okay=False),
    help="Sign the checksums with this private key of OpenSSH's: SHA256SUMS.sig.",
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
    more: tuple[Path, ...],
    conda: bool,
    images: tuple[str, ...],
    key: Path | None,
    in_container: bool,
    base_image: str | None,
    choices: Choices,
    dry_run: bool,
    console: Console,
) -> None:
    """Put all that is shipped of TAG into one folder: exported patch, wheel, conda packages,
    digests of images, manifest, bill of materials (CycloneDX), checksums, and notes from the
    series' commits.

    The folder is whole or not there. One that is there is never changed: the same content is said
    to be unchanged, other content of the same version is refused.
    """
    target = resolve(find_project(), tag).for_cuda(choices.cuda)
    container = container_for(
        target, wanted=in_container, base_image=base_image, choices=choices, console=console
    )

    def packages(wheel: Path) -> list[Path]:
        if not conda:
            return []
        from lmsbuild.conda.plan import subdir_of
        from lmsbuild.ship.condabuild import Order, build

        given = None if dry_run else wheel
        order = Order(tag=target.label, arch=subdir_of(target.machine), wheel=given)
        found = build(target.project, order, choices, console, None, dry_run=dry_run)
        return [*(made.package.path for made in found.made), *map(Path, found.planned)]

    found = []
    if images:
        from lmsbuild.places.docker import connect
        from lmsbuild.places.imagecontents import contents

        with connect() as engine, console.task("looking into the images"):
            found = [contents(engine, name) for name in images]
    done = release(
        target,
        choices,
        console,
        output,
        dry_run=dry_run,
        container=container,
        more=more,
        images=found,
        packages=packages,
    )
    signature = sign(done.folder, key) if key and not dry_run else None
    what = "unchanged" if done.reused else "would write" if dry_run else "wrote"
    if done.artefacts:
        console.table(
            "",
            ["file", "kind", "SHA-256", "bytes"],
            [[a.name, a.kind, a.sha256[:16], f"{a.bytes:,}"] for a in done.artefacts],
        )
    for name in done.planned:
        console.say(f"{what} {done.folder / name}")
    console.say(f"{what} {done.folder}")
    if signature:
        console.say(f"signature {signature}")
    console.result(done)
