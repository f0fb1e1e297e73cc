# SPDX-License-Identifier: Apache-2.0
"""lmsbuild run"""

from __future__ import annotations

import click

from lmsbuild.base.console import Console
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import (
    build_options,
    dry_options,
    dry_run_option,
    examples,
    json_option,
    markdown_option,
    tag_argument,
)
from lmsbuild.places import device as devices
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.pipeline import Wanted, prepared
from lmsbuild.tags.frameworks import resolve
from lmsbuild.trials.demo import demonstrate, table

STEPS = ("fetch", "apply", "wheel", "environments", "device", "demonstration")


@click.command(
    "run",
    epilog=examples(
        "lmsbuild run v2.6.0",
        "lmsbuild run v2.6.0 --device sim --json",
        "lmsbuild run v2.6.0 --dry",
    ),
)
@tag_argument
@build_options
@click.option(
    "--device", "wanted", type=click.Choice(["sim", "cuda"]),
    help="Where to train [default: a GPU if there is one].",
)  # fmt: skip
@dry_options
@dry_run_option
@markdown_option
@json_option
def command(
    *, tag: str, choices: Choices, wanted: str | None, profile: str | None, dry_run: bool,
    console: Console,
) -> None:  # fmt: skip
    """Everything for TAG from source to a trained model that did not fit the device.

    Fetches, applies, builds the wheel, installs the official and the overlay wheel, and trains a
    network that needs three times the device's memory. What has not changed is reused. With --dry
    its images are so large that this is the memory of the profile's GPU.
    """
    target = resolve(find_project(), tag).for_cuda(choices.cuda)
    device = devices.choose(target, wanted, profile)
    if dry_run:
        console.say(f"would run for {target.label} on the {device.name}: {', '.join(STEPS)}")
        console.result({"steps": STEPS, "device": device, "choices": choices})
        return
    ready = prepared(Wanted(target=target, choices=choices, device=device), console)
    assert ready.stock is not None
    with console.step("demonstration") as step:
        done = demonstrate(target, ready.stock, ready.lms, device, console)
        step.note = "reused" if done.reused else "trained"
    console.say("")
    console.say((done.picture.with_suffix(".txt")).read_text(encoding="utf-8"))
    console.say(f"official wheel: {done.stock_message}")
    console.table("", ["", target.label], table(done))
    console.say(f"picture: {done.picture}")
    console.say(f"numbers: {done.result}")
    if done.profile:
        console.say("Sizes and bytes are true; every time is modelled, and no value was computed.")
    elif done.simulated:
        console.say(f"On the {done.device}: no time taken here says anything about a GPU.")
    modelled = device.kind == "dry"
    console.result({"wheel": ready.built, "demonstration": done, "modelled": modelled})
