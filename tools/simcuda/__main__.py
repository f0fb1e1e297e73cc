# SPDX-License-Identifier: Apache-2.0
"""``python -m simcuda``: build the simulated device, run a program on it, or try it on releases of
torch."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import pickle
import runpy
import sys
from dataclasses import asdict
from pathlib import Path

from . import bounds, calibrate, check, trace
from .builder import build, build_for_tensorflow
from .config import CONTENTS, FRAMEWORKS, MODES, STRICT, VALUES, WORKSPACES
from .errors import SimcudaError
from .loader import load
from .order import ORDER, QUERIES
from .profiles import SUFFIX, to_toml
from .sizes import format_bytes, parse_bytes
from .snapshot import to_snapshot
from .torchinfo import find_torch

EPILOG = """examples:
  python -m simcuda --memory 64M --mode lazy train.py --epochs 1
  python -m simcuda -m pytest test_torch.py
  python -m simcuda --dry --profile v100-32gb-pcie3 train.py
  python -m simcuda --dry --profile v100-32gb-pcie3 --trace FILE train.py
  python -m simcuda --dry --profile v100-32gb-pcie3 --framework tensorflow train.py
  python -m simcuda trace FILE --chrome FILE.json --memory FILE.pickle
  python -m simcuda bounds FILE --capacity 16GiB
  python -m simcuda calibrate my-gpu.toml
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
        description="Build the native part for an installed torch or TensorFlow; a finished build "
        "is reused.",
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, default="torch")
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
    parser.add_argument("--values", choices=VALUES, help="lines that read a value are told, if dry")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write what happens, if dry")
    parser.add_argument(
        "--workspaces", choices=WORKSPACES, help="whether libraries take memory, if dry"
    )
    parser.add_argument(
        "--contents", choices=CONTENTS, help="what is kept of copies, if dry, of TensorFlow"
    )
    parser.add_argument(
        "--framework", choices=FRAMEWORKS, help="what is imported (default: what is installed)"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument(
        "program", metavar="PROGRAM", nargs="?",
        help="script or module; or: build, calibrate, check, trace, bounds",
    )  # fmt: skip
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _progress(text: str) -> None:
    print(f"simcuda: {text}", file=sys.stderr, flush=True)


def _build(argv: list[str]) -> None:
    options = _build_parser().parse_args(argv)
    if options.framework == "tensorflow":
        print(build_for_tensorflow(options.out, options.jobs, _progress).path)
        return
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


def _trace(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m simcuda trace", description="Say what is in a trace of a dry run."
    )
    parser.add_argument("trace", type=Path, metavar="FILE")
    parser.add_argument(
        "--chrome", type=Path, metavar="FILE.json", help="write it as chrome://tracing reads it"
    )
    parser.add_argument(
        "--memory", type=Path, metavar="FILE.pickle",
        help="write it as PyTorch's memory viewer reads it (https://pytorch.org/memory_viz)",
    )  # fmt: skip
    options = parser.parse_args(argv)
    read = trace.read(options.trace)
    if options.chrome:
        _write(options.chrome, json.dumps(trace.to_chrome(read)).encode())
    if options.memory:
        _write(options.memory, pickle.dumps(to_snapshot(read), protocol=4))
    print(trace.summary(read))


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise SimcudaError(f"{path} cannot be written: {error.strerror}") from None


def _bounds(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m simcuda bounds",
        description="Say what no swapper could do better on a trace (docs/bounds.md). Needs scipy.",
    )
    parser.add_argument("trace", type=Path, metavar="FILE")
    parser.add_argument("--capacity", metavar="SIZE", required=True, help="device memory, like 16G")
    parser.add_argument("--device", type=int, default=0, metavar="N")
    parser.add_argument(
        "--minimum", metavar="SIZE", default="1M",
        help="leave out storages that are smaller (default: 1M), which lowers the bounds a little",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    read = trace.read(options.trace)
    devices = int(read.about["devices"])
    if not 0 <= options.device < devices:
        raise SimcudaError(
            f"the trace has no device {options.device}; choose one of 0 to {devices - 1}"
        )
    problem = bounds.problem_of(read, options.device, parse_bytes(options.minimum))
    found = bounds.bounds(problem, parse_bytes(options.capacity))
    moved = {way: sum(c.bytes for c in read.moves() if c.unit == way) for way in ("in", "out")}
    if options.json:
        print(json.dumps({**asdict(found), "moved": moved, "took": read.time, "modelled": True}))
        return
    sizes = [format_bytes(n) for n in (found.peak, found.capacity, found.bytes_out, found.bytes_in)]
    print(
        "modelled, {}: the steps need {}; in {} at least {} out and {} in".format(
            read.about["profile"]["name"], *sizes
        )
    )
    print(f"time at least {found.time / 1e9:.3f} s, of it {found.compute / 1e9:.3f} s computing")
    if any(moved.values()):
        print(
            f"this run moved {format_bytes(moved['out'])} out and {format_bytes(moved['in'])} in, "
            f"in {read.time / 1e9:.3f} s"
        )


def _calibrate(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m simcuda calibrate",
        description="Measure the first GPU, which nobody else may use meanwhile, into a profile "
        "for --profile. Takes a minute and 4 GiB of its memory.",
    )
    parser.add_argument("out", type=Path, metavar=f"FILE{SUFFIX}")
    parser.add_argument(
        "--dry", metavar="PROFILE", help="measure the dry device instead, as the tests do"
    )
    options = parser.parse_args(argv)
    if options.out.suffix != SUFFIX:
        raise SimcudaError(
            f"{options.out} cannot be a profile because of its name; let it end with {SUFFIX}"
        )
    if options.dry:
        load(dry=True, profile=options.dry, framework="torch", children=False)
    elif find_torch() is None:
        raise SimcudaError("nothing can be calibrated because torch is not installed here")
    measured = calibrate.measure(options.out.stem)
    try:
        options.out.write_text(to_toml(measured), encoding="utf-8")
    except OSError as error:
        raise SimcudaError(f"{options.out} cannot be written: {error.strerror}") from None
    print(f"{options.out}: {measured.sources['gpu']}; run with --dry --profile {options.out}")


def _run(argv: list[str]) -> None:
    options = _run_parser().parse_args(argv)
    program = options.program
    if program is None:
        raise SimcudaError(
            "nothing can be run because no program was given; name a script, or a module after -m"
        )
    if options.module:
        sys.path[0] = str(Path.cwd())
        _find(program.partition(".")[0])  # before anything is built
    elif not Path(program).is_file() and not Path(program, "__main__.py").exists():
        raise SimcudaError(
            f"{program} cannot be run because there is no such script; name one, or a module after "
            "-m"
        )
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
        values=options.values,
        trace=options.trace,
        workspaces=options.workspaces,
        contents=options.contents,
        framework=options.framework,
    )
    sys.argv = [program, *options.arguments]
    if options.module:
        if _find(program).submodule_search_locations is not None:
            _find(f"{program}.__main__")
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


def _find(name: str) -> importlib.machinery.ModuleSpec:
    """Imports the packages around it. Their own errors are the program's."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        found = None
    if found is None:
        raise SimcudaError(
            f"{name} cannot be run because there is no such module; name one that this Python can "
            "import, or a script without -m"
        )
    return found


def main() -> None:
    argv = sys.argv[1:]
    try:
        if argv[:1] == ["build"]:
            _build(argv[1:])
        elif argv[:1] == ["check"]:
            sys.exit(_check(argv[1:]))
        elif argv[:1] == ["calibrate"]:
            _calibrate(argv[1:])
        elif argv[:1] == ["trace"]:
            _trace(argv[1:])
        elif argv[:1] == ["bounds"]:
            _bounds(argv[1:])
        else:
            _run(argv)
    except SimcudaError as error:
        print(f"simcuda: {error}", file=sys.stderr)
        sys.exit(2)


main()
