# SPDX-License-Identifier: Apache-2.0
"""docs/coming-from-ibm.md names a test for each of its claims, and those tests are there."""

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
