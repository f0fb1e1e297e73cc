# SPDX-License-Identifier: Apache-2.0
"""lmsbuild test"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import MismatchError, UsageError
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import (
    UserPath,
    base_image_option,
    build_options,
    dry_options,
    dry_run_option,
    examples,
    json_option,
    markdown_option,
    suite_argument,
    tag_argument,
)
from lmsbuild.places import device as devices
from lmsbuild.ship import trial
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.pipeline import Wanted
from lmsbuild.ship.sources import fetched, patched
from lmsbuild.tags.frameworks import Target, resolve
from lmsbuild.trials.bites import SUITE, standing
from lmsbuild.trials.passed import Recorder, read
from lmsbuild.trials.suite import (
    SIMULATOR,
    TIERS,
    dry_suites,
    parse_shard,
    suites,
)
from lmsbuild.wheel.plugin import resolve as resolve_plugin
from lmsbuild.wheel.toolchain import Compiler
from lmsbuild.wheel.wheelfile import why_not

if TYPE_CHECKING:
    from lmsbuild.places.container import Inside


@click.command(
    "test",
    epilog=examples(
        "lmsbuild test v2.6.0",
        "lmsbuild test v2.6.0 allocator training",
        "lmsbuild test v2.6.0 allocator -k test_soft_limit",
        "lmsbuild test v2.6.0 --tier full --shard 2/8 --record",
        "lmsbuild test v2.6.0 negative --missing --record",
        "lmsbuild test v2.6.0 --dry",
        "lmsbuild test v2.11.0 --plugin training",
        "lmsbuild test tensorflow:2.21.0 --plugin",
        "lmsbuild test v2.6.0 --container allocator",
        "lmsbuild test v2.6.0 --python 3.11 --wheel dist/torch-2.6.0+cu124.lms.1-cp311-cp311-"
        "manylinux_2_34_x86_64.whl",
    ),
)
@tag_argument
@suite_argument
@click.option(
    "--device", "wanted", type=click.Choice(["sim", "cuda"]),
    help="What the suites run on; sim: what stands in for a GPU [default: sim].",
)  # fmt: skip
@click.option(
    "--tier", type=click.Choice(TIERS), default="default", show_default=True,
    help="How much of each matrix.",
)  # fmt: skip
@click.option(
    "--no-stock", is_flag=True,
    help="Leave out the official wheel: its environment, and the tests that compare with it.",
)  # fmt: skip
@click.option(
    "-k", "select", metavar="WORDS", default="",
    help="Only tests whose names match, as pytest's -k: a name, or several with and, or, not.",
)  # fmt: skip
@click.option("--shard", metavar="I/N", help="Only the I-th of N parts, counted from 1.")
@click.option(
    "--plugin", is_flag=True,
    help="Test the package beside the official wheel instead of the patched wheel.",
)  # fmt: skip
@click.option(
    "--wheel", "given", metavar="FILE", type=UserPath(exists=True, dir_okay=False),
    help="Test this wheel of TAG, or of the plug-in, such as one that is to be shipped, instead of "
    "building it.",
)  # fmt: skip
@click.option(
    "--container", "in_container", is_flag=True,
    help="Run the suites in a container of the tag's test image, on the simulated device.",
)  # fmt: skip
@click.option(
    "--record", is_flag=True,
    help="Note in tests/passed.toml on which commit this part of a matrix passed, or each of these "
    "safeguards was shown to bite.",
)  # fmt: skip
@click.option(
    "--missing", is_flag=True,
    help="Of the suite negative, only safeguards that tests/passed.toml does not show to bite.",
)  # fmt: skip
@base_image_option
@build_options
@dry_options
@dry_run_option
@markdown_option
@json_option
def command(
    *,
    tag: str,
    suite: tuple[str, ...],
    wanted: str | None,
    tier: str,
    no_stock: bool,
    select: str,
    shard: str | None,
    plugin: bool,
    given: Path | None,
    in_container: bool,
    record: bool,
    missing: bool,
    base_image: str | None,
    profile: str | None,
    choices: Choices,
    dry_run: bool,
    console: Console,
) -> None:
    """Run the regression suites of TAG (all, or those named) on the official and the LMS wheel.

    Prepares both environments first; writes JUnit XML and a one-page HTML report. With --dry only
    what is not about values: capacity, statistics, the allocator, the cases, what trains.
    """
    found = resolve_plugin(find_project(), tag) if plugin else None
    if found:
        found = replace(found, target=found.target.for_cuda(choices.cuda))
    target = found.target if found else resolve(find_project(), tag).for_cuda(choices.cuda)
    if given:
        if record:
            raise UsageError(
                "--wheel cannot go with --record because that is about what is built here; leave "
                "one of them out"
            )
        python = target.python(choices.python)
        project, version = target.wheel.project, target.version
        if found:
            project, version = found.plugin.name, found.version
        why = why_not(given, project, version, python, Compiler.find().machine)
        if why:
            raise MismatchError(
                f"{given.name} cannot be tested because {why}; give one of {target.label}, or "
                "choose its Python with --python",
                wheel=given.name,
            )
    part = parse_shard(shard)
    device = devices.choose(target, wanted or "sim", profile)
    files = dry_suites(target, suite) if profile else suites(target, suite)
    if no_stock and [file.name for file in files] == [SIMULATOR]:
        raise UsageError(
            f"--no-stock leaves nothing to run because {SIMULATOR} is tested on the official "
            "wheel; leave it out"
        )
    negative = [file.stem.removeprefix("test_") for file in files] == [SUITE]
    if record and ((select and not negative) or no_stock):
        other = "--no-stock" if no_stock else "-k"
        raise UsageError(
            f"--record cannot go with {other} because that leaves tests out; leave one of them out"
        )
    if record and profile:
        raise UsageError(
            "--record cannot go with --dry because that leaves values out; leave one of them out"
        )
    of = f"{found.plugin.name}:{found.target.tag.version}" if found else target.label
    if missing:
        if not negative:
            raise UsageError(
                f"--missing cannot be used because it is for safeguards alone; name {SUITE} as the "
                "only suite"
            )
        left = standing(target.project, of, read(target.project).bites.get(of, {})).missing
        if not left:
            console.say(f"every safeguard of {of} is shown to bite; nothing to run")
            console.result({"suites": [], "device": device.kind, "tier": tier, "missing": []})
            return
        console.say(f"{len(left)} safeguards of {of} are not shown to bite")
        these = " or ".join(f"[{name}]" for name in left)
        select = f"({select}) and ({these})" if select else these
    if dry_run:
        console.say(f"would run {', '.join(file.name for file in files)} on {device.kind}")
        console.result({"suites": files, "device": device.kind, "tier": tier})
        return
    recorder = None
    if record:
        recorder = Recorder(target.project, of)
    with contextlib.ExitStack() as stack:
        inside, prefix = None, "test-"
        if in_container or base_image:
            if device.kind == "cuda":
                raise UsageError(
                    "--container cannot go with --device cuda because its image has no GPU; leave "
                    "one of them out"
                )
            prefix = "test-container-"
            tree = target.work if found else patched(target, choices, console)
            python = target.python(choices.python)
            inside = stack.enter_context(_box(target, tree, base_image, python, console))
        if found and found.release.tag and tier == "full":
            fetched(target, choices.source, None, console, choices.reference)  # upstream's tests
        tools, alone = trial.packages(target)
        needed = Wanted(
            target=target, choices=choices, device=device, plugin=found, prefix=prefix,
            tools=tools, alone=alone, stock=not no_stock, inside=inside, wheel=given,
        )  # fmt: skip
        done = trial.run(needed, files, console, tier=tier, shard=part, select=select)
    trial.result(done, done, console)
    if recorder and (done.bites or negative):
        recorder.bites(done.bites)
        console.say(f"recorded: {sum(done.bites.values())} safeguards of {of} bite; commit it")
    trial.check(done)
    if recorder and not negative:
        matrix = " ".join(suite) or tier
        if device.kind == "cuda":
            matrix += " on a GPU"
        noted = recorder.passed(matrix, part or (1, 1), passed=done.passed, skipped=done.skipped)
        console.say(f"recorded: {noted.of} {noted.matrix} {noted.part}/{noted.parts}; commit it")


def _box(
    target: Target, tree: Path, base_image: str | None, python: str, console: Console
) -> contextlib.AbstractContextManager[Inside]:
    from lmsbuild.places.tagcontainer import suites as container

    return container(target, tree, base_image, python, console)
