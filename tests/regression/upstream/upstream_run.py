# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests on one wheel: outcome of every test, whatever happens to the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import lms_device  # noqa: E402

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

SELECTION: list[dict[str, Any]] = tomllib.loads((HERE / "selection.toml").read_text())["files"]

STALL_SECONDS = 180.0  # without a test that starts or ends
EXIT_SECONDS = 5.0  # for a process whose tests are over
MOST_CRASHES = 25


@dataclass(frozen=True)
class Configuration:
    name: str
    python: str
    variables: dict[str, str]


@dataclass(frozen=True)
class Result:
    outcome: str  # passed, failed, skipped, crashed or hung
    text: str


def choice() -> dict[str, str]:
    """The -k expression by file of the default tier."""
    return {entry["file"]: entry["default"] for entry in SELECTION if "default" in entry}


def parts_of(file: str) -> list[tuple[int, int]]:
    """The parts that the choice of `file` is run in: (1, 3), (2, 3), (3, 3)."""
    count = next(entry.get("parts", 1) for entry in SELECTION if entry["file"] == file)
    return [(part, count) for part in range(1, count + 1)]


def also_off(file: str) -> bool:
    """Whether the default tier runs the choice of `file` with Large Model Support off, too."""
    return any(entry["file"] == file and entry.get("off", False) for entry in SELECTION)


def configurations(stock: str, lms: str) -> list[Configuration]:
    chaos = {"PYTORCH_LMS": "min_size=0", "LMS_DEBUG": "chaos"}
    return [
        Configuration("official", stock, {}),
        Configuration("lms-off", lms, {}),
        Configuration("lms-chaos", lms, chaos),
    ]


def run(
    configuration: Configuration,
    tests: Path,
    file: str,
    select: str,
    device: str,
    folder: Path,
    part: tuple[int, int] = (1, 1),
) -> dict[str, Result]:
    """Outcome by test id of the tests of `file` (in `tests`) that the -k expression selects, or of
    one `part` of them (3 of 4: (3, 4)), which is the same in every configuration.

    Raises RuntimeError when pytest cannot collect the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{Path(file).stem}-{part[0]}"
    record, log = folder / f"{stem}.jsonl", folder / f"{stem}.log"
    record.unlink(missing_ok=True)
    launcher = ["-m", "simcuda", "--memory", "2G", "-m"] if device == "sim" else ["-m"]
    command = [
        configuration.python, *launcher, "pytest", "-p", "record", "-p", "no:cacheprovider",
        "-c", os.devnull, "--rootdir", str(tests), "--noconftest", "-q", "--tb=short", file,
    ]  # fmt: skip
    if select:
        command += ["-k", select]
    environment = {**lms_device.child_environment(), **configuration.variables}
    environment.update(RECORD=str(record), RECORD_PART=f"{part[0]}/{part[1]}")
    entry = next((entry for entry in SELECTION if entry["file"] == file), {})  # by hand, any file
    if "devices" in entry:
        environment["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = entry["devices"]
    if select in entry.get("slow", []):
        environment["PYTORCH_TEST_WITH_SLOW"] = "1"
    if "ops" in entry and select == entry["default"]:
        environment["RECORD_OPS"] = " ".join(entry["ops"])
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), environment["PYTHONPATH"]])
    with log.open("wb") as output:
        for _ in range(MOST_CRASHES):
            code, hung = _attempt(command, tests, environment, record, output)
            if not hung and code in (0, 1, 5):
                return _results(record, "crashed")
            if not record.exists() or (_finished(record) and code > 0):
                break  # pytest ended by itself, and for another reason than what tests found
            _close(record, "hung" if hung else f"crashed ({_signal(code)})")
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise RuntimeError(f"{file} does not run to its end with {configuration.name}:\n{tail}")


def _attempt(
    command: list[str], tests: Path, environment: dict[str, str], record: Path, output: object
) -> tuple[int, bool]:
    process = subprocess.Popen(
        command,
        cwd=tests,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,  # type: ignore[arg-type]
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    size, since = -1, time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        now = record.stat().st_size if record.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        elif _finished(record) and time.monotonic() - since > EXIT_SECONDS:
            os.killpg(process.pid, signal.SIGKILL)  # every test has its outcome
            process.wait()
            return int(json.loads(record.read_text().splitlines()[-1])["text"]), False
        elif time.monotonic() - since > STALL_SECONDS:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return -signal.SIGKILL, True
    return process.returncode, False


def _finished(record: Path) -> bool:
    return record.exists() and '"outcome": "finished"' in record.read_text()[-100:]


def _signal(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _close(record: Path, outcome: str) -> None:
    """Gives the test that was running when the process ended its outcome."""
    last = json.loads(record.read_text().splitlines()[-1])
    with record.open("a") as stream:
        stream.write(json.dumps({"test": last["test"], "outcome": outcome, "text": ""}) + "\n")


def _results(record: Path, unfinished: str) -> dict[str, Result]:
    results: dict[str, Result] = {}
    lines = record.read_text().splitlines() if record.exists() else []
    for line in lines:
        entry = json.loads(line)
        if not entry["test"]:
            continue
        name, outcome = entry["test"].split("::", 1)[-1], entry["outcome"]
        if outcome == "started":
            results[name] = Result(unfinished, "")
        elif results.get(name) is None or results[name].outcome != "failed":
            results[name] = Result(outcome, entry["text"])
    return results


if __name__ == "__main__":  # python upstream_run.py PYTHON TESTS FILE [-k]: for a look by hand
    _, python, tests_folder, test_file, *rest = sys.argv
    found = run(
        Configuration("by-hand", python, {}), Path(tests_folder), test_file,
        rest[0] if rest else "", "sim", Path("/tmp") / "upstream-by-hand",
    )  # fmt: skip
    for test, result in found.items():
        print(result.outcome, test)
