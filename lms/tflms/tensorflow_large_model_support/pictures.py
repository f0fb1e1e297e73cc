# SPDX-License-Identifier: Apache-2.0
"""What simulated runs looked like: memory by step, and how far tensors are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorflow_large_model_support.plan import Plan
from tensorflow_large_model_support.simulator import Memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(".lms")
_GIB = 1 << 30


def traced(memory: Memory, title: str, limit: int | None = None) -> Figure:
    """Swapped bytes in host memory above, device memory below, over the steps of a run."""
    figure = _figure()
    above, below = figure.subplots(2, 1, sharex=True)
    steps = range(len(memory.device))
    for axes, sizes, name in (
        (above, memory.host, "swapped out, in host memory"),
        (below, memory.device, "device memory"),
    ):
        axes.fill_between(steps, [size / _GIB for size in sizes], step="mid", linewidth=0.8)
        axes.set_ylabel(f"{name}\n(GiB)")
        axes.set_ylim(bottom=0)
    if limit is not None:
        below.axhline(limit / _GIB, linestyle="--", linewidth=0.8, label="memory for simulation")
        below.legend(loc="upper right")
    below.set_xlabel("allocation step")
    figure.suptitle(title)
    return figure


def distances(levels: Sequence[int], threshold: int | None) -> Figure:
    """How many edges go over how many topological levels."""
    figure = _figure()
    axes = figure.subplots()
    axes.hist(levels, bins=min(60, max(levels, default=1)), log=True)
    if threshold is not None:
        axes.axvline(threshold, linestyle="--", linewidth=0.8, label="swapout_threshold")
        axes.legend(loc="upper right")
    axes.set_xlabel("topological distance")
    axes.set_ylabel("edges")
    return figure


def name_of(plan: Plan) -> str:
    settings = plan.settings
    if plan.each:
        return f"tflms_simulator_mem_traces_best_sync_mode{settings.sync_mode}"
    return (
        f"tflms_simulator_mem_traces_swapout_threshold{settings.threshold}"
        f"_swapin_ahead{settings.ahead}_swapin_groupby{settings.groupby}"
        f"_sync_mode{settings.sync_mode}"
    )


def save(figures: Mapping[str, Figure], folder: Path = FOLDER) -> list[Path]:
    """As PDF, and as PNG beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{kind}" for name in figures for kind in ("pdf", "png")]
    for file in files:
        figures[file.stem].savefig(file)
    return files


def _figure() -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the pictures need matplotlib; `pip install matplotlib`") from error
    return Figure(figsize=(8, 5), layout="constrained")
