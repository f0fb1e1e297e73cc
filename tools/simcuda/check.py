# SPDX-License-Identifier: Apache-2.0
"""Tries the simulated device on releases of torch: for each an environment with the official wheel,
a build, and the suite of tests/simcuda. The results make the table in docs/simcuda.md."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .builder import PACKAGE, cache_root
from .errors import SimcudaError
from .torchinfo import find_torch

NEWEST = "newest"
SUITE = PACKAGE.parent.parent / "tests" / "simcuda"
BEGIN, END = "<!-- versions: rendered by `python -m simcuda check` -->", "<!-- end of versions -->"

# What a wheel wants from NVIDIA and Triton is what the simulated device stands in for.
_STOOD_IN_FOR = re.compile(r"(nvidia|cuda|triton|pytorch-triton)\b", re.IGNORECASE)
_TESTS_NEED = ("numpy", "pytest>=8,<10", "pytest-timeout>=2.3,<3")

if TYPE_CHECKING:
    Progress = Callable[[str], None]


@dataclass
class Row:
    """The outcomes of the tests of one subject; `notes` has a line for each that did not pass."""

    passed: int = 0
    skipped: int = 0
    failed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        total = self.passed + self.skipped + self.failed
        return str(total) if self.passed == total else f"**{self.passed} of {total}**"


@dataclass
class Result:
    """A run of the suite on one release; `code` names the device and the suite that were run."""

    torch: str
    python: str
    code: str
    seconds: float
    rows: dict[str, Row]

    @property
    def failed(self) -> int:
        return sum(row.failed for row in self.rows.values())


def check(
    version: str, folder: Path | None = None, jobs: int = 2, progress: Progress | None = None
) -> Result:
    """Run the suite on the official wheel of `version` (``newest``: the registry's latest).

    `folder` keeps the environments and the results; what has been run with the same code is not run
    again. Raises SimcudaError if there is no such wheel, or if the device cannot be built for it.
    """
    say = progress or (lambda _: None)
    if not SUITE.is_dir():
        raise SimcudaError(f"there are no tests at {SUITE}; run this from a checkout")
    if version == NEWEST:
        version = newest()
    folder = folder or cache_root() / "check"
    folder.mkdir(parents=True, exist_ok=True)
    environment = folder / f"torch-{version}"
    python = environment / "bin" / "python"
    _install(version, environment, python, say)
    torch = find_torch(_torch_package(environment))
    assert torch is not None
    code = _code()
    kept = folder / f"{torch.version}.json"
    if kept.is_file():
        result = read(kept)
        if result.code == code and not result.failed:
            say(f"torch {torch.version}: unchanged since the last run")
            return result
    # Settings of the caller's own device are none of the suite's.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("SIMCUDA")}
    variables |= {"PYTHONPATH": str(PACKAGE.parent), "SIMCUDA_CACHE": str(cache_root())}
    _call([python, "-m", "simcuda", "build", "-j", jobs], "building the device", say, variables)
    report = folder / f"{torch.version}.xml"
    report.unlink(missing_ok=True)
    say(f"torch {torch.version}: running the suite")
    options = (
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        "--timeout=300",
        f"--junitxml={report}",
    )
    done = subprocess.run(
        [str(python), "-m", "pytest", *options, str(SUITE)],
        env=variables,
        cwd=SUITE.parent.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    log = folder / f"{torch.version}.log"
    log.write_text(done.stdout + done.stderr)
    if done.returncode not in (0, 1) or not report.is_file():
        raise SimcudaError(
            f"the suite on torch {torch.version} ended with code {done.returncode} and no report; "
            f"see {log}"
        )
    rows, seconds = read_junit(report)
    result = Result(torch.version, _python_version(environment), code, seconds, rows)
    kept.write_text(json.dumps(asdict(result), indent=2) + "\n")
    return result


def newest() -> str:
    """The version of torch that pip would install here today. Raises SimcudaError."""
    options = ("--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--only-binary=:all:")
    with _python_with_pip() as python:
        done = subprocess.run(
            [str(python), "-m", "pip", "install", *options, "--report", "-", "torch"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise SimcudaError(f"the newest torch is not known because {said}; name a version")
    version: str = json.loads(done.stdout)["install"][0]["metadata"]["version"]
    return version.partition("+")[0]


@contextmanager
def _python_with_pip() -> Iterator[Path]:
    """This Python, or where it has no pip an environment of it that has."""
    if importlib.util.find_spec("pip"):
        yield Path(sys.executable)
        return
    with tempfile.TemporaryDirectory(prefix="simcuda-") as folder:
        venv.create(folder, with_pip=True)
        yield Path(folder) / "bin" / "python"


def read(path: Path) -> Result:
    """A result as `check` keeps it."""
    data = json.loads(path.read_text())
    data["rows"] = {name: Row(**row) for name, row in data["rows"].items()}
    return Result(**data)


def read_junit(path: Path) -> tuple[dict[str, Row], float]:
    """The rows of a pytest report, and its seconds: a row for each module, and for test_features
    one for each test function."""
    rows: dict[str, Row] = {}
    seconds = 0.0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2].removeprefix("test_")
        name = case.get("name", "")
        if module == "features":
            module = name.partition("[")[0].removeprefix("test_")
        row = rows.setdefault(module.replace("_", " "), Row())
        seconds += float(case.get("time", 0))
        bad = case.find("failure")
        bad = case.find("error") if bad is None else bad
        skipped = case.find("skipped")
        if bad is None and skipped is None:
            row.passed += 1
            continue
        if bad is not None:
            row.failed += 1
        else:
            row.skipped += 1
        found = bad if bad is not None else skipped
        assert found is not None
        why = (found.get("message") or "").splitlines() or [""]
        row.notes.append(f"{name}: {why[0][:160]}")
    return rows, seconds


def table(results: Sequence[Result]) -> str:
    """A Markdown table, versions across; below it what did not pass."""
    names = sorted({name for result in results for name in result.rows})
    lines = [
        "| tests | " + " | ".join(r.torch for r in results) + " |",
        "|---|" + "---|" * len(results),
    ]
    for name in names:
        cells = [r.rows[name].text if name in r.rows else "" for r in results]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    total = [str(sum(row.passed for row in r.rows.values())) for r in results]
    lines.append("| **passed** | " + " | ".join(total) + " |")
    notes = [
        f"- {result.torch}: {note}"
        for result in results
        for name in names
        for note in (result.rows[name].notes if name in result.rows else ())
    ]
    python = ", ".join(sorted({r.python for r in results}))
    lines += ["", f"A number alone: that many tests, all passed. Python {python}."]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def write_table(document: Path, results: Sequence[Result]) -> None:
    """Put the table between the two marks of a document."""
    text = document.read_text()
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise SimcudaError(
            f"{document} has no place for the table; add the lines {BEGIN} and {END} to it"
        )
    document.write_text(f"{text[:begin]}{BEGIN}\n{table(results)}\n{text[end:]}")


def plan(versions: Sequence[str], folder: Path | None = None) -> list[str]:
    """What `check` would do, one line a version."""
    folder = folder or cache_root() / "check"
    lines = []
    for version in versions:
        there = (folder / f"torch-{version}" / "done").exists()
        first = "use" if there else "install the wheel into"
        lines.append(
            f"torch {version}: {first} {folder / f'torch-{version}'}, build, run {SUITE.name}"
        )
    return lines


def _code() -> str:
    digest = hashlib.sha256()
    sources = [p for p in sorted(PACKAGE.rglob("*")) if p.suffix in (".py", ".cpp", ".h")]
    for path in [*sources, *sorted(SUITE.glob("*.py"))]:
        if path.name in (Path(__file__).name, "__main__.py", "test_check.py"):
            continue
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _install(version: str, environment: Path, python: Path, say: Progress) -> None:
    """The wheel, the pure-Python packages that it wants, and the headers of its CUDA."""
    mark = environment / "done"
    if mark.exists():
        return
    say(f"torch {version}: installing the wheel into {environment}")
    venv.create(environment, with_pip=True, clear=True)
    # "===" takes the wheel of the registry, not one with a local version (+cpu) from elsewhere.
    wanted = f"torch==={version}"
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
    what = f"installing torch {version}"
    _call([*pip, "--no-deps", "--only-binary=:all:", wanted], what, say)
    package = _torch_package(environment)
    torch = find_torch(package)
    assert torch is not None
    metadata = next(package.parent.glob("torch-*.dist-info/METADATA")).read_text()
    _call([*pip, *requirements(metadata), *_TESTS_NEED], what, say)
    _call([*pip, "--no-deps", *torch.header_wheels], what, say)
    mark.touch()


def requirements(metadata: str) -> list[str]:
    """What a torch wheel requires, without what the device stands in for and without extras."""
    found = re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE)
    return [r for r in found if not _STOOD_IN_FOR.match(r) and "extra ==" not in r]


def _torch_package(environment: Path) -> Path:
    found = list(environment.glob("lib/python*/site-packages/torch"))
    if not found:
        raise SimcudaError(f"{environment} has no torch; remove it and try again")
    return found[0]


def _python_version(environment: Path) -> str:
    return _torch_package(environment).parent.parent.name.removeprefix("python")


def _call(
    command: Sequence[object], what: str, say: Progress, env: dict[str, str] | None = None
) -> None:
    say(what)
    done = subprocess.run(
        [str(c) for c in command], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        text = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise SimcudaError(f"{what} failed; this is what it says:\n{text}")
