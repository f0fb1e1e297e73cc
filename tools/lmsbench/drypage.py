# SPDX-License-Identifier: Apache-2.0
"""The page of the benchmark on the dry device, and a plot for each profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmsbench.drycases import FACTORS, METHODS, MODELS, STEPS, WARMUP, Case

GIB = 1 << 30
Found = Mapping[str, dict[str, Any]]  # by the key of a case

_NAMES = {
    "plain": "without", "lms": "LMS", "plugin": "plug-in", "ibm": "IBM's choice",
    "ibm-ahead": "IBM's, ahead",
    "checkpoint": "checkpointing", "both": "both",
}  # fmt: skip
_SWAP = ("lms", "ibm", "ibm-ahead")  # the methods that are shown beside the bounds
_HEAD = f"""\
<!-- SPDX-License-Identifier: Apache-2.0 -->
# Benchmark on the dry device

**Every time on this page is modelled.** No GPU has run it: sizes, bytes and what runs out of memory are those of
torch's own allocator and of the engine; times follow from data sheets ([simcuda.md](../../simcuda.md#dry)) and
are what those would allow.

Made by `python -m lmsbench.dry`: {WARMUP + STEPS} steps, SGD with momentum, fp32; `-amp`: fp16 by autocast, with a
`GradScaler`. *Memory* is what the run without a limit allocates at most, divided by the factor. *Speed* is that of
the run without a limit divided by this one's, a step. *Bytes / bound* and *time / bound* are of all steps, against
what [no swapper could do better](../../bounds.md). *Both*: `save_on_cpu` of what checkpointing keeps. What was out of
memory is not run with less. *Impossible*: one operator's tensors alone are larger than the
memory, so whole tensors cannot be swapped there. An empty cell was not measured. *Plug-in*: `torch_lms` beside the
official torch. *IBM's choice*: this engine with the choices of IBM's Large Model Support, as its documentation and
statistics tell them: the first idle tensor that is large enough, in the order of their unpinning, else neighbours,
else all; no host copy is kept after a page-in; nothing is paged out ahead. *IBM's, ahead*: with its speculative
page-out: what goes idle and is expected to be evicted is copied out at once, and stays until it is. Its
documentation does not say how that is foretold; here a tensor is expected to fare as the last one of its size that
had been used as often. What the engine does beside choosing (it makes operators run again, for example) is in both
as well."""  # noqa: E501
_LARGEST = """\
## Largest size that trains (modelled devices, true sizes)

In all memory of the profile's device and of its machine, among sizes whose elements (pixels,
voxels, samples) grow by a tenth; in brackets the elements, by those of the largest size that trains
without any method."""


def step(result: Mapping[str, Any]) -> float:
    """Modelled seconds of a step."""
    seconds: list[float] = result["seconds"]
    return sum(seconds) / len(seconds)


def write(page: Path, found: Found) -> None:
    """The page, with plots beside it where matplotlib is installed."""
    page.parent.mkdir(parents=True, exist_ok=True)
    plots = [file.name for file in plot(found, page.parent)]
    page.write_text(render(found, plots), encoding="utf-8")


def render(found: Found, plots: Sequence[str] = ()) -> str:
    """The page of all profiles that were measured, in the order in which they were."""
    parts = [_HEAD]
    for profile in _profiles(found):
        if rows := _factors(found, profile):
            columns = ["model", "factor", "memory"]
            for method in METHODS:
                columns.append(f"{_NAMES.get(method, method)}: speed")
                columns += ["bytes / bound", "time / bound"] if method in _SWAP else []
            parts += [f"## {profile} (modelled)", _table(columns, rows)]
        if _picture(profile) in plots:
            parts.append(f"![speed against factor, {profile}, modelled]({_picture(profile)})")
    if largest := _largest(found):
        columns = ["profile", "model", *(_NAMES.get(m, m) for m in ("plain", *METHODS))]
        parts += [_LARGEST, _table(columns, largest)]
    return "\n\n".join(parts) + "\n"


def _profiles(found: Found) -> list[str]:
    return list(dict.fromkeys(key.split("/")[0] for key in found))


def _picture(profile: str) -> str:
    return f"{profile}.svg"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _factors(found: Found, profile: str) -> list[list[str]]:
    rows = []
    for model, what in MODELS.items():
        plain = found.get(Case(profile, model, what.size, "plain", 0).key)
        if plain is None or plain["status"] != "ok":
            continue
        over: dict[str, dict[str, Any]] = {}  # methods that had too little memory already
        for factor in FACTORS:
            of = {
                method: found.get(
                    Case(profile, model, what.size, method, factor).key, over.get(method)
                )
                for method in ("bound", *METHODS)
            }
            over |= {m: result for m, result in of.items() if result and result["status"] == "oom"}
            cells = [f"{model} {what.size}", f"{factor:g}"]
            cells.append(f"{plain['peak'] / factor / GIB:.1f} GiB")
            for method in METHODS:
                cells.append(_speed(plain, of[method]))
                if method in _SWAP:
                    cells += _shares(plain, of[method], of["bound"])
            rows.append(cells)
    return rows


def _shares(
    plain: dict[str, Any], swaps: dict[str, Any] | None, bound: dict[str, Any] | None
) -> list[str]:
    """The bytes and the time of what swaps, by the bounds'."""
    if bound and bound["status"] != "ok":
        return [bound["status"]] * 2
    if not bound or not swaps or swaps["status"] != "ok":
        return ["", ""]
    return [
        # Without what any run copies: the weights, once.
        f"{(swaps['bytes'] - plain['bytes']) / bound['bytes']:.2f}",
        f"{swaps['all_seconds'] / bound['all_seconds']:.2f}",
    ]


def _speed(plain: dict[str, Any], result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    if result["status"] != "ok":
        return {"oom": "out of memory"}.get(result["status"], result["status"])
    return f"{step(plain) / step(result):.2f}"


def _largest(found: Found) -> list[list[str]]:
    rows = []
    for profile in _profiles(found):
        for model, what in MODELS.items():
            sizes = {m: _last(found, profile, model, m) for m in ("plain", *METHODS)}
            cells = []
            for method, size in sizes.items():
                cell = {None: "", 0: "none"}.get(size, f"{size}")
                if size and sizes["plain"] and method != "plain":
                    cell += f" ({(size / sizes['plain']) ** what.power:.1f}x)"
                cells.append(cell)
            if any(cells):
                rows.append([profile, f"{model} ({what.grows})", *cells])
    return rows


def _last(found: Found, profile: str, model: str, method: str) -> int | None:
    """None: it is not known yet; 0: no size trains."""
    sizes = MODELS[model].sizes()
    results = [found.get(Case(profile, model, size, method, None).key) for size in sizes]
    trains = [i for i, result in enumerate(results) if result and result["status"] == "ok"]
    last = max(trains, default=-1)
    above = results[last + 1] if last + 1 < len(sizes) else {}
    if above is None or not any(results):
        return None
    return sizes[last] if trains else 0


def plot(found: Found, folder: Path) -> list[Path]:
    """A picture a profile, the same bytes for the same results; none without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text as text, and names of parts that are no accident.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lmsbench"})
    files = []
    for profile in _profiles(found):
        lines = {model: _lines(found, profile, model) for model in MODELS}
        lines = {model: curves for model, curves in lines.items() if curves}
        if not lines:
            continue
        figure, axes = pyplot.subplots(
            1, len(lines), figsize=(3.2 * len(lines), 3), sharey=True, squeeze=False
        )
        for axis, (model, curves) in zip(axes[0], lines.items(), strict=True):
            for label, points in curves.items():
                style = "k:" if label == "bound" else "o-"
                axis.plot(*zip(*points, strict=True), style, label=label, markersize=4)
            axis.set(title=f"{model} {MODELS[model].size}", xlabel="needs / has", ylim=(0, 1.05))
            axis.set_xticks(FACTORS)
        axes[0][0].set_ylabel("speed, modelled")
        axes[0][-1].legend(fontsize=7)
        figure.suptitle(f"{profile}, modelled: speed relative to no limit", fontsize=10)
        figure.tight_layout()
        files.append(folder / _picture(profile))
        figure.savefig(files[-1], metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return files


def _lines(found: Found, profile: str, model: str) -> dict[str, list[tuple[float, float]]]:
    """Method -> (factor, speed) where it trains; `bound` of the time of all steps."""
    size = MODELS[model].size
    plain = found.get(Case(profile, model, size, "plain", 0).key)
    curves: dict[str, list[tuple[float, float]]] = {}
    for method in (*METHODS, "bound") if plain and plain["status"] == "ok" else ():
        assert plain is not None
        for factor in FACTORS:
            result = found.get(Case(profile, model, size, method, factor).key)
            if result is None or result["status"] != "ok":
                continue
            if method == "bound":
                speed = min(1.0, plain["all_seconds"] / result["all_seconds"])
            else:
                speed = step(plain) / step(result)
            curves.setdefault(_NAMES.get(method, method), []).append((factor, speed))
    return curves
