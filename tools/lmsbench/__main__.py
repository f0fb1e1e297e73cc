# SPDX-License-Identifier: Apache-2.0
"""python -m lmsbench: see --help."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path

from lmsbench import report
from lmsbench.choices import several
from lmsbench.ladder import Ladder, Plan, Results, ask
from lmsbench.models import WORKLOADS
from lmsbench.point import METHODS, Point

EPILOG = """examples:
  python -m lmsbench run --results out/results.jsonl --minutes 9   # again: goes on where it stopped
  python -m lmsbench run --results out/results.jsonl --caps 8G --models gpt2
  python -m lmsbench trace --model resnet50 --size 3072 --cap 8G --out out/trace.json.gz
  python -m lmsbench report --results out/results.jsonl            # out/README.md and pictures
  python -m lmsbench compare --plugin A.jsonl --patch B.jsonl --page docs/plugin.md
without a GPU:
  python -m simcuda --memory 256M -m lmsbench run --scale 16 --caps 48M,64M --results FILE
"""


def size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([MG]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text} is no size; give e.g. 8G or 512M")
    return int(match[1]) << {"": 0, "M": 20, "G": 30}[match[2]]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        "python -m lmsbench", description="Benchmark Large Model Support on this machine's device.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = top.add_subparsers(dest="command", required=True)
    default = Plan()
    run = commands.add_parser("run", help="measure what is not measured yet")
    page = commands.add_parser("report", help="write the page beside the results")
    both = commands.add_parser("compare", help="write the plug-in beside the patch into a page")
    both.add_argument("--plugin", type=Path, required=True, metavar="FILE", help="its results")
    both.add_argument("--patch", type=Path, required=True, metavar="FILE", help="its results")
    both.add_argument(
        "--page", type=Path, required=True, metavar="FILE",
        help="has lines `<!-- sweep: ... -->` and `<!-- end of sweep -->` around the table",
    )  # fmt: skip
    for command in (run, page):
        command.add_argument("--results", type=Path, required=True, metavar="FILE")
    for command in (run, page, both):
        command.add_argument("--models", type=several(WORKLOADS), default=default.models)
        command.add_argument("--methods", type=several(METHODS), default=default.methods)
        command.add_argument(
            "--caps", type=lambda t: tuple(map(size, t.split(","))), default=default.caps,
            help="device memory, in the order measured [default: 8G,4G,16G]",
        )  # fmt: skip
        command.add_argument("--scale", type=int, default=1, help="shrink the models by this")
        command.add_argument("--growth", type=float, default=default.growth)
        command.add_argument("--steps", type=int, default=default.steps)
        command.add_argument("--warmup", type=int, default=default.warmup)
        command.add_argument(
            "--capped-only", action="store_true", help="no LMS run beyond the card itself"
        )
        command.add_argument("--host-limit", type=size, default=default.host_limit)
    run.add_argument("--minutes", type=float, default=60, help="begin no point after this long")
    run.add_argument("--point-seconds", type=int, default=default.point_seconds)
    trace = commands.add_parser("trace", help="profile one step with Large Model Support")
    trace.add_argument("--model", choices=list(WORKLOADS), required=True)
    trace.add_argument("--size", type=int, required=True)
    trace.add_argument("--cap", type=size, required=True)
    trace.add_argument("--scale", type=int, default=1)
    trace.add_argument("--out", type=Path, required=True, metavar="FILE.json.gz")
    return top


def _plan(options: argparse.Namespace) -> Plan:
    return Plan(
        models=options.models,
        methods=options.methods,
        caps=options.caps,
        uncapped=not options.capped_only,
        scale=options.scale,
        growth=options.growth,
        host_limit=options.host_limit,
        steps=options.steps,
        warmup=options.warmup,
        point_seconds=getattr(options, "point_seconds", 0),
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _run(options: argparse.Namespace) -> int:
    results = Results.load(options.results)
    machine = ask('"machine"', 120)
    if "device" not in machine:
        return _fail(f"nothing can be measured because {machine['message']}; run it where torch is")
    about = {"machine": machine, "link": None if machine["simulated"] else ask('"link"', 120)}
    results.add({"about": about})
    budget = time.monotonic() + 60 * options.minutes
    complete = Ladder(_plan(options), results, budget, _say).run()
    _say(f"{len(results.points)} points in {results.path}")
    if not complete:
        _say("the time is over; run the same command to go on")
    return 0


def _report(options: argparse.Namespace) -> int:
    results = Results.load(options.results)
    if not results.about:
        return _fail(f"{options.results} has no results because no run wrote any; `run` first")
    plan = _plan(options)
    folder = options.results.parent
    page = report.render(results, plan, f"python -m lmsbench run --results {options.results.name}")
    pictures = []
    if not results.about[-1]["machine"]["simulated"]:
        try:
            pictures = report.plot(results, plan, folder)
        except ImportError:
            _say("no pictures: matplotlib is not installed")
    page += "".join(f"\n![{picture.stem}]({picture.name})\n" for picture in pictures)
    (folder / "README.md").write_text(page, encoding="utf-8")
    _say(str(folder / "README.md"))
    return 0


def _compare(options: argparse.Namespace) -> int:
    patch, plugin = Results.load(options.patch), Results.load(options.plugin)
    for results in (patch, plugin):
        if not results.points:
            return _fail(f"{results.path} has no results because no run wrote any; `run` first")
    table = report.compare(patch, plugin, _plan(options))
    text = options.page.read_text(encoding="utf-8")
    changed, count = re.subn(
        r"(<!-- sweep:[^\n]*-->\n).*?(<!-- end of sweep -->)",
        lambda match: f"{match[1]}{table}\n{match[2]}", text, flags=re.DOTALL,
    )  # fmt: skip
    if count != 1:
        return _fail(
            f"{options.page} cannot take the table because it has no lines `<!-- sweep: -->` and "
            "`<!-- end of sweep -->` around its place; add them"
        )
    options.page.write_text(changed, encoding="utf-8")
    _say(table)
    return 0


def _trace(options: argparse.Namespace) -> int:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    point = Point(
        options.model, options.size, "lms", options.cap, options.scale,
        trace=str(options.out.absolute()),
    )  # fmt: skip
    result = ask(json.dumps(asdict(point)), 600)
    _say(json.dumps(result, indent=1))
    return 0 if result["status"] == "ok" else 1


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


def main() -> int:
    options = parser().parse_args()
    try:
        commands = {"run": _run, "report": _report, "compare": _compare, "trace": _trace}
        return commands[options.command](options)
    except (ValueError, OSError) as error:
        return _fail(f"{error}")
    except KeyboardInterrupt:
        return _fail("interrupted; what was measured is kept")


if __name__ == "__main__":
    sys.exit(main())
