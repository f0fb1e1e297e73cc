# SPDX-License-Identifier: Apache-2.0
"""`--dry` of `lmsbuild run`, `test` and `bench`: what is chosen, what is refused, what is run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lmsbuild_world import REPOSITORY

from lmsbuild.__main__ import run
from lmsbuild.base.console import Console
from lmsbuild.base.errors import BenchError, DemoError
from lmsbuild.places.device import Device, reason_of
from lmsbuild.places.environment import Environment
from lmsbuild.trials import demo
from lmsbuild.trials.bench import Benchmark
from lmsbuild.trials.suite import DRY


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMSBUILD_ROOT", str(REPOSITORY))


@pytest.mark.parametrize("name", ["run", "test", "bench"])
@pytest.mark.parametrize(
    ("options", "profile"),
    [((), "v100-32gb-pcie3"), (("--profile", "h200-141gb-pcie5"), "h200-141gb-pcie5")],
)
def test_a_profile_is_chosen(
    name: str, options: tuple[str, ...], profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "v2.6.0", "--dry", *options, "--dry-run", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    if name == "test":
        names = [Path(suite).stem.removeprefix("test_") for suite in result["suites"]]
        assert (result["device"], names) == ("dry", list(DRY))
    else:
        device = result["device"]
        assert (device["kind"], device["profile"]) == ("dry", profile)
        assert "times are modelled" in device["name"]


def test_a_calibrated_profile_is_named_by_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.toml"
    file.touch()
    assert run(["run", "v2.6.0", "--dry", "--profile", str(file), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"]["profile"] == str(file)


REFUSED = [
    ("run v2.6.0 --profile v100", "--profile v100 cannot be used because it is of the dry device"),
    ("run v2.6.0 --dry --profile v100", "there is no such profile; choose one of a100-80gb-pcie4"),
    ("run v2.6.0 --dry --profile none.toml", "--profile none.toml cannot be used because there is"),
    ("run v2.6.0 --dry --device sim", "--dry cannot go with --device sim because"),
    ("test v2.6.0 --dry --device cuda", "--dry cannot go with --device cuda because"),
    ("run tensorflow:v2.14.1 --dry", "cannot run dry because what runs here is its wheel for the"),
    ("test tensorflow:v2.14.1 --dry", "lmsbuild test tensorflow:v2.14.1 --cuda X.Y dry"),
    ("test v2.6.0 streams --dry", "streams cannot run dry because it is about values"),
    ("test v2.6.0 capacity simcuda --dry", "simcuda cannot run dry because it is about values"),
    ("test v2.6.0 nosuch --dry", "nosuch cannot be run because pytorch:v2.6.0 has"),
    ("test v2.6.0 --dry --record", "--record cannot go with --dry because that leaves values out"),
    ("bench v2.6.0 --dry --compare FILE --page FILE", "--compare cannot go with --dry because"),
    ("bench v2.6.0 --compared", "--compared cannot be used because it is of the dry device"),
    ("bench v2.6.0 --dry --plugin --compared", "--compared cannot be used because it is of the"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert run(words.replace("FILE", str(file)).split()) == 2
    assert message in capsys.readouterr().err


def demonstration(tmp_path: Path) -> demo.Demonstration:
    return demo.Demonstration(
        device="dry", simulated=True, needed=90 << 30, capacity=30 << 30, stock="out of memory",
        stock_message="", lms="finished", losses_equal=None, reference="", paged_out=70 << 30,
        paged_in=70 << 30, picture=tmp_path, result=tmp_path, profile="v100-32gb-pcie3",
        modelled_seconds=9.5, modelled_seconds_without_limit=3.25,
    )  # fmt: skip


def test_the_demonstration_says_what_is_modelled(tmp_path: Path) -> None:
    rows = dict(demo.table(demonstration(tmp_path)))
    assert rows["time"] == "9.50 s, without a limit 3.25 s (modelled)"
    assert rows["losses"] == "not computed: the device is dry" and "losses equal" not in rows
    demo._check(demonstration(tmp_path), {"message": ""})
    with pytest.raises(DemoError, match="cannot have trained this because only 1 bytes left"):
        demo._check(replace(demonstration(tmp_path), paged_out=1), {"message": ""})


def test_images_are_as_large_as_the_gpu_asks_for(tmp_path: Path) -> None:
    """The network needs so many bytes a pixel, whatever the size."""

    class Runner(demo._Runner):
        def __init__(self) -> None:
            pass

        def run(self, *_: Any, arguments: tuple[str, ...] = (), **__: Any) -> dict[str, Any]:
            return {"whole": 30 << 30, "needed": 3000 * int(arguments[1]) ** 2}

    name, side = Runner().true_size(Environment(tmp_path, "", reused=True))
    assert name == "--size" and int(side) % 32 == 0
    assert 3 <= 3000 * int(side) ** 2 / (30 << 30) < 3.1


def test_the_dry_benchmark_is_run_for_the_environment(tmp_path: Path, console: Console) -> None:
    """By this Python, with the environment's named; each run says itself what device it is for."""
    program = tmp_path / "tools" / "lmsbench" / "dry.py"
    program.parent.mkdir(parents=True)
    program.with_name("__init__.py").touch()
    program.write_text(
        "import json, os, sys\n"
        "open('said', 'w').write(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
        "sys.exit('--fail' in sys.argv)\n"
    )
    device = Device("dry", "a dry device", "v100-16gb-pcie3")
    variables = {"SIMCUDA_CACHE": "c", "SIMCUDA_DRY": "1", "SIMCUDA_PROFILE": "v100-16gb-pcie3"}
    results = tmp_path / "results" / "r.jsonl"

    def bench(*arguments: str) -> Path:
        environment = Environment(tmp_path / "env", "", reused=True)
        made = Benchmark(
            environment, device, variables, results, arguments, program.parents[1],
            {"ibm": Environment(tmp_path / "env-ibm", "", reused=True)},
        )  # fmt: skip
        page = made.run(3, console)
        assert page is not None
        return page

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        page = bench("--models", "gpt2")
        words, said = json.loads(Path("said").read_text())
        with pytest.raises(BenchError, match=r"`lmsbench\.dry` ended with code 1"):
            bench("--fail")
    assert page == results.parent / "README.md"
    assert words == [
        "--python", str(tmp_path / "env/bin/python"), "--results", str(results), "--page",
        str(page), "--minutes", "3", "--ibm", str(tmp_path / "env-ibm/bin/python"), "--profiles",
        "v100-16gb-pcie3", "--models", "gpt2",
    ]  # fmt: skip
    assert said["SIMCUDA_CACHE"] == "c" and "SIMCUDA_DRY" not in said
    assert said["PYTHONPATH"] == str(program.parents[1])


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("compiled\na.cpp:3: error: no such type\ng++ failed", "a.cpp:3: error: no such type"),
        (
            "x.o: in f:\nx.cpp: undefined reference to `g()'\ncollect2: error: ld returned 1",
            "x.cpp: undefined reference to `g()'",
        ),
        ("a\nkilled\n", "killed"),
        ("", "nothing was said"),
    ],
)
def test_what_a_compiler_says_is_the_reason(said: str, reason: str) -> None:
    assert reason_of(said) == reason
