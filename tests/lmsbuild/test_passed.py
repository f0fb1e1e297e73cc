# SPDX-License-Identifier: Apache-2.0
"""What is noted of the parts of a matrix that passed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner
from lmsbuild_world import REPOSITORY, plain_git

from lmsbuild.base.errors import ConfigError, TreeStateError
from lmsbuild.base.project import Project
from lmsbuild.commands.tags import command as tags_command
from lmsbuild.commands.test import command as suites_command
from lmsbuild.trials import passed
from lmsbuild.trials.passed import Part, Recorder

TAG = "pytorch:v2.6.0"
PART = Part(TAG, "full", 1, 3, "a" * 40, date(2026, 11, 20), 7, 1)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    root = tmp_path / "project"
    (root / "tests").mkdir(parents=True)
    (root / ".gitignore").write_text("/work/\n")
    plain_git(tmp_path, "init", "-q", str(root))
    commit(root, "first")
    monkeypatch.delenv("LMSBUILD_WORK", raising=False)
    return Project(root)


def commit(root: Path, message: str) -> str:
    plain_git(root, "add", "-A")
    plain_git(root, "commit", "-q", "--allow-empty", "-m", message)
    return plain_git(root, "rev-parse", "HEAD").strip()


def run(project: Project, part: int, of: int, tests: int = 5) -> Part:
    return Recorder(project, TAG, "full", (part, of)).passed(tests, 0)


def test_parts_come_together(project: Project) -> None:
    first = plain_git(project.root, "rev-parse", "HEAD").strip()
    run(project, 1, 2)
    second = commit(project.root, "the record of the first part")
    run(project, 2, 2)
    assert [(p.part, p.parts, p.commit) for p in passed.read(project)] == [
        (1, 2, first), (2, 2, second)
    ]  # fmt: skip
    (line,) = passed.summary(passed.read(project))
    assert f"{TAG} full: whole (10 passed) on {first[:8]}, {second[:8]}" in line


def test_a_part_is_noted_once_and_an_old_division_goes_when_the_new_one_is_whole(
    project: Project,
) -> None:
    run(project, 1, 1)
    run(project, 1, 2, tests=3)
    run(project, 1, 2, tests=4)
    found = passed.read(project)
    assert [(p.part, p.parts, p.passed) for p in found] == [(1, 1, 5), (1, 2, 4)]
    assert "1 of 2 parts (4 passed)" in passed.summary(found)[1]
    run(project, 2, 2)
    assert {p.parts for p in passed.read(project)} == {2}


def test_other_matrices_stay(project: Project) -> None:
    run(project, 1, 1)
    Recorder(project, passed.ENGINE, "negative", (1, 1)).passed(46, 0)
    run(project, 1, 1)
    assert {(p.of, p.matrix) for p in passed.read(project)} == {
        (TAG, "full"), ("engine", "negative")
    }  # fmt: skip


@pytest.mark.parametrize("name", ["tests/new.py", ".gitignore"])
def test_uncommitted_files_are_not_recorded(project: Project, name: str) -> None:
    (project.root / name).write_text("/work/\n# changed\n")
    with pytest.raises(TreeStateError, match=f"{name} is not as committed"):
        run(project, 1, 1)
    assert not passed.file_of(project).exists()


def test_what_changed_meanwhile_is_not_recorded(project: Project) -> None:
    recorder = Recorder(project, TAG, "full", (1, 1))
    commit(project.root, "another")
    with pytest.raises(TreeStateError, match="another commit"):
        recorder.passed(5, 0)
    recorder = Recorder(project, TAG, "full", (1, 1))
    with pytest.raises(TreeStateError, match="every test was skipped"):
        recorder.passed(0, 9)
    assert passed.read(project) == []


def test_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(TreeStateError, match="no checkout of git"):
        Recorder(Project(tmp_path), TAG, "full", (1, 1))


@pytest.mark.parametrize("text", ["passed = [{", 'passed = [{ of = "x" }]'])
def test_a_damaged_record(project: Project, text: str) -> None:
    passed.file_of(project).write_text(text)
    with pytest.raises(ConfigError, match=r"passed\.toml cannot be read"):
        passed.read(project)


def test_tags_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [PART, replace(PART, of="engine", matrix="negative", part=1, parts=1)]
    parts.append(replace(PART, of="torch_lms:2.8.0"))
    monkeypatch.setattr(passed, "read", lambda project: parts)
    shown = CliRunner().invoke(tags_command, []).output
    assert f"{TAG} full: 1 of 3 parts (7 passed) on aaaaaaaa, 2026-11-20" in shown
    assert "engine negative: whole" in shown and "torch_lms:2.8.0 full: 1 of 3" in shown
    rows = json.loads(CliRunner().invoke(tags_command, ["--json"]).stdout)
    found = {row["tag"]: [part["of"] for part in row["passed"]] for row in rows}
    assert found[TAG] == [TAG, "engine", "torch_lms:2.8.0"]
    assert found["tensorflow:v2.14.1"] == ["engine"]


@pytest.mark.parametrize("words", [["-k", "x"], ["--no-stock"]])
def test_what_leaves_tests_out_is_not_recorded(words: list[str]) -> None:
    done = CliRunner().invoke(suites_command, ["v2.6.0", "--record", *words])
    assert "leaves tests out" in str(done.exception) + done.output


def test_the_record_of_this_repository_can_be_read() -> None:
    for part in passed.read(Project(REPOSITORY)):
        assert 1 <= part.part <= part.parts and len(part.commit) == 40
