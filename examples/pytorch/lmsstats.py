# SPDX-License-Identifier: Apache-2.0
"""How long batches take, and what Large Model Support moves for them.

    stats = LMSStatsLogger("steps.csv", megapixels=0.25)
    for image, label in loader:
        with stats:
            train(image, label)
    stats.finish()

The time is the device's own, from one event on the current stream to another.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean, median
from types import TracebackType
from typing import Any

import torch

WARM_UP = 2  # batches that no mean counts: libraries choose their kernels, the pool grows
MIB = 1 << 20

# Of torch.cuda.memory_stats(); a torch without Large Model Support has the first two alone.
_PEAKS = {
    "allocated_peak_mib": "allocated_bytes.all.peak",
    "reserved_peak_mib": "reserved_bytes.all.peak",
    "pinned_peak_mib": "pinned_bytes.all.peak",
}
_COUNTS = {
    "reclaimed": "reclaimed",
    "reclaimed_mib": "reclaimed_bytes",
    **{
        f"{route}_allocs": f"alloc_distribution.{route}"
        for route in (
            "freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "reclaim_all",
            "cudamalloc_retry",
        )
    },
}  # fmt: skip


class LMSStats:
    """A row for each batch: its time, the peaks of memory, and what was counted meanwhile.

    `megapixels` is what a batch has of them, or of whatever else its speed is to be told in.
    """

    def __init__(self, megapixels: float = 0.0) -> None:
        self.megapixels = megapixels
        self.epoch = 0
        self.rows: list[dict[str, float]] = []

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_stats()
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begin.record()

    def end(self) -> None:
        self._end.record()
        self._end.synchronize()
        seconds = self._begin.elapsed_time(self._end) / 1000
        now = torch.cuda.memory_stats()
        peaks = {name: now.get(key, 0) for name, key in _PEAKS.items()}
        counts = {name: now.get(key, 0) - self._before.get(key, 0) for name, key in _COUNTS.items()}
        row = {
            "epoch": self.epoch,
            "step": len(self.rows),
            "seconds": seconds,
            "megapixels_per_second": self.megapixels / seconds if seconds else float("inf"),
            **{
                name: value / MIB if name.endswith("_mib") else value
                for name, value in (peaks | counts).items()
            },
        }
        self.rows.append(row)
        self.batch(row)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.end()

    def batch(self, row: dict[str, float]) -> None:
        """For what is done with each row as it comes."""

    def finish(self) -> None:
        """For what is done at the end."""

    def column(self, name: str) -> list[float]:
        """Of the batches after the first WARM_UP; of all of them if there are no more."""
        return [row[name] for row in self.rows[WARM_UP:] or self.rows]


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row)
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(row)


class LMSStatsLogger(LMSStats):
    """Writes the rows to a CSV file, each as it comes."""

    def __init__(self, path: str | Path, megapixels: float = 0.0) -> None:
        super().__init__(megapixels)
        self._path = Path(path)
        self._path.unlink(missing_ok=True)

    def batch(self, row: dict[str, float]) -> None:
        _append(self._path, row)


class LMSStatsSummary(LMSStats):
    """Adds one row to a CSV file at the end, of the batches after the first WARM_UP: mean and
    median of time and speed, peaks, and means of what was counted. `about` begins the row."""

    def __init__(
        self, path: str | Path, megapixels: float = 0.0, about: dict[str, object] | None = None
    ) -> None:
        super().__init__(megapixels)
        self._path = Path(path)
        self._about = about or {}

    def finish(self) -> None:
        if len(self.rows) <= WARM_UP:
            raise ValueError(
                f"{self._path} gets no summary because there were {len(self.rows)} batches and the "
                f"first {WARM_UP} are not counted; run at least {WARM_UP + 1}"
            )
        row: dict[str, Any] = {**self._about, "batches": len(self.rows) - WARM_UP}
        for name in ("seconds", "megapixels_per_second"):
            row[f"{name}_mean"] = mean(self.column(name))
            row[f"{name}_median"] = median(self.column(name))
        row |= {name: max(self.column(name)) for name in _PEAKS}
        row |= {f"{name}_mean": mean(self.column(name)) for name in _COUNTS}
        _append(self._path, row)
