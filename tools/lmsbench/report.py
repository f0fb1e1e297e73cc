# SPDX-License-Identifier: Apache-2.0
"""The page of a benchmark: Markdown tables, and plots where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lmsbench.ladder import Plan, Results, rungs
from lmsbench.models import WORKLOADS

GIB = 1 << 30


def render(results: Results, plan: Plan, command: str) -> str:
    """The page. On a simulated device it has bytes and sizes and no time."""
    machine = results.about[-1]["machine"]
    timed = not machine["simulated"]
    parts = ["<!-- SPDX-License-Identifier: Apache-2.0 -->", "# Benchmark", _about(results)]
    parts += [f"Made by\n\n    {command}\n\nRaw numbers: `{results.path.name}`."]
    if not timed:
        parts.append(
            "**The device is simulated.** Sizes and bytes hold; no time is shown, because none "
            "taken there says anything about a GPU."
        )
    parts += ["## Largest size that trains", _table(_largest(results, plan))]
    parts.append("The factor compares elements (pixels, voxels, samples) with `plain`.")
    if timed:
        parts += [
            "## Speed, relative to the same size without a cap",
            _table(_speeds(results, plan)),
            "`link`: bytes that Large Model Support copied in a step, both ways, by what the link "
            "would have carried in that time.",
        ]
    else:
        parts += ["## Bytes copied in a step", _table(_bytes(results, plan))]
    parts += ["## Losses", _losses(results, plan)]
    return "\n\n".join(parts) + "\n"


def _about(results: Results) -> str:
    rows = [["run", "device", "memory", "host memory", "torch", "link out", "in", "both"]]
    for number, about in enumerate(results.about, 1):
        machine, link = about["machine"], about.get("link") or {}
        speeds = [
            f"{link[way] / 1e9:.1f} GB/s" if way in link else "" for way in ("out", "in", "both")
        ]
        rows.append(
            [
                str(number), machine["device"], _gib(machine["device_memory"]),
                _gib(machine["host_memory"]), machine["torch"], *speeds,
            ]
        )  # fmt: skip
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"


def _cap(cap: int) -> str:
    return _gib(cap) if cap else "none"


def _last(results: Results, model: str, method: str, cap: int, plan: Plan) -> int:
    return max((size for size, _ in rungs(results, model, method, cap, plan)), default=0)


def _largest(results: Results, plan: Plan) -> list[list[str]]:
    rows = [["model", "cap", *plan.methods]]
    for model in plan.models:
        workload = WORKLOADS[model]
        for cap in (*plan.caps, 0):
            last = {m: _last(results, model, m, cap, plan) for m in plan.methods}
            if not any(last.values()):
                continue
            cells = []
            for method in plan.methods:
                factor = ""
                if last[method] and last.get("plain") and method != "plain":
                    ratio = workload.elements(last[method]) / workload.elements(last["plain"])
                    factor = f" ({ratio:.1f}x)"
                cells.append(f"{last[method]}{factor}" if last[method] else "none")
            rows.append([f"{model} ({workload.grows})", _cap(cap), *cells])
    return rows


def _points(results: Results, plan: Plan) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """(model, cap, size, method -> result) wherever there is one."""
    for model in plan.models:
        for cap in (*plan.caps, 0):
            found: dict[int, dict[str, Any]] = {}
            for method in plan.methods:
                for size, result in rungs(results, model, method, cap, plan):
                    found.setdefault(size, {})[method] = result
            for size in sorted(found):
                yield model, cap, size, found[size]


def _seconds(result: dict[str, Any]) -> float:
    seconds: list[float] = result["seconds"]
    return sum(seconds) / len(seconds)


def _copied(result: dict[str, Any], plan: Plan) -> float:
    lms = result["lms"]
    both: int = lms["lms.paged_out_bytes"] + lms["lms.paged_in_bytes"]
    return both / (plan.warmup + plan.steps)


def _speeds(results: Results, plan: Plan) -> list[list[str]]:
    rows = [["model", "cap", "size", "peak / cap", *plan.methods, "link"]]
    for model, cap, size, methods in _points(results, plan):
        free = results_of(results, plan, model, size)
        if cap == 0 and set(methods) == {"plain"}:
            continue
        cells = []
        for method in plan.methods:
            result = methods.get(method)
            if result is None:
                cells.append("")
            elif free is None:
                cells.append(f"{_seconds(result):.2f} s")
            else:
                cells.append(f"{_seconds(free) / _seconds(result):.2f}")
        link = ""
        speed = (results.about[-1].get("link") or {}).get("both")
        if "lms" in methods and speed:
            share = _copied(methods["lms"], plan) / _seconds(methods["lms"]) / speed
            link = f"{100 * share:.0f} %"
        over = f"{free['peak_allocated'] / cap:.2f}" if free and cap else ""
        rows.append([model, _cap(cap), str(size), over, *cells, link])
    return rows


def results_of(results: Results, plan: Plan, model: str, size: int) -> dict[str, Any] | None:
    """The same size without a cap and without any method."""
    return dict(rungs(results, model, "plain", 0, plan)).get(size)


def _bytes(results: Results, plan: Plan) -> list[list[str]]:
    rows = [["model", "cap", "size", "peak", "peak / cap", "copied", "copied / (peak - cap)"]]
    for model, cap, size, methods in _points(results, plan):
        free = results_of(results, plan, model, size)
        if "lms" not in methods or free is None or not cap:
            continue
        peak, copied = free["peak_allocated"], _copied(methods["lms"], plan)
        excess = peak - cap
        share = f"{copied / excess:.2f}" if excess > 0 else ""
        rows.append(
            [
                model, _cap(cap), str(size), _gib(peak), f"{peak / cap:.2f}", _gib(int(copied)),
                share,
            ]
        )  # fmt: skip
    return rows


def _losses(results: Results, plan: Plan) -> str:
    same, different = 0, []
    for model, cap, size, methods in _points(results, plan):
        free = results_of(results, plan, model, size)
        if free is None or "lms" not in methods:
            continue
        if methods["lms"]["losses"] == free["losses"]:
            same += 1
        else:
            different.append(f"{model} {size} at {_cap(cap)}")
    words = (
        f"{same} runs with Large Model Support gave the losses of the run without a cap, bit for "
    )
    words += "bit."
    return words + (f" Different: {', '.join(different)}." if different else " None differed.")


def compare(patch: Results, plugin: Results, plan: Plan) -> str:
    """A table of the largest sizes that train on the stock torch, with the plug-in and with the
    patch, and of what these two copy at the largest size that both train.

    Sizes of `plain` are taken from the plug-in's results, whose torch is the stock one.
    """
    rows = [
        ["model", "device", "stock", "plug-in", "patch"]
        + [f"copied a step, {name}" for name in ("plug-in", "patch")]
    ]
    for model in plan.models:
        for cap in plan.caps:
            ours = [dict(rungs(r, model, "lms", cap, plan)) for r in (plugin, patch)]
            both = ours[0].keys() & ours[1].keys()
            if not both:
                continue
            stock = _last(plugin, model, "plain", cap, plan)
            copied = [_copied(found[max(both)], plan) / (1 << 20) for found in ours]
            rows.append(
                [
                    f"{model} ({WORKLOADS[model].grows})", f"{cap >> 20} MiB",
                    *map(str, [stock or "none", *(max(found) for found in ours)]),
                    *(f"{amount:.1f} MiB at {max(both)}" for amount in copied),
                ]
            )  # fmt: skip
    return _table(rows)


def plot(results: Results, plan: Plan, folder: Path) -> list[Path]:
    """One picture a model: speed against size for every method and cap. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    files = []
    for model in plan.models:
        caps = [cap for cap in plan.caps if list(rungs(results, model, "lms", cap, plan))]
        if not caps:
            continue
        figure, axes = pyplot.subplots(1, len(caps), figsize=(5 * len(caps), 4), squeeze=False)
        for axis, cap in zip(axes[0], caps, strict=True):
            for method, at in [("plain", 0), *((method, cap) for method in plan.methods)]:
                found = list(rungs(results, model, method, at, plan))
                label = "no cap" if not at else method
                speeds = [result["samples_per_second"] for _, result in found]
                axis.plot([size for size, _ in found], speeds, marker="o", label=label)
            axis.set(title=f"{model}, {_cap(cap)}", xlabel=WORKLOADS[model].grows, yscale="log")
            axis.set_ylabel("samples / s")
            axis.legend()
        figure.tight_layout()
        files.append(folder / f"{model}.png")
        figure.savefig(files[-1], dpi=110)
        pyplot.close(figure)
    return files
