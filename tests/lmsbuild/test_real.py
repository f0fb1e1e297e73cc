# SPDX-License-Identifier: Apache-2.0
"""The real framework sources: every supported tag, by the routes that this machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY, plain_git

from lmsbuild import cmake
from lmsbuild.apply import apply
from lmsbuild.checkout import fetch
from lmsbuild.console import Console
from lmsbuild.frameworks import resolve, targets
from lmsbuild.git import Git
from lmsbuild.project import Project
from lmsbuild.refresh import refresh
from lmsbuild.series import series_of
from lmsbuild.verify import verify

pytestmark = pytest.mark.net


@pytest.mark.parametrize("label", [target.label for target in targets(Project(REPOSITORY))])
def test_series_on_the_real_source(
    label: str, real_project: Project, tmp_path: Path, console: Console
) -> None:
    """apply gives the tree of a bare `git am`, and the overlay compiles what CMake compiles."""
    target = resolve(real_project, label)
    if target.tag.debian is None and not os.environ.get("LMSBUILD_MIRROR"):
        pytest.skip("its source is in no package: set LMSBUILD_MIRROR to a clone")
    ours = fetch(target, "auto", tmp_path / "ours", console).path
    bare = tmp_path / "bare"
    plain_git(tmp_path, "clone", "-q", str(ours), str(bare))
    apply(target, ours, console)
    patches = [str(patch.path) for patch in series_of(target).patches]
    plain_git(bare, "am", "-q", *patches)
    tree = Git(ours).text("rev-parse", "HEAD^{tree}")
    assert plain_git(bare, "rev-parse", "HEAD^{tree}") == tree
    for library in target.tag.overlay.libraries:
        cmake.check_sources(library, ours)
    assert not refresh(target, ours, dry_run=True).written
    assert all(check.state == "ok" for check in verify(target, console, ours).checks)
