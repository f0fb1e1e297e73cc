# SPDX-License-Identifier: Apache-2.0
"""How the suites are divided among the workers of pytest-xdist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import balance
import parts

TESTS = balance.DURATIONS.parent

KNOWN = """
by_function = ["regression/test_b.py"]
by_case = ["regression/test_c.py"]

[together]
"regression/test_b.py::test_2" = "regression/test_b.py::test_1"

[seconds]
"regression/test_a.py" = 5
"regression/test_b.py::test_1" = 9
"regression/test_c.py::test_1[x]" = 7
"""


def test_units() -> None:
    units = balance.Units(KNOWN)
    assert [
        units.of(f"/a/tests/regression/{test}")
        for test in (
            *("test_a.py::test_1[x]", "test_b.py::test_1[x]", "test_b.py::test_2"),
            "test_c.py::test_1[tests/x]",
        )
    ] == [
        "regression/test_a.py",
        "regression/test_b.py::test_1",
        "regression/test_b.py::test_1",
        "regression/test_c.py::test_1[tests/x]",
    ]


def test_what_nobody_measured_and_what_takes_longest_is_first() -> None:
    units = balance.Units(KNOWN)
    names = ("test_a.py::test", "test_c.py::test_1[x]", "test_b.py::test_1", "test_d.py::test")
    names += ("test_c.py::test_1[y]",)
    places = units.places([f"tests/regression/{name}" for name in names])
    assert sorted(places, key=lambda unit: places[unit]) == [
        "regression/test_c.py::test_1[y]",
        "regression/test_d.py",
        "regression/test_b.py::test_1",
        "regression/test_c.py::test_1[x]",
        "regression/test_a.py",
    ]


def test_every_recorded_unit_exists() -> None:
    known = balance.Units()
    for unit in [*known.seconds, *known.together, *known.by_function, *known.by_case]:
        file, _, function = unit.partition("::")
        assert (TESTS / file).is_file(), f"durations.toml names {file}, which is gone"
        name = function.partition("[")[0]
        if function:
            assert f"def {name}(" in (TESTS / file).read_text(), f"durations.toml names {unit}"
            assert file in (known.by_case if "[" in function else known.by_function), unit


def test_a_run_in_two_processes(tmp_path: Path) -> None:
    """The long ones begin first, each unit in one process, and the report says what each took."""
    folder = tmp_path / "tests" / "some"
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text(
        f"import pathlib, sys\nsys.path.insert(0, {str(TESTS)!r})\nimport balance\n"
        f"balance.DURATIONS = pathlib.Path({str(tmp_path / 'durations.toml')!r})\n"
        "def pytest_configure(config): balance.register(config)\n"
    )
    (tmp_path / "durations.toml").write_text(
        'by_case = ["some/test_long.py"]\n[seconds]\n"some/test_many.py" = 1\n'
        '"some/test_long.py::test_it[0]" = 20\n"some/test_long.py::test_it[1]" = 10\n'
    )
    (folder / "test_many.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_short(n): ...\n"
    )
    (folder / "test_long.py").write_text(
        "import pytest, subprocess, sys, time\n@pytest.mark.parametrize('n', range(2))\n"
        "def test_it(n):\n    time.sleep(1 + n)\n"
        "    code = 'import time\\nwhile time.process_time() < 0.3: pass'\n"
        "    subprocess.run([sys.executable, '-c', code])\n"
    )
    report = tmp_path / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", str(folder), f"--rootdir={tmp_path}",
         f"--junitxml={report}", "-n2", "--dist=loadfile", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line for line in done.stdout.splitlines() if line.startswith("[gw")]
    where = {line.split("::")[-1].strip(): line.partition("]")[0] for line in ran}
    assert where["test_it[0]"] != where["test_it[1]"]
    assert len({where[f"test_short[{n}]"] for n in range(6)}) == 1
    took = balance.read(report)
    assert set(took) >= {"tests/some/test_long.py::test_it[0]"}
    assert 0.25 < took["tests/some/test_long.py::test_it[0]"] < 3
    balance.record([report], tmp_path / "durations.toml")
    again = balance.Units((tmp_path / "durations.toml").read_text())
    assert again.by_case and set(again.seconds) == {
        "some/test_many.py", "some/test_long.py::test_it[0]", "some/test_long.py::test_it[1]"
    }  # fmt: skip


def test_parts_of_upstreams_tests_are_disjoint_and_all(tmp_path: Path) -> None:
    """Also when one of the wheels lacks a test."""
    code = "import pytest\n@pytest.mark.parametrize('n', range({first}, 12))\ndef test_it(n): ...\n"
    found: dict[int, list[set[str]]] = {0: [], 1: []}
    for first, divided in found.items():
        (tmp_path / "test_many.py").write_text(code.format(first=first))
        for part in (1, 2, 3):
            record = tmp_path / f"{first}-{part}.jsonl"
            environment = {"RECORD": str(record), "RECORD_PART": f"{part}/3"}
            environment["PYTHONPATH"] = str(TESTS / "regression" / "upstream")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "record", "test_many.py"]
            subprocess.run(command, cwd=tmp_path, env={**os.environ, **environment}, check=True)
            divided.append({json.loads(line)["test"] for line in record.read_text().splitlines()})
            divided[-1].discard("")
    whole = [f"test_many.py::test_it[{n}]" for n in range(12)]
    assert sorted(test for part in found[0] for test in part) == sorted(whole)
    assert found[1] == [part - {whole[0]} for part in found[0]]


class Named:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "1/2/3"])
def test_no_such_part(shard: str) -> None:
    with pytest.raises(pytest.UsageError, match="--shard takes I/N"):
        parts.not_in(shard, [])


def test_a_part_has_the_same_tests_whatever_else_there_is() -> None:
    """So that parts of different commits divide what both have."""
    before = [f"tests/regression/test_{n % 7}.py::test_it[{n}]" for n in range(200)]
    after = ["tests/regression/test_0.py::test_new", *before[50:]]

    def divided(names: list[str]) -> list[set[str]]:
        items = [Named(name) for name in names]
        dropped = [parts.not_in(f"{part}/3", items) for part in (1, 2, 3)]  # type: ignore[arg-type]
        return [{item.nodeid for item in items if item not in drop} for drop in dropped]

    assert sorted(name for part in divided(after) for name in part) == sorted(after)
    for old, new in zip(divided(before), divided(after), strict=True):
        assert new & set(before) == old & set(after) != set()


def test_parts_of_a_suite_are_disjoint_and_all() -> None:
    """The suites of TensorFlow can be listed without it."""

    def listed(*words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", str(TESTS / "tensorflow"), "--device=cpu", "-q",
             "--tier=full", "--collect-only", "-p", "no:cacheprovider", *words],
            cwd=TESTS.parent, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if "::" in line]

    every = listed()
    divided = [listed(f"--shard={part}/3") for part in (1, 2, 3)]
    assert sorted(test for part in divided for test in part) == sorted(every)
    assert all(divided) and not any("test_negative" in test for test in every)


@pytest.mark.parametrize(
    "ends",
    [
        "import time; time.sleep(6); raise ValueError",
        "import atexit, time; atexit.register(time.sleep, 60); raise ValueError",  # slow to exit
        "def test_it(): assert 0",
    ],
)
def test_upstreams_tests_that_cannot_be_collected(tmp_path: Path, ends: str) -> None:
    """Tests that fail are a result; none at all is an error, however long that took to find."""
    (tmp_path / "test_any.py").write_text(f"def test_good(): ...\n{ends}\n")
    program = tmp_path / "run.py"
    program.write_text(
        "import sys, upstream_run as u\nfrom pathlib import Path\n"
        "u.EXIT_SECONDS = 0.5\n"
        "by_hand, here = u.Configuration('by-hand', sys.executable, {}), Path.cwd()\n"
        "found = u.run(by_hand, here, 'test_any.py', '', 'cuda', here / 'out')\n"
        "print({name: result.outcome for name, result in found.items()})\n"
    )
    upstream = TESTS / "regression" / "upstream"
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(upstream), str(upstream.parent)])},
        capture_output=True,
        text=True,
    )
    if ends.startswith("def"):
        assert done.stdout == "{'test_good': 'passed', 'test_it': 'failed'}\n", done.stderr
    else:
        assert "test_any.py does not run to its end with by-hand" in done.stderr


@pytest.mark.parametrize("words", [[], ["record"], ["other", "x"]])
def test_usage(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "balance.py"), *words], capture_output=True, text=True
    )
    assert done.returncode == 1 and "usage: " in done.stderr
