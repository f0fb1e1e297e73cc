# SPDX-License-Identifier: Apache-2.0
"""docs/coming-from-ibm.md names a test for each of its claims, and those tests are there; so are
those that CONTRIBUTING.md runs."""

from __future__ import annotations

import re
from pathlib import Path

from lmsbuild.base.project import Project
from lmsbuild.tags.frameworks import targets

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs/coming-from-ibm.md"


def test_every_claim_names_tests_that_are_there() -> None:
    table = PAGE.read_text().split("## The tests")[1].split("|---|---|\n")[1]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    assert len(rows) > 15 and all(claim for claim, _ in rows)
    for claim, named in rows:
        file = ""
        for where in re.findall(r"`([^`]+)`", named):
            path, _, test = where.partition("::")
            file = path or file
            text = (PROJECT / file).read_text()
            assert not test or re.search(rf"^def {test}\(", text, re.MULTILINE), (claim, where)
        assert file, f"no test is named for: {claim}"


def test_tensorflows_wheels_are_those_without_a_gpu() -> None:
    found = [t for t in targets(Project(PROJECT)) if t.framework_name == "tensorflow"]
    assert len(found) >= 3 and {t.wheel.project for t in found} == {"tensorflow-cpu"}


def test_the_commands_that_run_one_test_name_what_is_there() -> None:
    text = (PROJECT / "CONTRIBUTING.md").read_text().split("## Running one test")[1]
    commands = re.findall(r"^\| [^|]+ \| `([^`]+)` \|", text.split("\n## ")[0], re.MULTILINE)
    tests = PROJECT / "tests"
    names = {"negative"} | {file.stem.removeprefix("test_") for file in tests.glob("*/test_*")}
    for form, where in {
        r"^ *def (test_\w+)\(": "**/test_*.py",
        r"^TEST\((\w+)\)": "engine/*.cpp",
        r'^id = "([\w-]+)"': "safeguards/*.toml",
        r"test_(\w+)\.py": "regression/upstream/selection.toml",
    }.items():
        for file in tests.glob(where):
            names |= {*re.findall(form, file.read_text(), re.MULTILINE)}
    assert len(commands) == 9
    for command in commands:
        words = re.sub(r"^(lmsbuild test \S+|python( -m pytest)?) | -k", "", command).split()
        files = [PROJECT / word for word in words if "/" in word]
        assert all(file.is_file() for file in files), command
        ids = {part for file in files for part in re.findall(r'"(\w+)"', file.read_text())}
        for word in (word.removeprefix("sanitize-") for word in words if "/" not in word):
            assert any(word in name for name in names | ids), f"{word} of `{command}`"
