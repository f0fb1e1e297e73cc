# SPDX-License-Identifier: Apache-2.0
"""The memory picture of the demonstration: a PNG, and the same for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
_BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Trace:
    """Samples of one run: progress, bytes used, bytes out so far, bytes in so far."""

    label: str
    unit: str
    samples: list[list[float]]
    died: bool


def draw(path: Path, traces: Sequence[Trace], capacity: int, title: str) -> None:
    """Write the picture as PNG: memory above, bytes moved below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (memory, moved) = pyplot.subplots(
        2, 1, figsize=(10, 6.5), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    colours = ("#9aa5b1", "#c0392b", "#1f6fb2")
    for trace, colour in zip(traces, colours, strict=False):
        x = [sample[0] for sample in trace.samples]
        used = [sample[1] / MIB for sample in trace.samples]
        memory.plot(x, used, color=colour, label=trace.label, linewidth=1.4)
        if trace.died and x:
            memory.plot(x[-1], used[-1], "x", color=colour, markersize=11, markeredgewidth=3)
    memory.axhline(capacity / MIB, color="black", linestyle="--", linewidth=1)
    memory.annotate(
        f"device memory {capacity / MIB:.0f} MiB", (0, capacity / MIB), (4, 4),
        textcoords="offset points", fontsize=9,
    )  # fmt: skip
    memory.set_ylabel("MiB allocated on the device")
    memory.set_title(title, fontsize=11)
    memory.legend(loc="upper right", fontsize=9)
    last = traces[-1]
    x = [sample[0] for sample in last.samples]
    moved.plot(x, [s[2] / MIB for s in last.samples], color="#d68910", label="out of the device")
    moved.plot(x, [s[3] / MIB for s in last.samples], color="#239b56", label="into the device")
    moved.set_ylabel("MiB copied so far")
    moved.set_xlabel(last.unit)
    moved.legend(loc="upper left", fontsize=9)
    for axes in (memory, moved):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def terminal(trace: Trace, top: float, capacity: int, width: int = 64, height: int = 6) -> str:
    """Bytes used over progress as block characters, `top` bytes high, a mark at `capacity`."""
    columns = _columns(trace.samples, width)
    marked = min(height - 1, int(capacity / top * height))
    lines = []
    for row in reversed(range(height)):
        cells = ""
        for value in columns:
            level = (value / top * height - row) * (len(_BLOCKS) - 1)
            cells += _BLOCKS[max(0, min(len(_BLOCKS) - 1, round(level)))]
        mark = "◄ device" if row == marked else ""
        lines.append(f"{(row + 1) * top / height / MIB:7.0f} MiB │{cells}│{mark}".rstrip())
    return "\n".join([f"{trace.label}{' (dies)' if trace.died else ''}", *lines])


def _columns(samples: list[list[float]], width: int) -> list[float]:
    """The most bytes used in each of `width` equal parts of the progress."""
    if not samples:
        return [0.0] * width
    first, last = samples[0][0], samples[-1][0]
    columns = [0.0] * width
    for sample in samples:
        share = (sample[0] - first) / (last - first) if last > first else 0.0
        index = min(width - 1, int(share * width))
        columns[index] = max(columns[index], sample[1])
    for index in range(1, width):
        columns[index] = columns[index] or columns[index - 1]
    return columns
