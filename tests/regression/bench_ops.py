# SPDX-License-Identifier: Apache-2.0
"""What Large Model Support costs an operator: never turned on, on, when it has moved something,
and off again.

    python tests/regression/bench_ops.py [TAG]

Prints a table for docs/benchmarks/ops.md, of operators whose kernels do nothing, in C++, on the dry
device, with the wheel that `make run` has built for TAG. Exit status: 0, or 1 when there is none.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_suffix(".cpp")
CALLS = 200_000
MIB = 1 << 20


class Kind(NamedTuple):
    """An operator, as bench_ops.cpp calls it, and what it is called on."""

    name: str
    letter: bytes
    count: int
    size: int  # bytes of each
    devices: tuple[str, ...] = ("cuda:0",)  # of the tensors, in turn: equal parts


KINDS = (
    Kind("two tensors of 1 KiB", b"T", 2, 1024),
    Kind("two tensors of 1 MiB", b"T", 2, MIB),
    Kind("two tensors of 32 MiB", b"T", 2, 32 * MIB),
    Kind("two tensors of 1 MiB, one result", b"R", 2, MIB),
    Kind("the same, called boxed", b"r", 2, MIB),
    Kind("list of 64 tensors of 1 MiB", b"L", 64, MIB),
    Kind("list of 1024 tensors of 1 MiB", b"L", 1024, MIB),
    Kind("list of 64, called boxed", b"l", 64, MIB),
    Kind("view", b"v", 1, MIB),
    Kind("two tensors of the CPU", b"T", 2, 1024, ("cpu",)),
    Kind("two of 1 MiB, beside a thread of this device", b"B", 4, MIB),
    Kind("the same, of another device", b"B", 4, MIB, ("cuda:0", "cuda:1")),
)


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
        cost = ctypes.PyDLL(str(library)).lms_bench_cost
    cost.restype = ctypes.c_double

    def costs() -> list[float]:
        row = []
        for kind in KINDS:
            each = kind.count // len(kind.devices)
            made = (
                torch.empty(kind.size // 4, device=device)
                for device in kind.devices
                for _ in range(each)
            )
            tensors = [tensor + 0 for tensor in made]  # known, where it is on
            pointers = (ctypes.c_void_p * kind.count)(*(tensor._cdata for tensor in tensors))
            calls = CALLS // kind.count
            row.append(
                cost(
                    ctypes.c_char(kind.letter),
                    pointers,
                    ctypes.c_int64(kind.count),
                    ctypes.c_int64(calls),
                )
            )
        return row

    columns = [costs()]
    torch.cuda.lms.enable()
    columns.append(costs())
    for device in range(2):
        moved = torch.empty(MIB, device=device) + 0
        torch.cuda.lms.reclaim(device=device)
        assert torch.ops.lms.on_host(moved)
    columns.append(costs())
    torch.cuda.lms.disable()
    moved += 0  # the first operator after it drains
    columns.append(costs())
    print("| operator | never on, ns | on | on, and something has moved | off again |")
    print("|---|---|---|---|---|")
    for kind, row in zip(KINDS, zip(*columns, strict=True), strict=True):
        print(f"| {kind.name} | {' | '.join(f'{cost:.0f}' for cost in row)} |")


def main(tag: str) -> int:
    python = ROOT / "work" / f"pytorch-{tag}" / "env-lms" / "bin" / "python"
    if not python.exists():
        print(f"there is no wheel of {tag} to measure; build it with `make run`", file=sys.stderr)
        return 1
    print(f"{platform.machine()}, {platform.system()} {platform.release()}, one thread", flush=True)
    # Dry, so that no kernel computes; the profile does not matter.
    device = ["-m", "simcuda", "--dry", "--profile", "v100-32gb-pcie3", "--devices", "2"]
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
