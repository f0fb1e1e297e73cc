# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests: none that passes on the official wheel may fail on ours, with Large Model
Support off or in chaos mode. For the default tier what passes on the official wheel is recorded,
and not every file runs with Large Model Support off. `differences.toml` lists the exceptions, each
with its reason; one that is listed and does not differ fails as well."""

from __future__ import annotations

import fnmatch
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import lms_device
import official
import torch
import upstream_run

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
RELEASE = torch.__version__.partition("+")[0]
ALLOWED: list[dict[str, str]] = tomllib.loads((HERE / "differences.toml").read_text()).get(
    "differences", []
)


def _cases() -> list[Any]:
    """The plug-in, whose engine is the patch's, has the choice in the full tier and no more."""
    cases = []
    for entry in upstream_run.SELECTION:
        file, name = entry["file"], entry["file"].removesuffix(".py")
        for part in upstream_run.parts_of(file) if "default" in entry else []:
            case = (file, entry["default"], part)
            slow = part[0] > 1 or entry.get("slow", False) or lms_device.is_plugin()
            marks = [pytest.mark.slow] if slow else []
            cases.append(pytest.param(*case, id=f"{name}-choice-{part[0]}", marks=marks))
        for index, select in enumerate(entry["full"]):
            marks = [pytest.mark.slow, pytest.mark.native]
            cases.append(pytest.param(file, select, (1, 1), id=f"{name}-{index}", marks=marks))
    return cases


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("upstream")


@pytest.mark.parametrize(("file", "select", "part"), _cases())
def test_no_upstream_test_is_lost(
    file: str, select: str, part: tuple[int, int], reports: Path, pytestconfig: pytest.Config
) -> None:
    source = os.environ.get("LMS_SOURCE", "")
    tests = Path(source) / "test"
    if not (tests / file).is_file():
        pytest.skip("LMS_SOURCE names no source tree with PyTorch's tests")
    stock, device = pytestconfig.getoption("--stock"), pytestconfig.getoption("--device")
    if not stock:
        pytest.skip("--stock names no Python with the official torch")
    chosen = upstream_run.choice().get(file) == select
    recorded = official.recorded(RELEASE, file, part) if chosen else None
    configurations = {c.name: c for c in upstream_run.configurations(stock, sys.executable)}
    if recorded is not None and pytestconfig.getoption("--tier") == "default":
        del configurations["official"]
        if not upstream_run.also_off(file):
            del configurations["lms-off"]

    def run(name: str) -> dict[str, upstream_run.Result]:
        c = configurations[name]
        return upstream_run.run(c, tests, file, select, device, reports / name, part)

    def run_again(name: str, doubtful: set[str]) -> dict[str, upstream_run.Result]:
        """Some of these tests race on any wheel: a difference is one that shows twice."""
        names = {test.rsplit("::", 1)[-1].split("[")[0] for test in doubtful}
        c, folder = configurations[name], reports / f"{name}-again"
        again = upstream_run.run(c, tests, file, " or ".join(sorted(names)), device, folder, part)
        return {test: again[test] for test in doubtful if test in again}

    # Beside other workers one at a time: some of these tests wait with limits of time.
    alone = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") == "1"
    with ThreadPoolExecutor(max_workers=2 if alone else 1) as pool:
        results = dict(zip(configurations, pool.map(run, configurations), strict=True))
    passed = recorded or set()
    if "official" in results:
        passed = {test for test, result in results["official"].items() if _passed(result)}
    assert passed, f"no test of {file} passes on the official wheel: the comparison is empty"
    if recorded is not None and recorded != passed:
        again = run_again("official", recorded ^ passed)
        stale = {test for test, result in again.items() if _passed(result) == (test in passed)}
        assert not stale, f"official.json is not what the wheel does, run official.py: {stale}"
    configurations.pop("official", None)
    for name in configurations:
        doubtful = {
            test
            for test in passed
            if not _passed(results[name].get(test)) and not _allowed(name, file, test)
        }
        if doubtful:
            results[name].update(run_again(name, doubtful))
    lost = []
    for configuration in configurations:
        for test in sorted(passed):
            result = results[configuration].get(test)
            outcome = result.outcome if result else "not run"
            if (outcome != "passed") != _allowed(configuration, file, test):
                why = "is listed in differences.toml and passes" if outcome == "passed" else outcome
                lost.append(f"{configuration}: {test}: {why}\n{result.text if result else ''}")
    print(f"{file} -k '{select}': {len(passed)} pass on the official wheel, {len(lost)} differ")
    assert not lost, "\n".join(lost)


def _passed(result: upstream_run.Result | None) -> bool:
    return result is not None and result.outcome == "passed"


def _allowed(configuration: str, file: str, test: str) -> bool:
    return any(
        fnmatch.fnmatchcase(configuration, entry["configuration"])
        and entry["file"] == file
        and fnmatch.fnmatchcase(test, entry["test"])
        for entry in ALLOWED
    )
