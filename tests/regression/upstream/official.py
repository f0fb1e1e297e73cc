# SPDX-License-Identifier: Apache-2.0
"""What passes on the official wheel, recorded: the default tier compares with the record, and the
full tier runs the official wheel and holds the record to it.

    python official.py --stock PYTHON --source TREE    record it for that release

PYTHON has the official torch and pytest; TREE is PyTorch's source.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parents[1]))
import parts  # noqa: E402

RECORD = HERE / "official.json"


def load() -> dict[str, dict[str, list[str]]]:
    """By release and file: the tests of the default tier's choice that pass."""
    record: dict[str, dict[str, list[str]]] = json.loads(RECORD.read_text())
    return record


def recorded(release: str, file: str, part: tuple[int, int]) -> set[str] | None:
    """Of one part of the choice of `file`, the tests that pass; None if nobody recorded them."""
    tests = load().get(release, {}).get(file)
    if tests is None:
        return None
    return {test for test in tests if parts.is_in(part, f"{file}::{test}")}


def main() -> None:
    import upstream_run

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock", required=True, help="a Python with the official torch")
    parser.add_argument("--source", type=Path, required=True, help="PyTorch's source tree")
    options = parser.parse_args()
    name = "from importlib.metadata import version; print(version('torch').partition('+')[0])"
    command = [options.stock, "-c", name]
    release = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    official = upstream_run.configurations(options.stock, options.stock)[0]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for file, select in upstream_run.choice().items():
            # As the suite runs them: what some of them do depends on those before, in the process.
            results = {}
            for part in upstream_run.parts_of(file):
                results |= upstream_run.run(
                    official, options.source / "test", file, select, "sim", Path(folder), part
                )
            found[file] = sorted(t for t, result in results.items() if result.outcome == "passed")
            print(f"{file}: {len(found[file])} of {len(results)} pass", flush=True)
    RECORD.write_text(json.dumps({**load(), release: found}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
