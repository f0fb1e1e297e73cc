# SPDX-License-Identifier: Apache-2.0
"""Turns each safeguard of lms/core off and checks that its test fails.

    python tests/engine/negative.py [ID ...]

Exit status: 0 all failed as they must, 1 some safeguard is untested, 2 wrong use.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import core_build

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SAFEGUARDS = core_build.HERE.parent / "safeguards.toml"
KIND = "engine"


class SafeguardError(Exception):
    """An entry that is wrong, or whose test does not fail."""


@dataclass(frozen=True)
class Safeguard:
    id: str
    why: str
    test: str
    file: str
    search: str
    replace: str
    build: str = "plain17"
    options: tuple[str, ...] = ()


def load(path: Path = SAFEGUARDS) -> list[Safeguard]:
    """The entries of kind "engine", checked."""
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text())["safeguard"]
    result: list[Safeguard] = []
    for entry in entries:
        if entry["kind"] != KIND:
            continue
        fields: dict[str, Any] = {
            k: tuple(v) if k == "options" else v for k, v in entry.items() if k != "kind"
        }
        try:
            safeguard = Safeguard(**fields)
        except TypeError as error:
            raise SafeguardError(f"{path.name}: {entry.get('id')}: {error}") from error
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", safeguard.id):
            raise SafeguardError(f"{path.name}: {safeguard.id!r} is no lower-case hyphenated id")
        if safeguard.test not in core_build.case_names():
            raise SafeguardError(f"{safeguard.id}: there is no test {safeguard.test}")
        if safeguard.build not in core_build.VARIANTS:
            raise SafeguardError(f"{safeguard.id}: there is no build {safeguard.build}")
        result.append(safeguard)
    if len({s.id for s in result}) != len(result):
        raise SafeguardError(f"{path.name}: an id occurs twice")
    return result


def mutate(safeguard: Safeguard, text: str) -> str:
    count = text.count(safeguard.search)
    if count != 1:
        raise SafeguardError(
            f"{safeguard.id}: its search text occurs {count} times in {safeguard.file} instead of "
            "once; adapt the entry to the code"
        )
    return text.replace(safeguard.search, safeguard.replace)


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
        file = core / safeguard.file
        file.write_text(mutate(safeguard, file.read_text()))
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


def main(arguments: list[str]) -> int:
    try:
        safeguards = load()
        unknown = set(arguments) - {s.id for s in safeguards}
        if unknown:
            print(f"no safeguard of kind {KIND} is called {', '.join(sorted(unknown))}")
            return 2
        chosen = [s for s in safeguards if not arguments or s.id in arguments]
    except SafeguardError as error:
        print(error)
        return 2
    untested = 0
    for number, safeguard in enumerate(chosen, 1):
        try:
            verdict = "fails as it must: " + check(safeguard)
        except (SafeguardError, core_build.BuildError) as error:
            verdict = f"NOT TESTED: {error}"
            untested += 1
        print(f"[{number}/{len(chosen)}] {safeguard.id}: {verdict}", flush=True)
    print(f"{len(chosen) - untested} of {len(chosen)} safeguards are tested")
    return 1 if untested else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
