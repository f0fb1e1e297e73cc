# SPDX-License-Identifier: Apache-2.0
"""What the tool's short commands cost: processes, and seconds of processors and of the clock.

    python tests/lmsbuild/bench.py [TAG]

Prints a table beside what each may cost. Exit status: 0, or 1 when one costs more. Processes are
counted by strace, where it is; the wheel is measured where there is one that can be unchanged.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPEATS = 5  # the best counts: what others do on the machine is not the tool's


@dataclass(frozen=True)
class Bound:
    """What a command may cost; None is no bound."""

    words: tuple[str, ...]
    processes: int | None = None
    processor: float | None = None  # seconds
    clock: float | None = None  # seconds


def bounds(tag: str) -> list[Bound]:
    found = [
        Bound(("--help",), processor=0.3),
        Bound(("tags",), processor=0.3),
        Bound(("refresh", tag, "--dry-run"), processes=10, clock=0.7),
        Bound(("status",), processes=10, clock=0.7),
        Bound(("verify", "--all"), clock=2.0),
    ]
    if list((ROOT / "work").glob(f"*-{tag}/wheels/*.whl")):
        found.append(Bound(("wheel", tag), clock=1.5))
    return found


def measure(words: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of processors and of the clock that a run of lmsbuild takes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(_command(words), cwd=ROOT, env=_variables(), capture_output=True, check=True)
    clock, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock


def processes(words: tuple[str, ...]) -> int | None:
    """How many programs a run starts, itself among them; None where nothing can count them."""
    if shutil.which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile() as told:
        trace = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", told.name]
        command = [*trace, *_command(words)]
        subprocess.run(command, cwd=ROOT, env=_variables(), capture_output=True, check=True)
        return Path(told.name).read_text(errors="replace").count("execve(") - _failed(told.name)


def _failed(file: str) -> int:
    """Programs looked for in a folder of PATH that does not have them."""
    lines = Path(file).read_text(errors="replace").splitlines()
    return sum("execve(" in line and "= -1" in line for line in lines)


def _command(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "lmsbuild", *words]


def _variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "tools")}


def cell(value: float | None, bound: float | None) -> str:
    if value is None:
        return "?"
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return text if bound is None else f"{text} of {bound}"


def main(tag: str) -> int:
    print(f"{platform.machine()}, {platform.system()} {platform.release()}, {os.cpu_count()} CPUs")
    print("\n| command | processes | processor, s | clock, s | within |\n|---|---|---|---|---|")
    kept = True
    for bound in bounds(tag):
        runs = [measure(bound.words) for _ in range(REPEATS)]
        found = (processes(bound.words), min(run[0] for run in runs), min(run[1] for run in runs))
        limits = (bound.processes, bound.processor, bound.clock)
        pairs = list(zip(found, limits, strict=True))
        within = all(None in pair or pair[0] <= pair[1] for pair in pairs)  # type: ignore[operator]
        kept = kept and within
        cells = " | ".join(cell(value, limit) for value, limit in pairs)
        words = " ".join(bound.words)
        print(f"| `{words}` | {cells} | {'yes' if within else 'no'} |", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "v2.6.0"))
