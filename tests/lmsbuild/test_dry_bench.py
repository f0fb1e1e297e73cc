# SPDX-License-Identifier: Apache-2.0
"""The benchmark on the dry device: what it runs, what it runs again, and its page."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_world import REPOSITORY

from lmsbench import dry, drycases, drypage
from lmsbench.dry import Bench
from lmsbench.drycases import MODELS, Case
from lmsbench.forks import Forks
from lmsbuild.base.console import Console
from lmsbuild.places.device import Device
from lmsbuild.places.environment import Environment
from lmsbuild.trials.bench import Benchmark

PROFILE = "v100-32gb-pcie3"
# Stands for `python -m lmsbench.forks`: a point needs 4 GiB without a limit, and on the whole GPU
# trains what is no larger than 20.
PROGRAM = """\
#!{python}
import json, sys
from pathlib import Path
if "-c" in sys.argv:  # whether there is a patched torch
    sys.exit(0)

def measure(point, settings):
    memory = int(settings.get("SIMCUDA_MEMORY", 0))
    with Path({log!r}).open("a") as log:
        log.write(point["method"] + settings.get("LMS_IBM_SPECULATE", "") + "\\n")
    if "SIMCUDA_TRACE" in settings:
        profile = {{"name": "x", "link_in": 1e9, "link_out": 1e9, "efficiency": {{"link": 1}}}}
        about = {{"format": "simcuda-trace", "version": 1, "memory": 1, "devices": 1}}
        about["profile"] = profile
        Path(settings["SIMCUDA_TRACE"]).write_bytes(json.dumps(about).encode() + b"\\n" + {body!r})
    if point["method"] == {crashes!r}:
        return None
    if point["method"] == "save_on_cpu" if memory else point["size"] > 20:
        return {{"status": "oom", "message": "CUDA out of memory"}}
    TWO = 2 << 30
    slow = 1 if point["method"] == "plain" else 4
    peak = min(memory or TWO, 4 << 30)
    said = {{"status": "ok", "peak_allocated": peak, "copied_bytes": slow * TWO}}
    return {{**said, "seconds": [slow, slow], "all_seconds": 3 * slow}}

for line in sys.stdin:
    answer = measure(**json.loads(line))
    code, error = (0, "") if answer else (1, "Traceback\\nValueError: it crashed")
    print(json.dumps({{"code": code, "answer": answer or {{}}, "error": error}}), flush=True)
"""
# Storages 0 and 1 of 2 GiB: made, made, read.
TWO = 2 << 30


def number(value: int) -> bytes:
    made = b""
    while value >= 0x80:
        made, value = made + bytes([value & 0x7F | 0x80]), value >> 7
    return made + bytes([value])


def op(name: bytes, *uses: bytes) -> bytes:
    return b"\1\0" + name + b"\0\0\0" + number(len(uses)) + b"".join(uses)


NEW = number(8 | 4 | 2) + number(TWO) + b"\0"
BODY = (
    op(b"\0\4make", NEW)
    + op(b"\0", number(16 | 8 | 4 | 2) + number(TWO) + b"\0")
    + op(b"\1\4read", number(0))
    + b"\0\0\0"
)


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (dry, drypage, drycases):
        monkeypatch.setattr(module, "FACTORS", (2.0, 4.0))
    program, log = tmp_path / "python", tmp_path / "log"

    def run(
        parts: tuple[str, ...] = ("factors",),
        crashes: str = "",
        until: float = float("inf"),
        elsewhere: tuple[str, ...] = (),
        models: tuple[str, ...] = ("gpt2",),
        jobs: int = 1,
    ) -> tuple[Bench, list[str]]:
        program.write_text(
            PROGRAM.format(python=sys.executable, log=str(log), body=BODY, crashes=crashes)
        )
        program.chmod(0o755)
        log.write_text("")
        others = {}
        for method in elsewhere:
            others[method] = str(tmp_path / method)
            Path(others[method]).write_text(
                program.read_text().replace('log.write(point["method"]', f'log.write("{method}"')
            )
            Path(others[method]).chmod(0o755)
        made = Bench(str(program), tmp_path / "results" / "r.jsonl", until, others, jobs)
        in_time = made.run((PROFILE,), models, parts)
        assert in_time == (until > 0)
        return made, log.read_text().split()

    return run


# What was out of memory is not tried with less.
RAN = ["plain", "lms", "save_on_cpu", "checkpoint", "both", "lms", "checkpoint", "both"]


def test_the_benchmark_measures_once_and_says_what_is_modelled(measure: Any) -> None:
    made, ran = measure()
    assert ran == RAN
    bound = made.found[Case(PROFILE, "gpt2", 16, "bound", 2.0).key]
    assert bound["bytes"] == 2 * TWO  # 0 leaves for 1, and comes back
    assert bound["all_seconds"] == pytest.approx(2 * TWO / 1e9)
    text = drypage.render(made.found)
    assert "Every time on this page is modelled" in text
    assert f"## {PROFILE} (modelled)" in text
    assert (
        "| gpt2 16 | 2 | 2.0 GiB | 0.25 | 1.50 | 2.79 |  |  |  |  |  |  |  | out of memory | 0.25 |"
        in text
    )
    # Where a storage alone is too large.
    no = "impossible | impossible"
    row = f"| gpt2 16 | 4 | 1.0 GiB | 0.25 | {no} |  |  | {no} |  | {no} |"
    assert f"{row} out of memory | 0.25 | 0.25 |" in text
    again, ran = measure()
    assert ran == [] and again.found == made.found
    lines = made.path.read_text().splitlines()
    made.path.write_text("\n".join(lines[:1]) + "\n")  # as if it had been killed
    again, ran = measure()
    assert ran == ["plain", *RAN[1:]]  # for its trace
    assert [json.loads(line)["case"] for line in made.path.read_text().splitlines()] == [
        json.loads(line)["case"] for line in lines
    ]


def test_other_environments_are_measured_beside_it(measure: Any) -> None:
    made, ran = measure(elsewhere=("plugin", "ibm"))
    assert ran[:5] == ["plain", "lms", "plugin", "ibm", "ibm1"]  # the last is told to speculate
    assert ran[5:8] == ["save_on_cpu", "checkpoint", "both"]
    text = drypage.render(made.found)
    shares = "bytes / bound | time / bound"
    head = f"| LMS: speed | {shares} | plug-in: speed | IBM's choice: speed | {shares} |"
    head += f" IBM's, ahead: speed | {shares} |"
    assert head in text
    assert (
        "| 2.0 GiB | 0.25 | 1.50 | 2.79 | 0.25 | 0.25 | 1.50 | 2.79 | 0.25 | 1.50 | 2.79 |" in text
    )
    _, ran = measure(elsewhere=("plugin", "ibm"))
    assert ran == []


def test_several_at_a_time_give_the_same(measure: Any) -> None:
    models = ("gpt2", "gpt2-amp")
    one, ran = measure(models=models)
    assert len(ran) == 2 * len(RAN)
    one.path.unlink()
    many, ran = measure(models=models, jobs=4)
    assert len(ran) == 2 * len(RAN) and many.found == one.found
    again, ran = measure(models=models)
    assert ran == [] and again.found == one.found


def test_the_largest_size_is_found_among_few(measure: Any) -> None:
    made, ran = measure(("largest",))
    sizes = MODELS["gpt2"].sizes()
    fits = max(size for size in sizes if size <= 20)
    assert len(ran) < 5 * 8 < 5 * len(sizes)
    same = f"{fits} (1.0x)"
    row = f"| {PROFILE} | gpt2 (batch) | {fits} | {same} |  |  |  | {same} | {same} | {same} |"
    assert row in drypage.render(made.found)
    last = Case(PROFILE, "gpt2", min(s for s in sizes if s > 20), "lms", None)
    del made.found[last.key]  # as if the time had been over: it is not known to be the largest
    assert f"| {fits} |  |  |  |  | {same}" in drypage.render(made.found)


def test_help_is_no_measurement(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "bin" / "python"  # of an environment with a patched torch
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    environment = Environment(path=tmp_path, key="", reused=True)
    bench = Benchmark(
        environment, Device("dry", "", PROFILE), {}, tmp_path / "made/results.jsonl", ["--help"],
        REPOSITORY / "tools",
    )  # fmt: skip
    assert bench.run(1, Console()) is None
    assert "--profiles PROFILES" in capfd.readouterr().out
    assert not list((tmp_path / "made").iterdir())


def test_all_profiles_of_the_results_are_on_the_page(measure: Any, tmp_path: Path) -> None:
    made, _ = measure()
    both = {**made.found, **{k.replace(PROFILE, "other"): v for k, v in made.found.items()}}
    page = tmp_path / "page" / "README.md"
    drypage.write(page, both)
    text = page.read_text()
    plots = {}
    for name in (PROFILE, "other"):
        assert f"## {name} (modelled)" in text and f"({name}.svg)" in text
        plots[name] = (page.parent / f"{name}.svg").read_bytes()
        assert b"modelled" in plots[name]
    drypage.write(page, both)
    assert plots[PROFILE] == (page.parent / f"{PROFILE}.svg").read_bytes()


def test_without_a_solver_there_are_no_bounds(
    measure: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    made, ran = measure()
    assert ran == RAN and not [key for key in made.found if "bound" in key]
    assert "scipy is not installed; pip install" in capsys.readouterr().out
    assert (
        "| gpt2 16 | 2 | 2.0 GiB | 0.25 |  |  |  |  |  |  |  |  |  | out of memory |"
        in drypage.render(made.found)
    )
    monkeypatch.undo()


def test_what_crashes_is_told_and_not_kept(measure: Any) -> None:
    made, ran = measure(crashes="lms")
    assert ran == RAN
    said = f"{PROFILE}/gpt2/16/lms/2: ValueError: it crashed (exit status 1)"
    assert made.failed[0] == said
    assert "lms" not in made.path.read_text()
    made.path.unlink()
    made, ran = measure(crashes="plain")
    assert ran == ["plain"] and len(made.failed) == 1  # the others are measured by it


def test_a_process_that_cannot_begin_says_why(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no torch' >&2\nexit 4\n")
    program.chmod(0o755)
    forks = Forks(str(program))
    for _ in range(2):
        assert forks.measure({}, {"SIMCUDA_PROFILE": PROFILE}) == (
            4,
            {},
            "ModuleNotFoundError: no torch\n",
        )
    forks.close()


def test_nothing_is_begun_when_the_time_is_over(measure: Any) -> None:
    _, ran = measure(until=0)
    assert ran == []


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lmsbench.dry", "--results", "r.jsonl", *words],
        env={"PYTHONPATH": str(REPOSITORY / "tools")}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--models", "gpt2,gpt3"),
            "'gpt3' is not known; choose of resnet50, resnet50-224, deeplabv3",
        ),
        (("--profiles", "v100"), "'v100' is not known; choose of"),
        (("--jobs", "0"), "'0' is no number of processes; give 1 or more"),
        (("--parts", "all"), "'all' is not known; choose of factors, largest"),
        (("--python", "no/python"), "no/python cannot be run because of No such file"),
        (("--python", "false"), "false has no torch with Large Model Support; name the Python"),
        ((), "the following arguments are required: --python"),
    ],
)
def test_wrong_options_are_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*words)
    assert done.returncode == 2 and message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_broken_line_of_the_results(
    measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = measure()
    whole = made.path.read_text()
    made.path.write_text(whole[:-20])  # killed while it was written
    _, ran = measure()
    assert ran == ["both"] and made.path.read_text() == whole
    made.path.write_text(whole.replace('"case"', '"caes"', 1))
    monkeypatch.chdir(made.path.parent)
    done = command("--python", str(tmp_path / "python"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: line 1 of r.jsonl is no result because of KeyError: 'case'" in done.stderr
    assert "delete the line" in done.stderr
