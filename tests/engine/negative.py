# SPDX-License-Identifier: Apache-2.0
"""Turns each safeguard of lms/core off and checks that its test fails: `negative.py --help`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import core_build

sys.path.insert(0, str(core_build.HERE.parent / "safeguards"))
import safeguards
from safeguards import Safeguard, SafeguardError

from lmsbuild.base.errors import LmsbuildError
from lmsbuild.base.project import find_project
from lmsbuild.trials import bites, passed

KIND = "engine"


def load() -> list[Safeguard]:
    """The entries of kind "engine", checked."""
    found = safeguards.load(KIND)
    for safeguard in found:
        if safeguard.test not in core_build.case_names(safeguard.build):
            raise SafeguardError(f"{safeguard.id}: there is no test {safeguard.test}")
        if safeguard.build not in core_build.VARIANTS:
            raise SafeguardError(f"{safeguard.id}: there is no build {safeguard.build}")
    return found


def without(safeguard: Safeguard) -> str:
    """The file of lms/core without the safeguard. Raises SafeguardError."""
    return safeguards.without(safeguard, core_build.CORE, core_build.CORE.glob("*.[hc]*"))


def check(safeguard: Safeguard) -> str:
    """Returns how the test failed without the safeguard; raises if it did not."""
    intact = core_build.run_case(
        core_build.build(safeguard.build), safeguard.test, *safeguard.options
    )
    if intact.returncode != 0:
        raise SafeguardError(
            f"{safeguard.id}: {safeguard.test} fails with the safeguard, too:\n{intact.stderr}"
        )
    with tempfile.TemporaryDirectory() as folder:
        core = Path(folder) / "core"
        shutil.copytree(core_build.CORE, core)
        (core / safeguard.file).write_text(without(safeguard))
        program = core_build.build(safeguard.build, core)
    try:
        done = core_build.run_case(program, safeguard.test, *safeguard.options, timeout=120)
    except subprocess.TimeoutExpired as error:
        raise SafeguardError(
            f"{safeguard.id}: {safeguard.test} hangs without the safeguard instead of failing"
        ) from error
    if done.returncode == 0:
        raise SafeguardError(
            f"{safeguard.id}: {safeguard.test} passes without it, although then {safeguard.why}"
        )
    lines = [line for line in done.stderr.splitlines() if line.strip("= ")]
    return lines[0] if lines else f"status {done.returncode}"


def missing() -> set[str]:
    """The ids that no record shows to bite. Raises LmsbuildError."""
    project = find_project()
    recorded = passed.read(project).bites.get(bites.ENGINE, {})
    return set(bites.standing(project, bites.ENGINE, recorded).missing)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Turns each safeguard of lms/core off and checks that its test fails.",
        epilog="Exit status: 0 all failed as they must, 1 some safeguard is untested, 2 wrong use,"
        " 3 not recorded. Example: python tests/engine/negative.py --list",
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="safeguards (default: all)")
    parser.add_argument("--list", action="store_true", help="name them, with what each prevents")
    parser.add_argument(
        "--record", action="store_true",
        help="note in tests/passed.toml that they bite, and on which commit",
    )  # fmt: skip
    parser.add_argument(
        "--missing", action="store_true",
        help="only those that tests/passed.toml does not show to bite",
    )  # fmt: skip
    return parser


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    recorder = None
    try:
        if options.record:
            recorder = passed.Recorder(find_project(), bites.ENGINE)
        known = load()
        unknown = set(options.ids) - {s.id for s in known}
        if unknown:
            print(f"no safeguard of kind {KIND} is called {', '.join(sorted(unknown))}; see --list")
            return 2
        chosen = [s for s in known if not options.ids or s.id in options.ids]
        if options.missing:
            left = missing()
            chosen = [s for s in chosen if s.id in left]
    except SafeguardError as error:
        print(error)
        return 2
    except LmsbuildError as error:
        print(error)
        return 3
    if options.list:
        for safeguard in chosen:
            print(f"{safeguard.id}: without it {safeguard.why}")
        return 0
    untested = 0
    for number, safeguard in enumerate(chosen, 1):
        seen = True
        try:
            verdict = "fails as it must: " + check(safeguard)
        except (SafeguardError, core_build.BuildError) as error:
            verdict = f"NOT TESTED: {error}"
            seen = False
        untested += not seen
        print(f"[{number}/{len(chosen)}] {safeguard.id}: {verdict}", flush=True)
        if recorder:
            try:
                recorder.bites({safeguard.id: seen})
            except LmsbuildError as error:
                print(error)
                return 3
    print(f"{len(chosen) - untested} of {len(chosen)} safeguards are tested")
    return 1 if untested else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
