# SPDX-License-Identifier: Apache-2.0
"""``python -m simcuda``: build the simulated device, or run a program on it."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from .builder import build
from .config import MODES, STRICT
from .errors import SimcudaError
from .loader import load
from .torchinfo import find_torch

EPILOG = """examples:
  python -m simcuda --memory 64M --mode lazy train.py --epochs 1
  python -m simcuda -m pytest test_torch.py
  python -m simcuda build -j 4

exit codes: that of the program; 2 for wrong usage or a failed build
"""


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simcuda build",
        description="Build the native part for an installed torch; a finished build is reused.",
    )
    parser.add_argument("--torch", type=Path, metavar="DIR", help="folder of the torch package")
    parser.add_argument(
        "--cuda-include",
        type=Path,
        metavar="DIR",
        action="append",
        help="folder with CUDA headers (repeatable; default: SIMCUDA_CUDA_INCLUDE, else wheels)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to build, not the cache")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="compile jobs (default: 2)")
    return parser


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simcuda",
        description="Run a Python program on a simulated CUDA device.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--memory", metavar="SIZE", help="device memory, like 64M (default: 1G)")
    parser.add_argument("--mode", choices=MODES, help="when commands run (default: immediate)")
    parser.add_argument("--lag", type=int, metavar="N", help='queries that say "not ready" first')
    parser.add_argument("--devices", type=int, metavar="N", help="number of devices (default: 1)")
    parser.add_argument("--strict", choices=STRICT, help="what a refused call does")
    parser.add_argument("--bandwidth", metavar="SIZE", help="bytes per second of a copy")
    parser.add_argument("--host-memory", metavar="SIZE", help="limit of pinned host memory")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="script or module; or: build")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _build(argv: list[str]) -> None:
    options = _build_parser().parse_args(argv)

    def progress(text: str) -> None:
        print(f"simcuda: {text}", file=sys.stderr, flush=True)

    torch = find_torch(options.torch) if options.torch else None
    made = build(torch, options.cuda_include, options.out, options.jobs, progress)
    print(made.path)


def _run(argv: list[str]) -> None:
    options = _run_parser().parse_args(argv)
    load(
        memory=options.memory,
        mode=options.mode,
        lag=options.lag,
        devices=options.devices,
        strict=options.strict,
        bandwidth=options.bandwidth,
        host_memory=options.host_memory,
    )
    program = options.program
    sys.argv = [program, *options.arguments]
    if options.module:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    if not Path(program).exists():
        raise SimcudaError(f"there is no script {program}")
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


def main() -> None:
    argv = sys.argv[1:]
    try:
        if argv[:1] == ["build"]:
            _build(argv[1:])
        else:
            _run(argv)
    except SimcudaError as error:
        print(f"simcuda: {error}", file=sys.stderr)
        sys.exit(2)


main()
