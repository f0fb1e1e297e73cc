# SPDX-License-Identifier: Apache-2.0
"""What the core costs: host memory that is reserved, and the time to make room.

    python tests/engine/bench.py

Prints a table for docs/benchmarks/core.md. Exit status: 0, or 1 when a bound of a case is broken.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import core_build

TESTS = ("test_host_rows", "test_reclaim_cost")

ROWS = ("of_one_size", "that_grow", "of_varying_length", "of_varying_length_in_no_order")
SMALL = (1_000, 10_000, 100_000, 1_000_000)
LARGE = (100, 1_000, 10_000, 100_000)
REPEATS = 3
POOL = "| program | helper | fullest, MiB | reserved, MiB | ratio | segments that came or went |"
COST = "| small storages | ns per missing op | storages located per op |"
MANY = "| storages that could leave | ns per missing op | storages located per op |"


def table(program: Path, head: str, cases: list[tuple[str, ...]]) -> bool:
    """Prints what the cases print, as a table. Whether all passed."""
    print(f"\n{head}\n|{'---|' * (head.count('|') - 1)}")
    passed = True
    for case in cases:
        done = core_build.run_case(program, *case)
        for line in done.stdout.splitlines():
            print(f"| {line} |", flush=True)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            passed = False
    return passed


def main() -> int:
    print(f"{platform.machine()}, {platform.system()} {platform.release()}, one thread")
    program = core_build.build("bench", tests=TESTS)
    rows = table(program, POOL, [(f"host_rows_{row}",) for row in ROWS])
    sizes = [("reclaim_cost", f"small={small}", "ops=20000") for small in SMALL]
    costs = table(program, COST, [size for size in sizes for _ in range(REPEATS)])
    victims = [("reclaim_cost_of_many", f"large={large}", "ops=5000") for large in LARGE]
    many = table(program, MANY, [size for size in victims for _ in range(REPEATS)])
    return 0 if rows and costs and many else 1


if __name__ == "__main__":
    sys.exit(main())
