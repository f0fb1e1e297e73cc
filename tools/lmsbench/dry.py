# SPDX-License-Identifier: Apache-2.0
"""The benchmark without a GPU: true sizes and modelled time, against what is possible.

    python -m lmsbench.dry --python ENVIRONMENT/bin/python --results FILE --page FILE

ENVIRONMENT has the patched torch, this process scipy and, for the plots, matplotlib. Other
environments have the plug-in, or choose victims as IBM's Large Model Support did; what has none is
not measured. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lmsbench import drypage, forks, resultfile
from lmsbench.choices import several
from lmsbench.drycases import (
    ELSEWHERE,
    FACTORS,
    METHODS,
    MODELS,
    STEPS,
    VARIABLES,
    WARMUP,
    Case,
)
from lmsbench.forks import Forks
from simcuda import SimcudaError, bounds, read_profiles, trace

MIB = 1 << 20
PROFILE = "v100-32gb-pcie3"
PARTS = ("factors", "largest")
ABOUNDING = 1 << 40  # more than any of them needs


class _OverError(Exception):
    """The time is over."""


@dataclass(frozen=True)
class _Free:
    """A run without a limit."""

    trace: Path  # where it is, or comes to be

    @cached_property
    def problem(self) -> bounds.Problem:
        return bounds.problem_of(trace.read(self.trace), minimum=MIB)


class Bench:
    """Measures what its file has not yet. `failed`: what gave no result, which is not kept."""

    def __init__(
        self,
        python: str,
        results: Path,
        until: float = float("inf"),
        elsewhere: Mapping[str, str] | None = None,
        jobs: int = 1,
    ) -> None:
        """`until`: when (time.monotonic) nothing more is begun. `elsewhere`: the Pythons of other
        environments than the first, by the values of ELSEWHERE. `jobs`: how many run at a time.
        Raises ValueError for a line of the file that is no result."""
        self.path, self.until, self.jobs = results, until, jobs
        self.pythons = {**dict.fromkeys(METHODS, python), "plain": python}
        self.pythons |= {method: (elsewhere or {}).get(of, "") for method, of in ELSEWHERE.items()}
        self.found: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []
        self._lock = threading.Lock()
        self._idle: dict[str, list[Forks]] = {}  # by their Pythons: of no thread now
        self._solver = importlib.util.find_spec("scipy") is not None
        resultfile.load(results, self._take)

    def _take(self, entry: dict[str, Any]) -> None:
        self.found[Case(**entry["case"]).key] = entry["result"]

    def run(
        self, profiles: Sequence[str], models: Sequence[str], parts: Sequence[str] = PARTS
    ) -> bool:
        """Whether the time sufficed."""
        if "factors" in parts and not self._solver:
            _say("no bounds, because scipy is not installed; pip install 'scipy>=1.11,<2'")
        cases = [(profile, model) for profile in profiles for model in models]
        # Each runs by itself, so that several can at a time.
        tasks: list[Callable[[], None]] = []
        if "factors" in parts:
            tasks += [partial(self._factors, *case) for case in cases]
        if "largest" in parts:
            methods = ("plain", *self._methods())
            tasks += [partial(self._largest, *case, method) for case in cases for method in methods]
        with ThreadPoolExecutor(self.jobs) as pool:
            done = [pool.submit(task) for task in tasks]
            try:
                wait(done)
            except KeyboardInterrupt:
                self.until = 0  # nothing more is begun
                raise
            finally:
                for process in itertools.chain(*self._idle.values()):
                    process.close()
                self._idle.clear()
        in_time = True
        for future in done:
            try:
                future.result()
            except _OverError:
                in_time = False
        return in_time

    def _factors(self, profile: str, model: str) -> None:
        """The run without a limit comes first: the others are measured by it, and the bounds
        computed on its trace."""
        with tempfile.TemporaryDirectory() as folder:
            self._beside(profile, model, _Free(Path(folder, "trace")))

    def _beside(self, profile: str, model: str, free: _Free) -> None:
        size = MODELS[model].size
        plain = Case(profile, model, size, "plain", 0)
        if self._result(plain, free)["status"] != "ok":
            return
        over: set[str] = set()  # methods that ran out of memory: they would with less, too
        for factor in FACTORS:
            for method in ("bound", *self._methods()) if self._solver else self._methods():
                if method not in over:
                    result = self._result(Case(profile, model, size, method, factor), free)
                    over |= {method} if result["status"] == "oom" else set()

    def _methods(self) -> list[str]:
        return [method for method in METHODS if self.pythons[method]]

    def _largest(self, profile: str, model: str, method: str) -> None:
        sizes = MODELS[model].sizes()
        trains, does_not = -1, len(sizes)
        while does_not - trains > 1:
            middle = (trains + does_not) // 2
            result = self._result(Case(profile, model, sizes[middle], method, None))
            if result["status"] == "error":
                return
            if result["status"] == "ok":
                trains = middle
            else:
                does_not = middle

    def _result(self, case: Case, free: _Free | None = None) -> dict[str, Any]:
        if case.key in self.found:
            return self.found[case.key]
        if time.monotonic() > self.until:
            raise _OverError
        result = self._bound(case, free) if case.method == "bound" else self._train(case, free)
        with self._lock:
            _say(f"{case.key}: {_said(result)}")
            if result["status"] == "error":
                self.failed.append(f"{case.key}: {result['message']}")
            else:
                self.found[case.key] = result
                resultfile.add(self.path, {"case": asdict(case), "result": result})
        return result

    def _forks(self, method: str) -> Forks:
        with self._lock:
            idle = self._idle.get(self.pythons[method])
            return idle.pop() if idle else Forks(self.pythons[method])

    def _plain(self, case: Case) -> Case:
        return Case(case.profile, case.model, case.size, "plain", 0)

    def _capacity(self, case: Case) -> int:
        if not case.factor:
            return ABOUNDING
        peak = self.found[self._plain(case).key]["peak"]
        return int(peak / case.factor) // MIB * MIB

    def _bound(self, case: Case, free: _Free | None) -> dict[str, Any]:
        """Of all steps, the first of which begins with nothing there."""
        assert free is not None
        if not free.trace.exists():  # of a run before: its trace is gone
            self._train(self._plain(case), free)
        try:
            least = bounds.bounds(free.problem, self._capacity(case))
        except bounds.TooSmallError as error:
            return {"status": "impossible", "message": str(error)}
        return {"status": "ok", "bytes": least.bytes, "all_seconds": least.time / 1e9}

    def _train(self, case: Case, free: _Free | None) -> dict[str, Any]:
        model = MODELS[case.model]
        method = "lms" if case.method in ELSEWHERE else case.method
        point = {
            "model": model.workload, "size": case.size, "method": method, "cap": 0,
            "warmup": WARMUP, "steps": STEPS, "amp": model.amp,
            "host_limit": 1 << 40 if method == "lms" else 0,
        }  # fmt: skip
        settings = {forks.PROFILE: case.profile, **VARIABLES.get(case.method, {})}
        if case.factor is not None:
            settings["SIMCUDA_MEMORY"] = str(self._capacity(case))
        if case.factor == 0 and free:
            settings["SIMCUDA_TRACE"] = str(free.trace)
        process = self._forks(case.method)
        code, answer, error = process.measure(point, settings)
        with self._lock:
            self._idle.setdefault(self.pythons[case.method], []).append(process)
        if code != 0:
            last = (error.strip().splitlines() or ["no message"])[-1]
            return {"status": "error", "message": f"{last[:400]} (exit status {code})"}
        if answer["status"] != "ok":
            return {"status": answer["status"], "message": answer["message"][:400]}
        return {
            "status": "ok", "peak": answer["peak_allocated"], "seconds": answer["seconds"],
            "all_seconds": answer["all_seconds"], "bytes": answer["copied_bytes"],
        }  # fmt: skip


def _say(text: str) -> None:
    print(text, flush=True)


def _said(result: dict[str, Any]) -> str:
    if result["status"] != "ok":
        return f"{result['status']} ({result['message'][:80]})"
    seconds = result.get("seconds")
    took = f"{drypage.step(result):.3f} s a step" if seconds else f"{result['all_seconds']:.3f} s"
    return f"{took}, {result['bytes'] / (1 << 30):.1f} GiB copied (modelled)"


def _python(text: str) -> str:
    """A Python whose torch has Large Model Support, which this looks for without importing it."""
    look = (
        "import importlib.util as u, pathlib, sys\n"
        "torch = u.find_spec('torch')\n"
        "there = torch and pathlib.Path(torch.origin).with_name('cuda').joinpath('lms').exists()\n"
        "sys.exit(0 if there or torch and u.find_spec('torch_lms') else 3)"
    )
    try:
        code = subprocess.run([text, "-c", look], capture_output=True, check=False).returncode
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{text} cannot be run because of {error.strerror}; name the bin/python of an "
            "environment"
        ) from None
    if code != 0:
        raise argparse.ArgumentTypeError(
            f"{text} has no torch with Large Model Support; name the Python of an environment with "
            "the patched wheel, as `lmsbuild test` leaves in work/"
        )
    return text


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; give 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m lmsbench.dry", description="The benchmark at true sizes and in modelled time."
    )
    parser.add_argument(
        "--python", type=_python, required=True, help="has the patched torch, or the plug-in"
    )
    parser.add_argument("--plugin", type=_python, help="has torch_lms, for a column of its own")
    parser.add_argument(
        "--ibm", type=_python, help="has the library of the baseline `ibm`: two columns"
    )
    parser.add_argument("--results", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="of all that FILE.jsonl has")
    parser.add_argument("--profiles", type=several(read_profiles()), default=(PROFILE,))
    parser.add_argument("--models", type=several(MODELS), default=tuple(MODELS))
    parser.add_argument("--parts", type=several(PARTS), default=PARTS)
    parser.add_argument(
        "--jobs", type=_number, default=os.cpu_count() or 1, metavar="N",
        help="measure so many at a time: of time that is modelled they take none from each other "
        "[default: as many as there are processors]",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin nothing after this long"
    )
    return parser


def main() -> int:
    options = _parser().parse_args()
    try:
        until = time.monotonic() + 60 * options.minutes
        elsewhere = {name: getattr(options, name) or "" for name in ELSEWHERE.values()}
        bench = Bench(options.python, options.results, until, elsewhere, options.jobs)
        complete = bench.run(options.profiles, options.models, options.parts)
        if options.page:
            drypage.write(options.page, bench.found)
    except (ValueError, OSError, SimcudaError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; what was measured is kept", file=sys.stderr)
        return 1
    if not complete:
        _say("the time is over; run the same command to go on")
    for failure in bench.failed:
        print(f"error: no result of {failure}", file=sys.stderr)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
