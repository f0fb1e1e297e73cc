# SPDX-License-Identifier: Apache-2.0
"""`make bench-tool` measures commands that write, and changes nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import bench
import pytest
from lmsbuild_processes import run
from lmsbuild_world import REPOSITORY, World, plain_git, write


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and "logs" not in path.parts
    }


def test_a_checkout_of_another_state_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refresh takes its edits of the runtime into lms/; the benchmark's does so in a copy."""
    project = world.project.root
    monkeypatch.delenv("LMSBUILD_WORK")
    assert (
        run("apply", "v1.0", "--source", "git", env={"LMSBUILD_WORK": str(project / "work")})[0]
        == 0
    )
    checkout = project / "work/alpha-v1.0/source"
    write(checkout, {"core/lms/engine.cpp": "int engine() { return 7; }\n"})
    plain_git(checkout, "commit", "-qam", "Another engine")
    write(project / "work/alpha-v1.0/wheels", {"x.whl": "wheel"})
    # The tool that is measured is the copy's own.
    (project / "tools").symlink_to(REPOSITORY / "tools")
    write(project, {".gitignore": "work\n.lmsbuild\n"})
    (project / "link").symlink_to("lms/core/engine.h")
    plain_git(project, "init", "-q")
    plain_git(project, "add", "-A")
    plain_git(project, "commit", "-qm", "Project")
    write(project, {"lms/core/new.h": "#pragma once\n"})
    (project / ".gitignore").write_text("work\n.lmsbuild\n*.bak\n")
    before = state(project)
    refs = plain_git(checkout, "for-each-ref")
    with bench.copied(project, "v1.0") as copy:
        assert (copy / "lms/core/new.h").is_file() and "*.bak" in (copy / ".gitignore").read_text()
        assert (copy / "work/alpha-v1.0/wheels/x.whl").samefile(
            project / "work/alpha-v1.0/wheels/x.whl"
        )
        assert (copy / "link").is_symlink()
        words = bench.bounds(copy, "v1.0", changing=False)
        assert {bound.words[0] for bound in words} >= {"refresh", "wheel"}
        bench.run([*bench._command(("refresh", "v1.0"))], copy)
        assert "return 7" in (copy / "lms/core/engine.cpp").read_text()
    assert state(project) == before and plain_git(checkout, "for-each-ref") == refs
    assert not list((project / "work").glob("bench-tool-*"))
    subprocess.run(["git", "fsck"], cwd=project, check=True, capture_output=True)
