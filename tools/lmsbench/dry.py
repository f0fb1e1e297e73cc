# SPDX-License-Identifier: Apache-2.0
"""The benchmark without a GPU: true sizes and modelled time, against what is possible.

    python -m lmsbench.dry --python ENVIRONMENT/bin/python --results FILE --page FILE

ENVIRONMENT has the patched torch, this process scipy. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simcuda import bounds, trace

TOOLS = Path(__file__).resolve().parents[1]
GIB = 1 << 30
MIB = 1 << 20
# What needs more than any of the profiles' GPUs has, or nearly so.
SIZES = {"resnet50": 4096, "unet3d": 192, "gpt2": 16}
FACTORS = (1.5, 2.0, 3.0, 4.0)
PROFILES = ("v100-32gb-pcie3", "v100-32gb-nvlink2", "h200-141gb-pcie5")
METHODS = ("lms", "save_on_cpu", "checkpoint")
WARMUP, STEPS = 1, 2
ABOUNDING = 1 << 40  # more than any of them needs


@dataclass(frozen=True)
class Case:
    """`factor`: what it needs without a limit, by what the device has; 0: no limit."""

    profile: str
    model: str
    size: int
    method: str
    factor: float

    @property
    def key(self) -> str:
        return f"{self.profile}/{self.model}/{self.size}/{self.method}/{self.factor:g}"


def cases(profiles: tuple[str, ...], models: tuple[str, ...]) -> Iterator[Case]:
    """The run without a limit comes first: the others are measured by it."""
    for profile in profiles:
        for model in models:
            yield Case(profile, model, SIZES[model], "plain", 0)
            for factor in FACTORS:
                for method in METHODS:
                    yield Case(profile, model, SIZES[model], method, factor)


class Bench:
    """Measures what its file has not yet; one JSON object a line."""

    def __init__(self, python: str, results: Path) -> None:
        self.python, self.path = python, results
        self.found: dict[str, dict[str, Any]] = {}
        if results.exists():
            for line in results.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.found[Case(**entry["case"]).key] = entry["result"]

    def run(self, profiles: tuple[str, ...], models: tuple[str, ...]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for case in cases(profiles, models):
                if case.factor == 0:
                    file = Path(folder, f"{case.profile}-{case.model}")
                if case.key in self.found:
                    continue
                if case.factor and not file.exists():  # of a run before: its trace is gone
                    self._measure(Case(case.profile, case.model, case.size, "plain", 0), file)
                result = self._measure(case, file)
                self.found[case.key] = result
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"case": asdict(case), "result": result}) + "\n")
                print(f"{case.key}: {_said(result)}", flush=True)

    def _measure(self, case: Case, free: Path) -> dict[str, Any]:
        """`free`: where the trace of the run without a limit is, or comes to be."""
        capacity = ABOUNDING
        if case.factor:
            plain = self.found[Case(case.profile, case.model, case.size, "plain", 0).key]
            capacity = int(plain["peak"] / case.factor) // MIB * MIB
        result = self._train(case, capacity, None if case.factor else free)
        if case.method == "lms" and result["status"] == "ok":
            problem = bounds.problem_of(trace.read(free), minimum=MIB)
            least = bounds.bounds(problem, capacity)
            # Of all steps, the first of which begins with nothing there.
            result |= {"least_bytes": least.bytes, "least_seconds": least.time / 1e9}
        return result

    def _train(self, case: Case, capacity: int, write: Path | None) -> dict[str, Any]:
        point = {
            "model": case.model, "size": case.size, "method": case.method, "cap": 0,
            "warmup": WARMUP, "steps": STEPS, "host_limit": 1 << 40 if case.method == "lms" else 0,
        }  # fmt: skip
        options = ["--dry", "--profile", case.profile, "--memory", str(capacity), "--values", "off"]
        if write:
            options += ["--trace", str(write)]
        done = subprocess.run(
            [self.python, "-m", "simcuda", *options, "-m", "lmsbench.point", json.dumps(point)],
            env={**os.environ, "PYTHONPATH": str(TOOLS), "SIMCUDA_QUIET": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return {"status": "error", "message": last[:400]}
        answer = json.loads(done.stdout.splitlines()[-1])
        if answer["status"] != "ok":
            return {"status": answer["status"], "message": answer["message"][:400]}
        return {
            "status": "ok", "capacity": capacity, "peak": answer["peak_allocated"],
            "seconds": answer["seconds"], "all_seconds": answer["all_seconds"],
            "bytes": answer["copied_bytes"],
        }  # fmt: skip


def _said(result: dict[str, Any]) -> str:
    if result["status"] != "ok":
        return f"{result['status']} ({result['message'][:80]})"
    return f"{_step(result):.3f} s a step, {result['bytes'] / GIB:.1f} GiB copied (modelled)"


def _step(result: dict[str, Any]) -> float:
    seconds: list[float] = result["seconds"]
    return sum(seconds) / len(seconds)


_HEAD = f"""\
<!-- SPDX-License-Identifier: Apache-2.0 -->
# Benchmark on the dry device

**Every time on this page is modelled.** No GPU has run it: sizes, bytes and what runs out of memory are those of
torch's own allocator and of the engine; times follow from data sheets ([simcuda.md](../../simcuda.md#dry)) and
are what those would allow.

Made by `python -m lmsbench.dry`: {WARMUP + STEPS} steps, fp32, SGD with momentum. *Memory* is what the run
without a limit allocates at most, divided by the factor. *Speed* is that of the run without a limit divided by
this one's, a step. *Bytes / bound* and *time / bound* are of all steps, against what
[no swapper could do better](../../bounds.md); they are empty where the results have no bounds."""  # noqa: E501


def page(
    found: dict[str, dict[str, Any]], profiles: tuple[str, ...], models: tuple[str, ...]
) -> str:
    parts = [_HEAD]
    for profile in profiles:
        rows = [
            "| model | factor | memory | LMS: speed | bytes / bound | time / bound | "
            "save_on_cpu: speed | checkpointing: speed |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for model in models:
            size = SIZES[model]
            plain = found.get(Case(profile, model, size, "plain", 0).key)
            if plain is None:
                continue
            for factor in FACTORS:
                of = {m: found.get(Case(profile, model, size, m, factor).key) for m in METHODS}
                lms = of["lms"] or {}
                shares = ["", ""]
                if lms.get("least_bytes"):
                    shares = [
                        # Without what any run copies: the weights, once.
                        f"{(lms['bytes'] - plain['bytes']) / lms['least_bytes']:.2f}",
                        f"{lms['all_seconds'] / lms['least_seconds']:.2f}",
                    ]
                speeds = [_speed(plain, of[method]) for method in METHODS]
                memory = f"{plain['peak'] / factor / GIB:.1f} GiB"
                cells = [f"{model} {size}", f"{factor:g}", memory, speeds[0], *shares, *speeds[1:]]
                rows.append(f"| {' | '.join(cells)} |")
        if len(rows) > 2:
            parts += [f"## {profile} (modelled)", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def _speed(plain: dict[str, Any], result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    if result["status"] != "ok":
        return {"oom": "out of memory"}.get(result["status"], result["status"])
    return f"{_step(plain) / _step(result):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m lmsbench.dry", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--python", default=sys.executable, help="has the patched torch")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--page", type=Path, metavar="FILE.md")
    parser.add_argument("--profiles", type=lambda t: tuple(t.split(",")), default=PROFILES)
    parser.add_argument("--models", type=lambda t: tuple(t.split(",")), default=tuple(SIZES))
    options = parser.parse_args()
    bench = Bench(options.python, options.results)
    bench.run(options.profiles, options.models)
    if options.page:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        text = page(bench.found, options.profiles, options.models)
        options.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
