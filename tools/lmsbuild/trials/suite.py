# SPDX-License-Identifier: Apache-2.0
"""The regression suites: pytest inside the prepared environments, and a report of it.

A suite is a file test_<name>.py or a folder <name> of the framework's folder of suites. pytest
runs in the environment with the overlay wheel. The own conftest.py of a folder defines --device,
--stock (the interpreter with the official wheel), --tier and --shard; LMS_SOURCE names the patched
tree.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from lmsbuild.base.console import Console
from lmsbuild.base.errors import SuiteError, UsageError
from lmsbuild.base.project import make_folder
from lmsbuild.places.device import Device
from lmsbuild.places.environment import Environment
from lmsbuild.tags.frameworks import Target
from lmsbuild.trials import bites
from lmsbuild.wheel.toolchain import processors

TIERS = ("default", "full")
_MARKS = {"default": "not slow", "full": ""}
_NO_TESTS = 5
_SHARE = re.compile(r"\[ *(\d+)%\]\s*$")
_LINES, _WIDTH = 12, 200  # of why a test failed
SIMULATOR = "simcuda"  # the suite in tests/simcuda
# Those with tests that are not about values; the others of theirs are marked `values`.
DRY = ("allocator", "capacity", "cases", "statistics", "training")


@dataclass(frozen=True, kw_only=True)
class Order:
    target: Target
    source: Path
    stock: Environment | None  # None: what compares with it is left out
    lms: Environment
    device: Device
    tier: str
    shard: tuple[int, int] | None
    variables: dict[str, str]
    select: str = ""  # pytest's -k


@dataclass(frozen=True)
class Case:
    suite: str
    name: str
    seconds: float
    outcome: str  # passed, failed or skipped
    message: str

    def why(self) -> list[str]:
        """The end of what pytest says of a failure, a few lines that fit a console."""
        lines = self.message.splitlines()
        found = [line[1:].strip() for line in lines if line.startswith("E ")] or lines
        return [line[:_WIDTH] for line in found if line.strip()][-_LINES:]


@dataclass(frozen=True)
class Outcome:
    passed: int
    failed: int
    skipped: int
    failures: list[str]  # suite::test of each that failed
    reasons: list[list[str]]  # why each of these did, in a few lines
    bites: dict[str, bool]  # whether each safeguard that was turned off does, by id
    seconds: float
    junit: Path
    html: Path


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """`2/8` -> (2, 8). Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(
            f"--shard {text} cannot be used because it is not I/N with 1 <= I <= N; give e.g. 2/8"
        )
    return int(match[1]), int(match[2])


def _known(target: Target) -> dict[str, Path]:
    """Suite -> its file or folder."""
    tests = target.project.root / "tests"
    folder = target.project.root / target.framework.shows.suites
    folders = sorted(folder.iterdir()) if folder.is_dir() else []
    known = {path.stem.removeprefix("test_"): path for path in sorted(folder.glob("test_*.py"))}
    simulator = [tests / SIMULATOR] if target.framework.shows.device == SIMULATOR else []
    for path in [*folders, *simulator]:
        if any(path.glob("test_*.py")):
            known[path.name] = path
    return known


def suite_names(target: Target) -> list[str]:
    return list(_known(target))


def suites(target: Target, names: Sequence[str]) -> list[Path]:
    """The files or folders of the named suites, all of them for no names. Raises UsageError."""
    known = _known(target)
    unknown = [name for name in names if name not in known]
    if unknown or not known:
        raise UsageError(
            f"{', '.join(unknown) or 'a suite'} cannot be run because {target.label} has "
            f"{', '.join(known) or 'no suites'}; "
            f"name {'one of these' if known else 'a tag that has some'}"
        )
    return [known[name] for name in names] if names else list(known.values())


def dry_suites(target: Target, names: Sequence[str]) -> list[Path]:
    """As `suites`, of those that make sense where nothing is computed. Raises UsageError."""
    for name in names:
        if name in _known(target) and name not in DRY:
            raise UsageError(
                f"{name} cannot run dry because it is about values, of which a dry device computes "
                f"none, or about devices of its own; name some of {', '.join(DRY)}, or leave out "
                "--dry"
            )
    return suites(target, names or DRY)


def run_suites(order: Order, files: Sequence[Path], console: Console) -> Outcome:
    """Run pytest on `files`; its own output goes to the log, and its share is the progress."""
    folder = order.target.work / "reports"
    make_folder(folder)
    part = f"-{order.shard[0]}of{order.shard[1]}" if order.shard else ""
    of = "-plugin" if order.lms.path.name.endswith("plugin") else ""
    where = "-container" if order.lms.inside else ""
    stem = f"{order.device.kind}-{order.tier}{of}{where}{part}"
    reports = []
    regression = [file for file in files if file.name != SIMULATOR]
    if regression:
        options = [
            # With "=": pytest looks for its configuration beside any word that is a path.
            f"--device={order.device.kind}",
            *([f"--stock={order.stock.python}"] if order.stock else []),
            f"--tier={order.tier}",
        ]
        if order.shard:
            options.append(f"--shard={order.shard[0]}/{order.shard[1]}")
        report = folder / f"{stem}.xml"
        if _pytest(order, order.lms, regression, options, report, console=console):
            reports.append(report)
    simulator = [file for file in files if file.name == SIMULATOR]
    # The simulated device has tests of its own, which load it into their process with the
    # official wheel; the first shard runs them.
    first = not order.shard or order.shard[0] == 1
    if simulator and order.stock and order.device.kind == "sim" and first:
        report = folder / f"{stem}-{SIMULATOR}.xml"
        if _pytest(order, order.stock, simulator, [], report, console=console):
            reports.append(report)
    if not reports:
        raise SuiteError(
            "the suites gave no result because no test was selected; name other suites or tests"
        )
    cases = [case for report in reports for case in read_junit(report)]
    outcome = _outcome(cases, reports[0], folder / f"{stem}.html")
    outcome.html.write_text(_html(order, cases, outcome), encoding="utf-8")
    return outcome


def _pytest(
    order: Order, environment: Environment, files: list[Path], options: list[str], junit: Path,
    *, console: Console,
) -> bool:  # fmt: skip
    """Whether any test was selected, and so there is a report."""
    junit.unlink(missing_ok=True)
    command = [
        str(environment.python),
        *("-m", "pytest", "-q", *map(str, files)),
        *("--rootdir", str(order.target.project.root), f"--junitxml={junit}"),
        *(*options, "-m", _MARKS[order.tier], "-p", "no:cacheprovider"),
        *(["-k", order.select] if order.select else []),
        *_workers(order.device),
        # An installed lmsbuild carries the suites, but not the file that names their markers.
        *("-W", "ignore::pytest.PytestUnknownMarkWarning"),
    ]
    variables = {**order.variables, "LMS_SOURCE": str(order.source)}
    with console.task(f"testing {_named(files)}") as task:

        def line(text: str) -> bool:
            if share := _SHARE.search(text):
                task.update(int(share[1]), 100)
            return True

        done = environment.follow(command, line, order.target.project.root, variables)
    code = done.returncode
    if code == _NO_TESTS:
        return False
    if code not in (0, 1) or not junit.is_file():
        raise SuiteError(
            f"the suites gave no result because pytest ended with code {code}; see its output in "
            "the full log"
        )
    return True


def _named(files: list[Path]) -> str:
    """In a line of progress, which is repeated."""
    few = 4
    return ", ".join(file.stem for file in files) if len(files) <= few else f"{len(files)} suites"


def _workers(device: Device) -> list[str]:
    """Each process has a device of its own, but a GPU's memory cannot be shared out."""
    return [f"-n{processors()}", "--dist=loadfile"] if device.kind != "cuda" else []


def read_junit(path: Path) -> list[Case]:
    cases = []
    for case in ElementTree.parse(path).iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        skipped = case.find("skipped")
        found = problem if problem is not None else skipped
        cases.append(
            Case(
                suite=case.get("classname", ""),
                name=case.get("name", ""),
                seconds=float(case.get("time", "0")),
                outcome="failed"
                if problem is not None
                else "passed"
                if found is None
                else "skipped",
                message="" if found is None else found.text or found.get("message") or "",
            )
        )
    return cases


def _outcome(cases: list[Case], junit: Path, html: Path) -> Outcome:
    counts = {
        name: sum(c.outcome == name for c in cases) for name in ("passed", "failed", "skipped")
    }
    failed = [case for case in cases if case.outcome == "failed"]
    found = {bites.id_of(c.name): c.outcome == "passed" for c in cases if c.outcome != "skipped"}
    return Outcome(
        **counts,
        failures=[f"{case.suite}::{case.name}" for case in failed],
        reasons=[case.why() for case in failed],
        bites={name: bite for name, bite in found.items() if name},
        seconds=sum(case.seconds for case in cases),
        junit=junit,
        html=html,
    )


def _html(order: Order, cases: list[Case], outcome: Outcome) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lmsbuild"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.suite, []).append(case)
    return environment.get_template("report.html").render(
        order=order, groups=groups, outcome=outcome
    )
