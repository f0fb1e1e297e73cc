# SPDX-License-Identifier: Apache-2.0
"""``python -m simcuda``: build the simulated device, run a program on it, or try it on releases of
torch."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from dataclasses import asdict
from pathlib import Path

from . import check
from .builder import build
from .config import MODES, STRICT
from .errors import SimcudaError
from .loader import load
from .order import ORDER, QUERIES
from .torchinfo import find_torch

EPILOG = """examples:
  python -m simcuda --memory 64M --mode lazy train.py --epochs 1
  python -m simcuda -m pytest test_torch.py
  python -m simcuda --dry --profile v100-32gb-pcie3 train.py
  python -m simcuda build -j 4
  python -m simcuda check newest

exit codes: that of the program; 2 for wrong usage or a failed build
"""

CHECK_EPILOG = """examples:
  python -m simcuda check                                  the registry's newest release
  python -m simcuda check 2.6.0 2.14.1 --table docs/simcuda.md
  python -m simcuda check 2.14.1 --dry-run

exit codes: 0 all passed; 1 a test failed; 2 wrong usage, no such wheel or a failed build
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


def _check_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simcuda check",
        description="Run the suite of the simulated device on official wheels of torch. Each is "
        "installed (1.5 GB) into an environment of its own, which is kept.",
        epilog=CHECK_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "versions", metavar="VERSION", nargs="*", default=[check.NEWEST], help="like 2.14.1"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the environments are")
    parser.add_argument("--table", type=Path, metavar="FILE", help="document to put the table into")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="compile jobs (default: 2)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
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
    parser.add_argument("--order", choices=ORDER, help="races are told, or refused")
    parser.add_argument("--queries", choices=QUERIES, help='when a query says "done"')
    parser.add_argument("--order-trace", type=int, metavar="N", help="show where operation N is")
    parser.add_argument(
        "--order-suppressions", type=Path, metavar="FILE", help="pairs that are no races, and why"
    )
    parser.add_argument("--dry", action="store_true", default=None, help="compute nothing")
    parser.add_argument("--profile", metavar="NAME", help="what the dry device stands for")
    parser.add_argument("--assume", metavar="WHAT=N,...", help="sizes that depend on data, if dry")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="script or module; or: build, check")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _progress(text: str) -> None:
    print(f"simcuda: {text}", file=sys.stderr, flush=True)


def _build(argv: list[str]) -> None:
    options = _build_parser().parse_args(argv)
    torch = find_torch(options.torch) if options.torch else None
    made = build(torch, options.cuda_include, options.out, options.jobs, _progress)
    print(made.path)


def _check(argv: list[str]) -> int:
    options = _check_parser().parse_args(argv)
    if options.dry_run:
        print("\n".join(check.plan(options.versions, options.folder)))
        return 0
    results = [
        check.check(version, options.folder, options.jobs, _progress)
        for version in options.versions
    ]
    if options.table:
        check.write_table(options.table, results)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        print(check.table(results))
    return 1 if any(result.failed for result in results) else 0


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
        order=options.order,
        queries=options.queries,
        order_trace=options.order_trace,
        order_suppressions=options.order_suppressions,
        dry=options.dry,
        profile=options.profile,
        assume=options.assume,
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
        elif argv[:1] == ["check"]:
            sys.exit(_check(argv[1:]))
        else:
            _run(argv)
    except SimcudaError as error:
        print(f"simcuda: {error}", file=sys.stderr)
        sys.exit(2)


main()
