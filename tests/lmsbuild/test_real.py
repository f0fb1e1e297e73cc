# SPDX-License-Identifier: Apache-2.0
"""The real framework sources: every supported tag, by the routes that this machine has."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY, plain_git

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.git import Git
from lmsbuild.base.project import Project
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.checkout import fetch
from lmsbuild.checkout.refresh import refresh
from lmsbuild.checkout.verify import verify
from lmsbuild.series.series import series_of
from lmsbuild.tags import sourcelists
from lmsbuild.tags.frameworks import resolve, targets

# The default tier has `lmsbuild verify --all`, which asks nearly as much.
pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.mark.parametrize("label", [target.label for target in targets(Project(REPOSITORY))])
def test_series_on_the_real_source(
    label: str, real_project: Project, tmp_path: Path, console: Console
) -> None:
    """apply gives the tree of a bare `git am`, and the overlay compiles what CMake compiles."""
    target = resolve(real_project, label)
    clone = os.environ.get("LMSBUILD_MIRROR")
    if target.tag.debian is None and not clone:
        pytest.skip("its source is in no package: set LMSBUILD_MIRROR to a clone")
    reference = Path(clone) if clone else None
    ours = fetch(target, "auto", tmp_path / "ours", console, reference=reference).path
    bare = tmp_path / "bare"
    plain_git(tmp_path, "clone", "-q", str(ours), str(bare))
    apply(target, ours, console)
    patches = [str(patch.path) for patch in series_of(target).patches]
    plain_git(bare, "am", "-q", *patches)
    tree = Git(ours).text("rev-parse", "HEAD^{tree}")
    assert plain_git(bare, "rev-parse", "HEAD^{tree}") == tree
    for library in target.tag.overlay.libraries:
        sourcelists.check_sources(library, ours)
    assert not refresh(target, ours, dry_run=True).written
    assert all(check.state == "ok" for check in verify(target, console, ours).checks)


def test_the_survey_that_the_page_shows(
    real_project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of those of its tags that the clone has."""
    clone = os.environ.get("LMSBUILD_MIRROR")
    if not clone:
        pytest.skip("set LMSBUILD_MIRROR to a clone of PyTorch")
    page = (REPOSITORY / "docs/porting.md").read_text(encoding="utf-8")
    table = page[page.index("| series | on ") :].partition("\n\n")[0]
    tags, _, *rows = ([cell.strip() for cell in row.split("|")[2:-1]] for row in table.splitlines())
    tags[0] = tags[0].removeprefix("on ")
    assert run(["survey", "--source", clone, "--json"]) == 0
    found: dict[tuple[str, str], list[str]] = {}
    for row in json.loads(capsys.readouterr().out)["surveyed"]:
        found.setdefault((row["series"], row["tag"]), []).append(row["state"])
    found = {cell: states for cell, states in found.items() if cell[0].startswith("pytorch:")}
    shown = {
        (f"pytorch:{series}", tag): cell.split(", ")
        for series, row in zip(tags, rows, strict=True)
        for tag, cell in zip(tags, row, strict=True)
    }
    assert found and found.keys() <= shown.keys()
    for cell, (runtime, *hooks) in found.items():
        assert runtime == "applied"
        one = shown[cell] * len(hooks) if len(shown[cell]) == 1 else shown[cell]
        assert hooks == one, cell
