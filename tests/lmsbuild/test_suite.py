# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY, World, write
from packaging.requirements import Requirement

from lmsbuild.base.console import Console
from lmsbuild.base.errors import MissingToolError, SuiteError, UsageError
from lmsbuild.base.project import Project
from lmsbuild.places import environment
from lmsbuild.places.device import Device
from lmsbuild.places.environment import Environment, interpreter, packages_for
from lmsbuild.ship import trial
from lmsbuild.tags.frameworks import resolve, targets
from lmsbuild.trials.picture import MIB, Trace, draw, terminal
from lmsbuild.trials.suite import Case, Order, parse_shard, read_junit, run_suites, suites

CONFTEST = """
def pytest_addoption(parser):
    for name in ("--device", "--stock", "--tier", "--shard"):
        parser.addoption(name)
"""
MIXED = """
import os, pytest

def test_good(pytestconfig):
    given = [pytestconfig.getoption(name) for name in ("device", "tier", "shard")]
    assert given == ["sim", "default", "2/3"]
    assert os.path.exists(pytestconfig.getoption("stock"))
    assert os.path.isdir(os.environ["LMS_SOURCE"])

@pytest.mark.slow
def test_slow(): ...

def test_bad():
    assert 1 == 2, "<one is not two>"

@pytest.mark.skip(reason="not here")
def test_other(): ...
"""


def order(world: World, shard: tuple[int, int] | None = None) -> Order:
    """This interpreter stands for both environments: its pytest is a real one."""
    here = Environment(Path(sys.prefix), "", True)
    device = Device("sim", "simulated CUDA device")
    paths = {"PYTHONPATH": str(REPOSITORY / "tools")}
    return Order(
        target=world.target,
        source=world.upstream,
        stock=here,
        lms=here,
        device=device,
        tier="default",
        shard=shard,
        variables=paths,
    )


def test_report_of_real_tests(world: World, console: Console) -> None:
    files = {"test_mixed.py": MIXED, "conftest.py": CONFTEST}
    write(world.project.root, {f"tests/regression/{name}": text for name, text in files.items()})
    done = run_suites(order(world, (2, 3)), suites(world.target, []), console)
    assert (done.passed, done.failed, done.skipped) == (1, 1, 1)
    assert len(done.failures) == 1 and done.failures[0].endswith("test_mixed::test_bad")
    assert any("<one is not two>" in line for line in done.reasons[0]), done.reasons
    assert {case.outcome for case in read_junit(done.junit)} == {"passed", "failed", "skipped"}
    page = done.html.read_text()
    assert "alpha:v1.0" in page and "&lt;one is not two&gt;" in page and "<one is" not in page


def test_why_a_test_failed_fits_a_console() -> None:
    trace = ["    def test_it():", ">       assert '1' == ''", "E       assert 'x' == ''", "E", ""]
    trace += [f"E         {line} {'x' * 1000}" for line in range(100)]
    said = Case("s", "t", 1.0, "failed", "\n".join([*trace, "", "test_it.py:3: AssertionError"]))
    assert 0 < len(said.why()) < 20 and all(len(line) < 300 for line in said.why())
    assert said.why()[-1].startswith("99 x")
    assert Case("s", "t", 1.0, "failed", "killed\n").why() == ["killed"]


def test_without_the_official_wheel(world: World, console: Console) -> None:
    text = "def test_it(pytestconfig):\n    assert pytestconfig.getoption('stock') is None\n"
    files = {"test_one.py": text, "conftest.py": CONFTEST}
    write(world.project.root, {f"tests/regression/{name}": text for name, text in files.items()})
    alone = replace(order(world), stock=None)
    done = run_suites(alone, suites(world.target, []), console)
    assert (done.passed, done.failed, done.skipped) == (1, 0, 0)


def test_tests_are_chosen_by_name(world: World, console: Console) -> None:
    files = {"test_mixed.py": MIXED, "conftest.py": CONFTEST}
    write(world.project.root, {f"tests/regression/{name}": text for name, text in files.items()})
    wanted = replace(order(world, (2, 3)), select="bad or other")
    done = run_suites(wanted, suites(world.target, []), console)
    assert (done.passed, done.failed, done.skipped) == (0, 1, 1)


def test_no_tests_is_an_error(world: World, console: Console) -> None:
    files = {"test_none.py": "", "conftest.py": CONFTEST}
    write(world.project.root, {f"tests/regression/{name}": text for name, text in files.items()})
    with pytest.raises(SuiteError, match="no test was selected"):
        run_suites(order(world), suites(world.target, []), console)


def test_suites_are_chosen_by_name(world: World) -> None:
    files = {"test_one.py": "", "many/test_two.py": "", "helper.py": "", "data/file": ""}
    write(world.project.root, {f"tests/regression/{name}": text for name, text in files.items()})
    assert [path.name for path in suites(world.target, [])] == ["test_one.py", "many"]
    assert [path.name for path in suites(world.target, ["many"])] == ["many"]
    with pytest.raises(UsageError, match="one, many"):
        suites(world.target, ["three"])


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3"])
def test_wrong_shards(text: str) -> None:
    with pytest.raises(UsageError):
        parse_shard(text)
    assert parse_shard("2/8") == (2, 8)


def test_pictures(tmp_path: Path) -> None:
    samples = [[float(i), i * MIB, 0, 0] for i in range(100)]
    trace = Trace("official wheel", "operations", samples, died=True)
    text = terminal(trace, 99 * MIB, 50 * MIB, width=10, height=4)
    lines = text.splitlines()
    assert lines[0] == "official wheel (dies)" and len(lines) == 5
    assert "device" in lines[2] and sum("device" in line for line in lines) == 1
    heights = [sum(line.split("│")[1][i] != " " for line in lines[1:]) for i in range(10)]
    assert heights == sorted(heights) and heights[-1] == 4
    assert len(terminal(Trace("empty", "", [], False), MIB, MIB).splitlines()) == 7
    draw(tmp_path / "memory.png", [trace], 50 * MIB, "title")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.net
def test_old_python_builds_what_has_no_wheel(
    world: World, tmp_path: Path, console: Console
) -> None:
    """The pip that an old Python comes with needs the package wheel for that."""
    try:
        base = interpreter("3.7")
    except MissingToolError:
        pytest.skip("needs Python 3.7")
    subprocess.run([base, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    folder = packages_for(python, ["gast==0.2.2"], "3.7", world.target.label, console)
    assert [file.name for file in folder.iterdir()] == ["gast-0.2.2-py3-none-any.whl"]


@pytest.mark.parametrize(("python", "needed"), [("3.9", True), ("3.10", True), ("3.11", False)])
def test_an_environment_has_what_the_device_reads_toml_with(
    world: World, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch,
    python: str, needed: bool,
) -> None:  # fmt: skip
    asked: list[str] = []

    def install(_: Environment, packages: list[str], *__: object, **___: object) -> None:
        asked.extend(packages)
        raise InterruptedError

    monkeypatch.setattr(environment, "interpreter", lambda _: sys.executable)
    monkeypatch.setattr(environment, "_run", lambda *_: None)
    monkeypatch.setattr(environment, "_install", install)
    wheel = tmp_path / "alpha-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("alpha-1.0.dist-info/METADATA", "Name: alpha\nVersion: 1.0\n")
    contents = environment.Contents(wheel=wheel, python=python, on_gpu=False)
    with pytest.raises(InterruptedError):
        environment.prepare(world.target, "run", contents, console)
    assert any(package.startswith("tomli") for package in asked) == needed


def test_the_device_needs_no_pip(tmp_path: Path) -> None:
    """Of a Python that cannot read TOML."""
    try:
        python = interpreter("3.10")
    except MissingToolError:
        pytest.skip("needs Python 3.10")
    write(tmp_path, {"tomli.py": ""})
    done = subprocess.run(
        [python, "-c", "import sys; sys.modules['pip'] = None; import simcuda"],
        env={"PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY / "tools", tmp_path)))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_bytecode_is_kept_beside_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    source = tmp_path / "source"
    write(source, {"imported.py": "x = 1\n"})
    here = Environment(tmp_path / "environment", "", True)
    done = here.run([sys.executable, "-c", "import imported"], cwd=source)
    assert done.returncode == 0
    assert [p.name for p in source.iterdir()] == ["imported.py"]
    assert list(here.path.rglob("imported.*.pyc"))


def test_a_tag_has_its_own_versions_of_what_the_suites_use(real_project: Project) -> None:
    def used(label: str) -> dict[str, Requirement]:
        tools, alone = trial.packages(resolve(real_project, label))
        found = [Requirement(text) for text in (*tools, *alone)]
        assert len({each.name for each in found}) == len(found), found
        return {each.name: each for each in found}

    newest = used("v2.6.0")
    for target in targets(real_project):
        own = {Requirement(text).name: Requirement(text) for text in target.tag.tools}
        have = used(target.label)
        assert own.items() <= have.items(), "what no suite uses has a version"
        if target.framework_name == "pytorch":
            assert have.keys() >= newest.keys() - {"torchvision"}
    assert used("v1.13.1")["transformers"] != newest["transformers"]
