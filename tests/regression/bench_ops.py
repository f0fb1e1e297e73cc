# SPDX-License-Identifier: Apache-2.0
"""What Large Model Support costs an operator: never turned on, on, and off again.

    python tests/regression/bench_ops.py [TAG]

Prints a table for docs/benchmarks/ops.md, of operators that do nothing, in C++, on the simulated
device, with the wheel that `make run` has built for TAG. Exit status: 0, or 1 when there is none.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_suffix(".cpp")
CALLS = 200_000
KINDS = (
    "two tensors", "two tensors, one result", "list of 64 tensors", "list of 1024 tensors", "view",
    "two tensors of the CPU",
)  # fmt: skip


def build(library: Path) -> None:
    import torch

    package, compiler = torch.__path__[0], shutil.which("g++") or "g++"
    subprocess.run(
        [
            compiler, "-std=c++17", "-O2", "-shared", "-fPIC",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            f"-I{package}/include", str(SOURCE), "-o", str(library),
            f"-L{package}/lib", "-lc10", "-ltorch_cpu",
        ],
        check=True,
    )  # fmt: skip


def measure() -> None:
    """In the Python of the wheel, on the simulated device."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "ops.so"
        build(library)
        torch.ops.load_library(str(library))
    cpu = torch.empty(4)

    def costs() -> list[float]:
        return torch.ops.lms_bench.costs(a, b, cpu, CALLS)

    a, b = (torch.empty(1 << 20, device="cuda") for _ in range(2))
    columns = [costs()]
    torch.cuda.lms.enable()
    a, b = a + 0, b + 0  # known now
    columns.append(costs())
    torch.cuda.lms.disable()
    a = a + 0  # the first operator after it drains
    columns.append(costs())
    print("| operator | never on, ns | on | off again |\n|---|---|---|---|")
    for kind, row in zip(KINDS, zip(*columns, strict=True), strict=True):
        print(f"| {kind} | {' | '.join(f'{cost:.0f}' for cost in row)} |")


def main(tag: str) -> int:
    python = ROOT / "work" / f"pytorch-{tag}" / "env-lms" / "bin" / "python"
    if not python.exists():
        print(f"there is no wheel of {tag} to measure; build it with `make run`", file=sys.stderr)
        return 1
    print(f"{platform.machine()}, {platform.system()} {platform.release()}, one thread", flush=True)
    # Dry, so that no kernel computes; the profile does not matter.
    device = ["-m", "simcuda", "--dry", "--profile", "v100-32gb-pcie3"]
    return subprocess.run(
        [python, *device, __file__, "--inside"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools"), "SIMCUDA_QUIET": "1"},
        check=False,
    ).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        measure()
    else:
        sys.exit(main(*sys.argv[1:2] or ["v2.6.0"]))
