# SPDX-License-Identifier: Apache-2.0
"""What is noted of the matrices that passed: parts of the full ones, and safeguards that bite."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner
from lmsbuild_world import REPOSITORY, plain_git

from lmsbuild.base.errors import ConfigError, SuiteError, TreeStateError
from lmsbuild.base.project import Project
from lmsbuild.commands import test as suites
from lmsbuild.commands.tags import command as tags_command
from lmsbuild.ship import trial
from lmsbuild.tags.frameworks import targets
from lmsbuild.trials import bites, passed
from lmsbuild.trials.bites import Bite
from lmsbuild.trials.passed import Part, Record, Recorder

TAG = "pytorch:v2.6.0"
PART = Part(TAG, "full", 1, 3, "id", "a" * 40, date(2026, 11, 20), 7, 1)
ENTRY = """
[[safeguard]]
id = "{id}"
why = "{why}"
file = "f.cpp"
search = "{search}"
replace = ""
test = "t"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    root = tmp_path / "project"
    (root / "tests" / "safeguards").mkdir(parents=True)
    (root / ".gitignore").write_text("/work/\n")
    plain_git(tmp_path, "init", "-q", str(root))
    for kind in bites.KINDS.values():
        safeguards(root, kind, one="x", two="y")
    monkeypatch.delenv("LMSBUILD_WORK", raising=False)
    return Project(root)


def safeguards(root: Path, kind: str, why: str = "", more: str = "", **found: str) -> str:
    """Safeguards by id, with what they search."""
    text = "".join(ENTRY.format(id=name, why=why, search=s) for name, s in found.items())
    (root / "tests" / "safeguards" / f"{kind}.toml").write_text(text + more)
    return commit(root, "safeguards")


def commit(root: Path, message: str) -> str:
    plain_git(root, "add", "-A")
    plain_git(root, "commit", "-q", "--allow-empty", "-m", message)
    return plain_git(root, "rev-parse", "HEAD").strip()


def run(project: Project, part: int, of: int, tests: int = 5) -> Part:
    return Recorder(project, TAG).passed("full", (part, of), passed=tests, skipped=0)


def standing(project: Project, of: str = TAG) -> bites.Standing:
    return bites.standing(project, of, passed.read(project).bites.get(of, {}))


def test_parts_come_together(project: Project) -> None:
    first = plain_git(project.root, "rev-parse", "HEAD").strip()
    run(project, 1, 2)
    second = commit(project.root, "the record of the first part")
    run(project, 2, 2)
    found = passed.read(project).parts
    assert [(p.part, p.parts, p.commit) for p in found] == [(1, 2, first), (2, 2, second)]
    (line,) = passed.summary(found)
    assert f"{TAG} full: in 2 parts (10 passed), on " in line
    assert first[:8] in line and second[:8] in line
    run(project, 1, 2)
    (line,) = passed.summary(passed.read(project).parts)
    assert f"{TAG} full: whole (10 passed), on {second[:8]}, " in line


def test_parts_by_order_divide_one_commit_alone() -> None:
    old = [replace(PART, by="order", part=n, on=date(2026, 11, 20 + n)) for n in (1, 2, 3)]
    (line,) = passed.summary(old)
    assert line == f"{TAG} full: whole (21 passed), on aaaaaaaa, 2026-11-21 to 2026-11-23"
    lines = passed.summary([*old[:2], replace(old[2], commit="b" * 40)])
    assert ["2 of 3 parts" in lines[0], "1 of 3 parts" in lines[1], len(lines)] == [True, True, 2]
    assert len(passed.summary([*old[:2], replace(PART, part=3)])) == 2


def test_a_part_is_noted_once_and_an_old_division_goes_when_the_new_one_is_whole(
    project: Project,
) -> None:
    run(project, 1, 1)
    run(project, 1, 2, tests=3)
    run(project, 1, 2, tests=4)
    found = passed.read(project).parts
    assert [(p.part, p.parts, p.passed) for p in found] == [(1, 1, 5), (1, 2, 4)]
    assert "1 of 2 parts (4 passed)" in passed.summary(found)[1]
    run(project, 2, 2)
    assert {p.parts for p in passed.read(project).parts} == {2}


def test_other_matrices_stay(project: Project) -> None:
    run(project, 1, 1)
    Recorder(project, TAG).passed("statistics", (1, 1), passed=46, skipped=0)
    Recorder(project, TAG).bites({"one": True})
    run(project, 1, 1)
    found = passed.read(project)
    assert {p.matrix for p in found.parts} == {"full", "statistics"}
    assert set(found.bites[TAG]) == {"one"}


def test_what_bites_is_noted_by_safeguard(project: Project) -> None:
    """Whatever parts it was run in, and on whatever commits."""
    first = plain_git(project.root, "rev-parse", "HEAD").strip()
    assert standing(project).missing == ["one", "two"]
    Recorder(project, TAG).bites({"one": True})
    assert standing(project).missing == ["two"]
    second = safeguards(project.root, "torch", one="x", two="y", three="z")
    Recorder(project, TAG).bites({"two": True})
    found = standing(project)
    assert found.missing == ["three"] and found.entries == 3
    assert {name: b.commit for name, b in found.bite.items()} == {"one": first, "two": second}
    today = found.bite["one"].on.isoformat()
    assert re.fullmatch(
        rf"{TAG} negative: 2 of 3 bite, on [0-9a-f]{{8}}, [0-9a-f]{{8}}, {today}", found.line
    )
    assert standing(project, "engine").missing == ["one", "two"]


def test_a_changed_entry_is_not_shown_to_bite(project: Project) -> None:
    Recorder(project, TAG).bites({"one": True, "two": True})
    safeguards(project.root, "torch", one="x", two="y2")
    assert standing(project).missing == ["two"]
    safeguards(project.root, "torch", why="as it was", one="x", two="y")  # said otherwise
    assert standing(project).missing == []
    safeguards(project.root, "torch", two="y")
    assert standing(project).missing == [] and standing(project).entries == 1


def test_what_no_longer_bites_is_struck_out(project: Project) -> None:
    Recorder(project, TAG).bites({"one": True, "two": True})
    Recorder(project, TAG).bites({"two": False})
    assert standing(project).missing == ["two"]


def test_a_safeguard_of_later_versions_is_not_missed(project: Project) -> None:
    safeguards(project.root, "plugin", one="x", more="since = [2, 10]\n")
    assert standing(project, "torch_lms:2.8.0").entries == 0
    assert standing(project, "torch_lms:2.10.0").missing == ["one"]
    assert standing(project, "torch_lms").missing == ["one"]


def test_what_was_never_run_is_shown(project: Project) -> None:
    Recorder(project, "pytorch:v1.13.1").bites({"one": True})
    shown = bites.standings(project, passed.read(project).bites)
    assert [s.of for s in shown] == ["pytorch:v1.13.1", "engine", "torch_lms", "tensorflow"]
    assert shown[1].line == "engine negative: 0 of 2 bite"


def test_a_project_without_safeguards_has_none_to_show(tmp_path: Path) -> None:
    assert bites.standings(Project(tmp_path), {}) == []


@pytest.mark.parametrize("name", ["tests/new.py", ".gitignore"])
def test_uncommitted_files_are_not_recorded(project: Project, name: str) -> None:
    (project.root / name).write_text("/work/\n# changed\n")
    with pytest.raises(TreeStateError, match=f"{name} is not as committed"):
        run(project, 1, 1)
    assert not passed.file_of(project).exists()


def test_what_changed_meanwhile_is_not_recorded(project: Project) -> None:
    recorder = Recorder(project, TAG)
    commit(project.root, "another")
    with pytest.raises(TreeStateError, match="another commit"):
        recorder.passed("full", (1, 1), passed=5, skipped=0)
    with pytest.raises(TreeStateError, match="another commit"):
        recorder.bites({"one": True})
    recorder = Recorder(project, TAG)
    with pytest.raises(TreeStateError, match="every test was skipped"):
        recorder.passed("full", (1, 1), passed=0, skipped=9)
    with pytest.raises(TreeStateError, match="every test was skipped"):
        recorder.bites({})
    assert passed.read(project) == Record()


def test_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(TreeStateError, match="no checkout of git"):
        Recorder(Project(tmp_path), TAG)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "passed = [{",
            'passed = [{ of = "x" }]',
            "bites = 3",
            "[bites.engine]\none = { on = 3 }",
        ),
        '[bites.engine]\none = { commit = "a", on = "2026-11-27", entry = "b" }',
        "[bites.engine]\none = { commit = 1.5, on = 2026-11-27, entry = 'b' }",
    ],
)
def test_a_damaged_record(project: Project, text: str) -> None:
    passed.file_of(project).write_text(text)
    with pytest.raises(ConfigError, match=r"passed\.toml cannot be read"):
        passed.read(project)


@pytest.mark.parametrize("text", ["safeguard = [{", "", "[[safeguard]]\n"])
def test_damaged_safeguards(project: Project, text: str) -> None:
    (project.root / "tests/safeguards/torch.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"torch\.toml cannot be read"):
        standing(project)


def test_tags_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = bites.entries(Project(REPOSITORY), "torch")
    first, *rest = entries
    record = Record(
        [PART, replace(PART, of="torch_lms:2.8.0")],
        {TAG: {first: Bite("a" * 40, date(2026, 11, 20), entries[first].digest)}},
    )
    monkeypatch.setattr(passed, "read", lambda project: record)
    shown = CliRunner().invoke(tags_command, []).output
    assert f"{TAG} full: 1 of 3 parts (7 passed), on aaaaaaaa, 2026-11-20" in shown
    assert f"{TAG} negative: 1 of {len(entries)} bite, on aaaaaaaa, 2026-11-20" in shown
    assert "engine negative: 0 of " in shown and "torch_lms:2.8.0 full: 1 of 3" in shown
    assert rest[0] not in shown
    assert f"not shown to bite: {rest[0]}, " in CliRunner().invoke(tags_command, ["-v"]).output
    rows = {
        row["tag"]: row for row in json.loads(CliRunner().invoke(tags_command, ["--json"]).stdout)
    }
    assert [part["of"] for part in rows[TAG]["passed"]] == [TAG, "torch_lms:2.8.0"]
    found = {tag: [each["of"] for each in row["negative"]] for tag, row in rows.items()}
    assert found[TAG] == [TAG, "engine", "torch_lms"]
    assert found["tensorflow:v2.14.1"] == ["engine", "tensorflow"]
    assert rows[TAG]["negative"][0]["missing"] == rest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-k", "x"], "leaves tests out"),
        (["--no-stock"], "leaves tests out"),
        (["training", "--missing"], "name negative as the only suite"),
        (["negative", "training", "--missing"], "name negative as the only suite"),
    ],
)
def test_what_is_not_recorded(words: list[str], says: str) -> None:
    done = CliRunner().invoke(suites.command, ["v2.6.0", "--record", *words])
    assert says in str(done.exception) + done.output


@pytest.fixture
def ran(project: Project, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the suites of PyTorch are run with: `lmsbuild test` on a project where they are not, and
    where the run ends at once, with one safeguard that bites and one that does not."""
    from lmsbuild.trials.suite import Outcome

    target = next(t for t in targets(Project(REPOSITORY)) if t.label == TAG)
    monkeypatch.setattr(suites, "resolve", lambda *_: replace(target, project=project))
    monkeypatch.setattr(suites, "suites", lambda *_: [Path("test_negative.py")])
    selected: list[str] = []

    def end(*_: object, select: str, **__: object) -> Outcome:
        selected.append(select)
        found = {"one": True, "two": False}
        return Outcome(1, 1, 0, ["two"], [["why"]], found, 1.0, Path("x.xml"), Path("x.html"))

    monkeypatch.setattr(trial, "run", end)
    return selected


def test_what_bites_is_recorded_though_another_does_not(project: Project, ran: list[str]) -> None:
    done = CliRunner().invoke(
        suites.command, ["v2.6.0", "negative", "--record", "-k", "one or two"]
    )
    assert isinstance(done.exception, SuiteError) and ran == ["one or two"]
    assert standing(project).missing == ["two"]
    assert "1 safeguards of pytorch:v2.6.0 bite" in done.output
    CliRunner().invoke(suites.command, ["v2.6.0", "negative", "--missing"])
    assert ran[1:] == ["[two]"]
    Recorder(project, TAG).bites({"two": True})
    done = CliRunner().invoke(suites.command, ["v2.6.0", "negative", "--missing"])
    assert done.exit_code == 0 and "nothing to run" in done.output and len(ran) == 2


def test_the_record_of_this_repository_is_of_its_commits() -> None:
    record = passed.read(Project(REPOSITORY))
    for part in record.parts:
        assert 1 <= part.part <= part.parts and part.by in ("id", "order")
    commits = {p.commit for p in record.parts}
    commits |= {b.commit for found in record.bites.values() for b in found.values()}
    if plain_git(REPOSITORY, "rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("this clone has not all commits")
    known = plain_git(REPOSITORY, "rev-list", "HEAD").split()
    assert commits and commits <= set(known)
