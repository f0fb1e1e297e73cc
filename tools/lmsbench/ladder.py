# SPDX-License-Identifier: Apache-2.0
"""Which points are measured, in which order: every method climbs sizes until it runs out of memory.

Results are appended to a file, one JSON object a line, as soon as they are there; a run that finds
a point in it does not measure it again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lmsbench import resultfile
from lmsbench.models import WORKLOADS, sizes
from lmsbench.point import Point, request_of

Say = Callable[[str], None]


@dataclass
class Results:
    """The file of results, and what it holds."""

    path: Path
    points: dict[str, dict[str, Any]] = field(default_factory=dict)  # key -> result
    about: list[dict[str, Any]] = field(default_factory=list)  # machine and link of each run

    @classmethod
    def load(cls, path: Path) -> Results:
        """Raises ValueError for a line that is no result; an unfinished last line is dropped."""
        results = cls(path)
        resultfile.load(path, results._take)
        return results

    def _take(self, entry: dict[str, Any]) -> None:
        if "point" in entry:
            self.points[Point(**entry["point"]).key] = entry["result"]
        else:
            self.about.append(entry["about"])

    def add(self, entry: dict[str, Any]) -> None:
        resultfile.add(self.path, entry)
        self._take(entry)


@dataclass(frozen=True)
class Plan:
    """What to measure. Sizes are bytes; `caps` in the order they are measured."""

    models: tuple[str, ...] = ("resnet50", "unet3d", "gpt2")
    methods: tuple[str, ...] = ("plain", "checkpoint", "save_on_cpu", "lms")
    caps: tuple[int, ...] = (8 << 30, 4 << 30, 16 << 30)
    uncapped: bool = True
    scale: int = 1
    growth: float = 1.5
    host_limit: int = 100 << 30
    steps: int = 3
    warmup: int = 2
    point_seconds: int = 300


class Ladder:
    """Climbs. `budget` is when (time.monotonic) no further point is begun."""

    def __init__(self, plan: Plan, results: Results, budget: float, say: Say) -> None:
        self.plan = plan
        self.results = results
        self.budget = budget
        self.say = say

    def run(self) -> bool:
        """Whether everything was measured; False when the budget ended first."""
        for model in self.plan.models:
            # First: the peaks that later host needs are computed from, and the losses and speeds
            # that everything is compared with.
            if not self._climb(model, "plain", 0):
                return False
        for cap in self.plan.caps:
            for model in self.plan.models:
                for method in self.plan.methods:
                    if not self._climb(model, method, cap):
                        return False
        if self.plan.uncapped:
            for model in self.plan.models:
                if "lms" in self.plan.methods and not self._climb(model, "lms", 0):
                    return False
        return True

    def _climb(self, model: str, method: str, cap: int) -> bool:
        for size in sizes(WORKLOADS[model], self.plan.growth):
            point = Point(
                model, size, method, cap, self.plan.scale, self.plan.warmup, self.plan.steps,
                self.plan.host_limit if method == "lms" else 0,
            )  # fmt: skip
            result = self.results.points.get(point.key)
            if result is None:
                if time.monotonic() > self.budget:
                    return False
                result = self._measure(point)
            if result["status"] != "ok":
                return True
        return True

    def _measure(self, point: Point) -> dict[str, Any]:
        need = self.host_need(point)
        words = f"{point.key}: "
        if need is not None and point.method in ("lms", "save_on_cpu"):
            words += f"at most {need / 2**30:.1f} GiB of host memory; "
            if need > self.plan.host_limit:
                result = {"status": "skipped", "message": "over the limit of host memory"}
                self.results.add({"point": asdict(point), "result": result})
                self.say(words + "skipped, that is over the limit")
                return result
        result = ask(request_of(point), self.plan.point_seconds)
        self.results.add({"point": asdict(point), "result": result})
        self.say(words + describe(result))
        return result

    def host_need(self, point: Point) -> int | None:
        """Bytes that must lie outside the device: the peak without a cap, measured or by its
        growth with the elements, less the capacity; all of the peak for save_on_cpu."""
        peak = self.peak(point.model, point.size)
        if peak is None:
            return None
        capacity = point.cap or self.results.about[-1]["machine"]["device_memory"]
        return peak if point.method == "save_on_cpu" else max(0, peak - int(capacity))

    def peak(self, model: str, size: int) -> int | None:
        """Bytes; linear in the elements beyond the largest size that fitted without a cap."""
        workload = WORKLOADS[model]
        known: list[tuple[int, int]] = []
        for rung in sizes(workload, self.plan.growth):
            key = Point(model, rung, "plain", 0, self.plan.scale).key
            result = self.results.points.get(key)
            if result is None or result["status"] != "ok":
                break
            known.append((workload.elements(rung), int(result["peak_allocated"])))
        wanted = workload.elements(size)
        for elements, peak in known:
            if elements == wanted:
                return peak
        if len(known) < 2:
            return None
        (x0, y0), (x1, y1) = known[-2:]
        return int(y1 + (y1 - y0) * (wanted - x1) / (x1 - x0))


def ask(request: str, seconds: int) -> dict[str, Any]:
    """The answer of a `lmsbench.point` process. A crash or a timeout is a status of its own."""
    command = [sys.executable, "-m", "lmsbench.point", request]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "message": f"no end after {seconds} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        value: dict[str, Any] = json.loads(lines[-1])
        return value
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {"status": "error", "message": f"exit code {done.returncode}: {last}"[:400]}


def describe(result: dict[str, Any]) -> str:
    if result["status"] != "ok":
        return f"{result['status']} ({result.get('message', '')[:100]})"
    mean = sum(result["seconds"]) / len(result["seconds"])
    return f"{mean:.3f} s a step, peak {result['peak_allocated'] / 2**30:.2f} GiB"


def rungs(results: Results, model: str, method: str, cap: int, plan: Plan) -> Iterator[Any]:
    """(size, result) of each size that went well, upwards."""
    for size in sizes(WORKLOADS[model], plan.growth):
        result = results.points.get(Point(model, size, method, cap, plan.scale).key)
        if result is None or result["status"] != "ok":
            return
        yield size, result
