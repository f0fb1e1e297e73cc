# SPDX-License-Identifier: Apache-2.0
"""A command line without a TAG means the checkout that the user stands in, or the only one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest
from lmsbuild_world import World, plain_git, write

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.errors import UsageError
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.checkout import fetch
from lmsbuild.cli.group import COMMANDS, cli

# What makes each of them end at once.
ARGUMENTS = {
    "run": ["--dry-run"],
    "fetch": ["--dry-run"],
    "apply": ["--dry-run"],
    "refresh": ["--dry-run"],
    "export": ["--dry-run"],
    "wheel": ["--dry-run", "--offline"],
    "plugin": ["--dry-run", "--offline"],
    "verify": [],
    "lint": [],
    "test": ["--dry-run", "--offline"],
    "bench": ["--dry-run", "--offline"],
    "image": ["--render", "--kind", "compiler"],
    "conda": ["--dry-run", "--offline"],
    "release": ["--dry-run", "--offline"],
    "push": ["--dry-run"],
    "pop": ["--dry-run"],
    "drop": ["1", "--dry-run"],
    "squash": ["1", "2", "--dry-run"],
    "reorder": ["1", "--after", "2", "--dry-run"],
    "fold": ["none.diff", "--dry-run"],
    "import": ["none.patch", "--dry-run"],
}


def command_of(name: str) -> click.Command:
    assert isinstance(cli, click.Group)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def needs_tag(name: str) -> bool:
    return "Without TAG: that of the checkout" in (command_of(name).help or "")


def test_every_command_that_needs_a_tag_is_here() -> None:
    assert set(ARGUMENTS) == {name for name in COMMANDS if needs_tag(name)}
    for name in COMMANDS:
        required = [
            p.name for p in command_of(name).params if p.required and isinstance(p, click.Argument)
        ]
        assert "tag" not in required, name


def another_tag(world: World) -> None:
    """v1.1, of the same code."""
    patches = world.project.patches / "alpha"
    shutil.copytree(patches / "v1.0", patches / "v1.1")
    file = patches / "v1.1/tag.toml"
    file.write_text(file.read_text().replace('version = "1.0"', 'version = "1.1"', 1))


def outcome(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output, and the error, if one is told."""
    capsys.readouterr()
    code = run(list(words))
    out, err = capsys.readouterr()
    return code, out, "".join(line for line in err.splitlines() if line.startswith("error: "))


@pytest.fixture
def made(world: World, console: Console) -> Path:
    """A checkout in the work folder that lmsbuild applied."""
    path = fetch(world.target, str(world.upstream), None, console).path
    apply(world.target, path, console)
    return path


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_checkout_that_the_user_stands_in(
    world: World, made: Path, name: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    another_tag(world)
    other = world.target.work.with_name("alpha-v1.1") / "source"
    plain_git(world.folder, "clone", "-q", str(world.upstream), str(other))
    monkeypatch.chdir(made / "core")
    named = outcome(capsys, name, "alpha:v1.0", *ARGUMENTS[name])
    assert outcome(capsys, name, *ARGUMENTS[name]) == named
    # The control: it is not what another tag gives.
    assert outcome(capsys, name, "alpha:v1.1", *ARGUMENTS[name]) != named or name in SAME


SAME = ("push", "fold", "import", "plugin", "bench", "conda", "release", "run", "test")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_only_one_is_told(
    world: World, made: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = outcome(capsys, name, "alpha:v1.0", *ARGUMENTS[name])
    capsys.readouterr()
    code = run([name, *ARGUMENTS[name]])
    out, err = capsys.readouterr()
    line = f"alpha:v1.0: the TAG of the only checkout in {world.project.work}"
    assert (code, out) == named[:2] and err.splitlines().count(line) == 1


@pytest.mark.parametrize("name", ARGUMENTS)
def test_choices_are_listed(
    world: World, made: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    another_tag(world)
    shutil.copytree(made, world.target.work.with_name("alpha-v1.1") / "source")
    code, out, error = outcome(capsys, name, *ARGUMENTS[name])
    assert code == UsageError.exit_code and not out
    assert error == (
        f"error: `lmsbuild {name}` cannot start because TAG is missing and 2 checkouts stand in "
        f"{world.project.work} and you stand in none; name one of alpha:v1.1, alpha:v1.0 "
        f"(see `lmsbuild {name} --help`)"
    )


def test_without_any_all_tags_are_listed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    another_tag(world)
    code, _, error = outcome(capsys, "wheel")
    assert code == 2 and "has none; name one of alpha:v1.1, alpha:v1.0 (see" in error


def test_into_names_the_checkout(
    world: World, console: Console, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = world.folder / "elsewhere"
    shutil.copytree(made, elsewhere)
    shutil.rmtree(made.parent)
    code, out, _ = outcome(capsys, "apply", "--into", str(elsewhere), "--dry-run", "--json")
    assert code == 0 and json.loads(out)["path"] == str(elsewhere)
    plain = world.clone("plain")
    code, _, error = outcome(capsys, "apply", "--into", str(plain))
    assert code == 2 and f"{plain} is no checkout that lmsbuild made" in error


def test_json_stays_clean(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["already"] == 3 and "the only checkout" in err


def test_a_suite_may_come_first(
    world: World, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        world.project.root, {"tests/regression/test_one.py": "", "tests/regression/test_b.py": ""}
    )
    words = ("--dry-run", "--offline", "--json")
    named = outcome(capsys, "test", "alpha:v1.0", "one", *words)
    assert outcome(capsys, "test", "one", *words) == named and named[0] == 0
    assert named != outcome(capsys, "test", "alpha:v1.0", *words)
    code, _, error = outcome(capsys, "test", "nonsense")
    assert code == 3 and "nonsense cannot be used" in error


def test_a_new_release_is_named(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = outcome(capsys, "plugin", "--new")
    assert code == 2 and "TAG is missing and --new is for a release that is not known" in error
