# SPDX-License-Identifier: Apache-2.0
"""lmsbuild bench"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.base.project import find_project
from lmsbuild.cli.options import (
    UserPath,
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
from lmsbuild.ship.pipeline import Wanted, prepared, with_baseline
from lmsbuild.tags.frameworks import resolve
from lmsbuild.trials.bench import Benchmark
from lmsbuild.wheel.plugin import resolve_runtime


@click.command(
    "bench",
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "lmsbuild bench v2.6.0",
        "lmsbuild bench v2.6.0 --minutes 60 --results bench/results.jsonl",
        "lmsbuild bench v2.6.0 --dry --profile h200-141gb-pcie5",
        "lmsbuild bench v2.11.0 --plugin -- --caps 8G --models gpt2",
    ),
)
@tag_argument
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--device", "wanted", type=click.Choice(["sim", "cuda"]),
    help="What to measure on [default: a GPU if there is one].",
)  # fmt: skip
@click.option(
    "--minutes", type=click.FloatRange(min=0), default=10, show_default=True,
    help="Begin no measurement after this long.",
)  # fmt: skip
@click.option(
    "--results", metavar="FILE", type=UserPath(dir_okay=False),
    help="The results, to which this run adds [default: work/<framework>-<tag>/bench/...].",
)  # fmt: skip
@click.option(
    "--compare", "other", metavar="FILE",
    type=UserPath(dir_okay=False, exists=True),
    help="The results of --plugin: write a table of both into --page.",
)  # fmt: skip
@click.option(
    "--page", metavar="FILE", type=UserPath(dir_okay=False, exists=True),
    help="A page with a place for the table of --compare.",
)  # fmt: skip
@click.option("--plugin", is_flag=True, help="Measure torch_lms beside the official wheel.")
@click.option(
    "--compared", is_flag=True,
    help="With --dry: measure the plug-in and IBM's algorithm as well, which are built.",
)  # fmt: skip
@build_options
@dry_options
@dry_run_option
@markdown_option
@json_option
def command(
    *,
    tag: str,
    arguments: tuple[str, ...],
    wanted: str | None,
    minutes: float,
    results: Path | None,
    other: Path | None,
    page: Path | None,
    plugin: bool,
    compared: bool,
    profile: str | None,
    choices: Choices,
    dry_run: bool,
    console: Console,
) -> None:
    """Measure what trains, and how fast: without and with Large Model Support, with save_on_cpu
    and with activation checkpointing.

    ResNet-50 and 3D U-Net at growing resolution and GPT-2 at growing batch, at several caps of
    device memory. Each result is kept as soon as it is there, and the same command goes on where
    it stopped. ARGUMENTS go to `python -m lmsbench run` (see its --help). On the simulated device
    small models show sizes and bytes, and no time.

    With --dry sizes are true and times are modelled, and there are bounds that no swapper could
    beat; ARGUMENTS go to `python -m lmsbench.dry`.
    """
    if (other is None) != (page is None):
        raise UsageError(
            "the results cannot be compared because --compare and --page go together; give both"
        )
    if profile and other:
        raise UsageError(
            "--compare cannot go with --dry because its table is of sizes on other devices; leave "
            "one of them out"
        )
    if compared and (plugin or not profile):
        raise UsageError(
            "--compared cannot be used because it is of the dry device and the patched wheel; give "
            "--dry, and leave --plugin out"
        )
    found = resolve_runtime(find_project(), tag, "benchmark") if plugin else None
    target = found.target if found else resolve(find_project(), tag).for_cuda(choices.cuda)
    if target.framework.shows.device != "simcuda":
        raise UsageError(
            f"{target.label} cannot be measured because the benchmark's models are PyTorch's; "
            f"`lmsbuild run {target.tag_name}` shows what it trains"
        )
    device = devices.choose(target, wanted, profile)
    name = f"{device.kind}-{'plugin' if plugin else 'patched'}"
    file = results.absolute() if results else target.work / "bench" / name / "results.jsonl"
    if dry_run:
        console.say(f"would measure {target.label} on the {device.name} and add to {file}")
        console.result({"results": file, "device": device})
        return
    only = Wanted(target=target, choices=choices, device=device, plugin=found, stock=False)
    ready = prepared(only, console)
    elsewhere = {}
    if compared:
        beside = replace(only, plugin=resolve_runtime(target.project, tag, "benchmark"))
        elsewhere = {
            "plugin": prepared(beside, console).lms,
            "ibm": with_baseline(only, ready, "ibm", console),
        }
    with console.step("benchmark"):
        tools = target.project.tools
        bench = Benchmark(ready.lms, device, ready.variables, file, arguments, tools, elsewhere)
        made = bench.run(minutes, console)
        if made is None:
            return
        if other and page:
            bench.compare(other.absolute(), page.absolute(), console)
    console.say(made.read_text(encoding="utf-8"))
    console.say(f"results: {file}")
    console.result(
        {"results": file, "page": made, "device": device, "modelled": device.kind == "dry"}
    )
