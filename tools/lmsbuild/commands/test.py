# SPDX-License-Identifier: Apache-2.0
"""lmsbuild test"""

from __future__ import annotations

import click

from lmsbuild import device as devices
from lmsbuild.apply import apply
from lmsbuild.checkout import fetch
from lmsbuild.console import Console
from lmsbuild.download import official_wheel
from lmsbuild.environment import TEST_TOOLS, prepare
from lmsbuild.errors import SuiteError
from lmsbuild.frameworks import resolve
from lmsbuild.options import (
    dry_run_option,
    examples,
    jobs_option,
    json_option,
    python_option,
    running_python,
    source_option,
    tag_argument,
)
from lmsbuild.overlay import build
from lmsbuild.project import find_project
from lmsbuild.suite import TIERS, Order, parse_shard, run_suites, suites


@click.command(
    "test",
    epilog=examples(
        "lmsbuild test v2.6.0",
        "lmsbuild test v2.6.0 --tier fast allocator training",
        "lmsbuild test v2.6.0 --tier full --shard 2/8 --device sim",
    ),
)
@tag_argument
@click.argument("suite", nargs=-1)
@click.option(
    "--device", "wanted", type=click.Choice(["sim", "cuda"]), default="sim", show_default=True,
    help="What the suites run on.",
)  # fmt: skip
@click.option(
    "--tier", type=click.Choice(TIERS), default="default", show_default=True,
    help="How much of each matrix.",
)  # fmt: skip
@click.option("--shard", metavar="I/N", help="Only the I-th of N parts, counted from 1.")
@source_option
@python_option
@jobs_option
@dry_run_option
@json_option
def command(
    tag: str,
    suite: tuple[str, ...],
    wanted: str,
    tier: str,
    shard: str | None,
    source: str,
    python: str | None,
    jobs: int | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Run the regression suites of TAG (all, or those named) on the official and the LMS wheel.

    Prepares both environments first; writes JUnit XML and a one-page HTML report.
    """
    target = resolve(find_project(), tag)
    part = parse_shard(shard)
    files = suites(target.project, suite)
    version = python or running_python()
    if dry_run:
        console.say(f"would run {', '.join(file.name for file in files)} on {wanted}")
        console.result({"suites": files, "device": wanted, "tier": tier, "dry_run": True})
        return
    device = devices.choose(wanted)
    on_gpu = device.kind == "cuda"
    checkout = fetch(target, source, None, console)
    apply(target, checkout.path, console)
    built = build(target, checkout.path, version, target.work / "wheels", console, jobs)
    official = official_wheel(target.wheel, version, console)
    stock = prepare(target, "test-stock", official, version, on_gpu, TEST_TOOLS, console)
    lms = prepare(target, "test-lms", built.wheel, version, on_gpu, TEST_TOOLS, console)
    variables = {}
    if not on_gpu:
        variables = devices.variables(target, console)
        for environment in (stock, lms):
            devices.build_simulated(target, environment, console, jobs)
    order = Order(target, checkout.path, stock, lms, device, tier, part, variables)
    done = run_suites(order, files, console)
    console.say(
        f"{done.passed} passed, {done.failed} failed, {done.skipped} skipped "
        f"in {done.seconds:.0f} s"
    )
    console.say(f"report: {done.html}")
    console.result(done)
    if done.failed:
        raise SuiteError(
            f"{done.failed} of {done.passed + done.failed} tests failed because of what the report "
            f"says; see {done.html}",
            html=done.html,
            junit=done.junit,
        )
