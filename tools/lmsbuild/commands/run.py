# SPDX-License-Identifier: Apache-2.0
"""lmsbuild run"""

from __future__ import annotations

import time

import click

from lmsbuild import device as devices
from lmsbuild.apply import apply
from lmsbuild.checkout import fetch
from lmsbuild.console import Console
from lmsbuild.demo import demonstrate, table
from lmsbuild.download import official_wheel
from lmsbuild.environment import prepare
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

STEPS = ("fetch", "apply", "wheel", "environments", "device", "demonstration")


@click.command(
    "run",
    epilog=examples("lmsbuild run v2.6.0", "lmsbuild run v2.6.0 --device sim --json"),
)
@tag_argument
@source_option
@python_option
@jobs_option
@click.option(
    "--device", "wanted", type=click.Choice(["sim", "cuda"]),
    help="Where to train [default: a GPU if there is one].",
)  # fmt: skip
@dry_run_option
@json_option
def command(
    tag: str,
    source: str,
    python: str | None,
    jobs: int | None,
    wanted: str | None,
    dry_run: bool,
    console: Console,
) -> None:
    """Everything for TAG from source to a trained model that did not fit the device.

    Fetches, applies, builds the wheel, installs the official and the overlay wheel, and trains a
    network that needs three times the device's memory. What has not changed is reused.
    """
    target = resolve(find_project(), tag)
    device = devices.choose(wanted)
    version = python or running_python()
    if dry_run:
        console.say(f"would run for {target.label} on the {device.name}: {', '.join(STEPS)}")
        console.result({"steps": STEPS, "device": device, "python": version, "dry_run": True})
        return
    clock = _Clock(console)
    checkout = fetch(target, source, None, console)
    clock.step("fetch", checkout.route)
    applied = apply(target, checkout.path, console)
    clock.step("apply", f"{len(applied.patches)} applied, {applied.already} there already")
    built = build(target, checkout.path, version, target.work / "wheels", console, jobs)
    clock.step("wheel", f"{'unchanged' if built.reused else 'built'}, {built.wheel.name}")
    on_gpu = device.kind == "cuda"
    official = official_wheel(target.wheel, version, console)
    stock = prepare(target, "stock", official, version, on_gpu, (), console)
    lms = prepare(target, "lms", built.wheel, version, on_gpu, (), console)
    clock.step("environments", "reused" if stock.reused and lms.reused else "made")
    if not on_gpu:
        for environment in (stock, lms):
            devices.build_simulated(target, environment, console, jobs)
    clock.step("device", device.name)
    done = demonstrate(target, stock, lms, device, console)
    clock.step("demonstration", "reused" if done.reused else "trained")
    console.say("")
    console.say((done.picture.with_suffix(".txt")).read_text(encoding="utf-8"))
    console.say(f"official wheel: {done.stock_message}")
    console.table("", ["", target.label], table(done))
    console.say(f"picture: {done.picture}")
    console.say(f"numbers: {done.result}")
    if done.simulated:
        console.say("The device is simulated: no time taken here says anything about a GPU.")
    console.result({"wheel": built, "demonstration": done, "steps": clock.steps})


class _Clock:
    """Says after each step how long it took on this machine."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()
        self.steps: list[dict[str, object]] = []

    def step(self, name: str, what: str) -> None:
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        self.steps.append({"step": name, "what": what, "seconds": round(seconds, 2)})
        self._console.say(f"{name:<14} {seconds:6.1f} s  {what}")
