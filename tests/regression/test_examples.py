# SPDX-License-Identifier: Apache-2.0
"""The examples, reduced, on a device that is too small for them."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from lms_device import MIB, child_command, child_environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pytorch"
HEADER = f"""
    import gc, json, os, sys, tempfile
    sys.path.insert(0, {str(EXAMPLES)!r})
    import simcuda, torch
    logs = tempfile.TemporaryDirectory()
    os.chdir(logs.name)
    """
TRANSFORMER = ("--layers=4", "--width=64", "--heads=2", "--words=256", "--tokens=64", "-b16")
NETWORK = ("-j0", "-asqueezenet1_1", "--image-size=64", "-b4", "--seed=1")

pytestmark = pytest.mark.values

TRAIN = """
    import importlib
    name, arguments = sys.argv[1], sys.argv[2:]
    example = importlib.import_module(name)

    def losses(*more):
        gc.collect()
        torch.cuda.empty_cache()
        return example.main([*arguments, *more])

    want = losses("--no-lms")
    peak = torch.cuda.max_memory_allocated()  # of the last batch
    simcuda.device.capacity = int(peak * 0.7)
    print('capacity', simcuda.device.capacity >> 20)
    try:
        losses("--no-lms")
        raise SystemExit("it fits")
    except torch.OutOfMemoryError:
        pass
    assert losses() == want and all(loss == loss for loss in want), want
    moved = torch.cuda.lms.stats()["lms.paged_out_bytes"]
    assert moved > 0 and len(want) == %d
    print("equal")
    """

DEEPLAB = ("deeplabv3", ("--size=64", "--backbone=mobilenet_v3_large", "-b4", "--steps=2"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("unet3d", ("--size=16", "--width=16", "--levels=3", "-b2", "--steps=2")),
        pytest.param(*DEEPLAB, marks=pytest.mark.slow),
        pytest.param("gpt2", (*TRANSFORMER, "--steps=2"), marks=pytest.mark.slow),
        ("hugging_face", (*TRANSFORMER, "--steps=2")),
        ("with_lightning", (*TRANSFORMER, "--steps=2")),
        pytest.param("ManyModel", NETWORK, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_trains_what_does_not_fit(
    program: Any, sim: Any, name: str, arguments: tuple[str, ...]
) -> None:
    if name in ("deeplabv3", "ManyModel"):
        pytest.importorskip("torchvision")  # each is for one release of torch
    code = HEADER + TRAIN % (12 if name == "ManyModel" else 2)
    assert "equal" in program(code, name, *arguments, memory=1024 * MIB)


DDP = """
    from torch.distributed.run import main
    main(["--standalone", "--nproc_per_node=2", *sys.argv[1:]])
    """


@pytest.mark.slow  # that DDP trains is in test_distributed.py
def test_a_process_for_each_gpu(program: Any, sim: Any) -> None:
    """Each of the two is without a GPU that is large enough."""
    arguments = (str(EXAMPLES / "ddp.py"), *TRANSFORMER, "--steps=2", "--dist-backend=gloo")
    env = {"SIMCUDA_DEVICES": "2"}
    out = program(HEADER + DDP, *arguments, memory=24 * MIB, env=env)
    moved = re.findall(r"([\d.]+) MiB moved out", out)
    assert "process 0: losses" in out and "process 1: losses" in out
    assert len(moved) == 2 and all(float(each) > 0 for each in moved), out


@pytest.mark.slow
def test_a_process_for_each_gpu_without(program: Any, sim: Any) -> None:
    arguments = (str(EXAMPLES / "ddp.py"), *TRANSFORMER, "--no-lms", "--dist-backend=gloo")
    env = {"SIMCUDA_DEVICES": "2"}
    out = program(HEADER + DDP, *arguments, memory=24 * MIB, env=env, fails=True)
    assert "OutOfMemoryError" in out


# ---- ManyModel.py

IBM_OPTIONS = {
    "-a": "resnet18", "--arch": "resnet18", "--image-size": 500, "--log": "steps", "-j": 4,
    "--workers": 4, "--epochs": 1, "-b": 1, "--batch-size": 1, "--lr": 0.1, "--learning-rate": 0.1,
    "--momentum": 0.9, "--wd": 1e-4, "--weight-decay": 1e-4, "--pretrained": False,
    "--world-size": -1, "--rank": -1, "--dist-url": "tcp://127.0.0.1:23456",
    "--dist-backend": "nccl", "--seed": None, "--gpu": None, "--multiprocessing-distributed": False,
    "--lms": True, "--no-lms": True, "--lms-limit": 0,
}  # fmt: skip

OPTIONS = """
    import ManyModel
    found = {
        name: action.default
        for action in ManyModel.options_of()._actions if action.dest != "help"
        for name in action.option_strings
    }
    print(json.dumps(found))
    """

LOGS = """
    import csv, ManyModel, statistics
    os.chdir(sys.argv[1])
    arguments = sys.argv[2:]

    def rows(name):
        with open(name, newline="") as file:
            return [dict(row) for row in csv.DictReader(file)]

    with open("squeezenet1_1-64.csv", "w") as file:
        file.write("of another run")
    ManyModel.main([*arguments, "--log", "steps", "--epochs", "2"])
    steps = rows("squeezenet1_1-64.csv")
    assert [(row["epoch"], row["step"]) for row in steps] == [
        (str(i // 12), str(i)) for i in range(24)]
    assert all(float(row["reclaimed_mib"]) > 0 for row in steps[2:]), steps
    for row in steps:
        speed = 4 * 64 * 64 / 1e6 / float(row["seconds"])
        assert abs(float(row["megapixels_per_second"]) - speed) < 1e-6 * speed

    for more in ((), ("--no-lms",)):
        ManyModel.main([*arguments, "--log", "summary", *more])
        simcuda.device.capacity = 1 << 30
    kept = rows("squeezenet1_1-summary.csv")
    assert [row["lms"] for row in kept] == ["True", "False"]
    assert all((row["image_size"], row["batches"]) == ("64", "10") for row in kept)
    assert float(kept[0]["reclaimed_mib_mean"]) > 0 == float(kept[1]["reclaimed_mib_mean"])
    print("fine")
    """

SUMMARY = """
    import csv, lmsstats, statistics

    class Known(lmsstats.LMSStatsSummary):
        def batch(self, row):  # times that are known
            row["seconds"] = (100, 50, 1, 2, 6)[row["step"]]
            row["megapixels_per_second"] = self.megapixels / row["seconds"]

    stats = Known(sys.argv[1], 12, {"arch": "none"})
    for number in range(5):
        with stats:
            torch.zeros(number << 18, device="cuda")
        if number == 1:
            try:
                stats.finish()
                raise SystemExit("no batch was left")
            except ValueError as error:
                assert "run at least 3" in str(error)
    try:
        with stats:
            raise KeyError
    except KeyError:
        pass
    stats.finish()
    with open(sys.argv[1], newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["arch"], row["batches"]) == ("none", "3"), row
    have = [float(row[f"{name}_{kind}"]) for name in ("seconds", "megapixels_per_second")
            for kind in ("mean", "median")]
    assert have == [3, 2, 20 / 3, 6], have
    assert float(row["allocated_peak_mib"]) == 4
    print("fine")
    """


def test_options_of_ibms_program(program: Any) -> None:
    pytest.importorskip("torchvision")
    assert json.loads(program(HEADER + OPTIONS).splitlines()[-1]) == IBM_OPTIONS


@pytest.mark.slow
def test_what_it_logs(program: Any, sim: Any, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    assert "fine" in program(HEADER + LOGS, str(tmp_path), *NETWORK, memory=24 * MIB)


def test_a_summary_leaves_the_first_two_batches_out(program: Any, sim: Any, tmp_path: Path) -> None:
    assert "fine" in program(HEADER + SUMMARY, str(tmp_path / "summary.csv"))


CHOICES = """
    import ManyModel
    arguments = sys.argv[1:]
    assert torch.cuda.device_count() == 2
    first = ManyModel.main([*arguments, "--gpu", "1"])
    peaks = [torch.cuda.max_memory_reserved(i) for i in range(2)]
    assert peaks[0] == 0 < peaks[1], peaks
    assert torch.cuda.lms.stats(1)["lms.paged_out_bytes"] == 0
    gc.collect()
    torch.cuda.empty_cache()  # within it nothing makes way
    assert ManyModel.main([*arguments, "--gpu", "1", "--lms-limit", "8"]) == first
    assert torch.cuda.lms.stats(1)["lms.paged_out_bytes"] > 0
    print("fine")
    """

PRETRAINED = """
    import ManyModel
    from torchvision import models
    network = models.squeezenet1_1()
    for weight in network.parameters():
        torch.nn.init.zeros_(weight)
    url = models.get_model_weights("squeezenet1_1").DEFAULT.url
    folder = os.path.join(sys.argv[1], "hub", "checkpoints")
    os.makedirs(folder)
    torch.save(network.state_dict(), os.path.join(folder, url.rpartition("/")[2]))
    losses = ManyModel.main([*sys.argv[2:], "--pretrained"])
    assert abs(losses[0] - 6.907755) < 1e-4, losses  # of weights that are zero: log(1000)
    print("fine")
    """


@pytest.mark.slow
def test_the_gpu_and_the_limit_that_are_named(program: Any, sim: Any) -> None:
    pytest.importorskip("torchvision")
    more = ("--image-size=160",)  # for tensors that are large enough to make way for a limit
    out = program(HEADER + CHOICES, *NETWORK, *more, memory=512 * MIB, env={"SIMCUDA_DEVICES": "2"})
    assert "fine" in out


@pytest.mark.slow
def test_published_weights(program: Any, sim: Any, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    env = {"TORCH_HOME": str(tmp_path)}
    out = program(HEADER + PRETRAINED, str(tmp_path), *NETWORK, memory=512 * MIB, env=env)
    assert "fine" in out


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["1", "4"])
def test_multiprocessing_distributed(program: Any, sim: Any, tmp_path: Path, batch: str) -> None:
    """The batch is shared out among the processes; the first writes the file."""
    pytest.importorskip("torchvision")
    code = f"""
        import os, sys
        sys.path.insert(0, {str(EXAMPLES)!r})
        import ManyModel
        if __name__ == "__main__":
            os.chdir(sys.argv[1])
            ManyModel.main(sys.argv[2:])
    """
    more = ("--multiprocessing-distributed", "--dist-backend=gloo", "--log=steps", f"-b{batch}")
    meeting = f"--dist-url=file://{tmp_path}/store"
    env = {"SIMCUDA_DEVICES": "2"}
    out = program(
        code, str(tmp_path), *NETWORK, *more, meeting, memory=24 * MIB, env=env, fresh=True
    )
    assert out.count("losses") == 1
    with (tmp_path / "squeezenet1_1-64.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 and all(float(row["reclaimed_mib"]) > 0 for row in rows[2:])


# ---- what is wrong

WRONG = [
    ("ManyModel", "-a resnet19", "argument -a/--arch: invalid choice: 'resnet19'"),
    ("ManyModel", "--image-size 0", "argument --image-size: 0 is less than 1"),
    ("ManyModel", "--gpu 1", "--gpu 1 is not there, as there are 1"),
    ("ManyModel", "--gpu 0 --multiprocessing-distributed", "names one GPU and"),
    ("ManyModel", "--lms-limit -1", "argument --lms-limit: -1 is less than 0"),
    ("unet3d", "--size 100", "--size 100 is no multiple of 16"),
    ("unet3d", "--steps two", "argument --steps: invalid number value: 'two'"),
    ("deeplabv3", "-b 1", "--batch-size must be 2 or more"),
    ("gpt2", "--width 64 --heads 5", "--width 64 is no multiple of --heads 5"),
    ("ddp", "", "it is to be started by torchrun"),
]

SAY = """
    import contextlib, importlib, io
    said = []
    for name, arguments in json.loads(sys.argv[1]):
        text = io.StringIO()
        try:
            with contextlib.redirect_stderr(text):
                importlib.import_module(name).main(arguments.split())
            raise RuntimeError(name + " goes on")
        except SystemExit as error:
            assert error.code == 2
        said.append(text.getvalue().splitlines()[-1])
    print(json.dumps(said))
    """

MISSING = """
    import gpt2
    tiny = ["--layers=1", "--width=8", "--heads=1", "--words=8", "--tokens=8", "--steps=1"]
    gpt2.main([*tiny, "--no-lms"])
    gpt2.main(tiny)
    """


def test_what_is_wrong_is_said_in_a_line(program: Any, sim: Any) -> None:
    pytest.importorskip("torchvision")
    given = json.dumps([case[:2] for case in WRONG])
    said = json.loads(program(HEADER + SAY, given).splitlines()[-1])
    for line, (name, _, text) in zip(said, WRONG, strict=True):
        assert ": error: " in line and text in line, name


def test_a_torch_without_large_model_support(
    sim: Any, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """It trains without; what is missing, and where to get it, is one line."""
    python = pytestconfig.getoption("--stock") or os.environ.get("LMS_STOCK_PYTHON")
    if not python:
        pytest.skip("needs --stock PYTHON, a Python with the official torch")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(HEADER + MISSING))
    done = subprocess.run(
        [*child_command("sim", python, 64 * MIB, "immediate"), str(program)],
        env=child_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout.startswith("losses ")
    line = done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert re.match(r"PyTorch \S+ has no Large Model Support because", line)
    assert "`lmsbuild wheel TAG`" in line and "`lmsbuild plugin v" in line and "--no-lms" in line


# ---- what the page says of them

PAGE = EXAMPLES.parents[1] / "docs" / "coming-from-ibm.md"


def table() -> list[tuple[str, float, float]]:
    """Arguments, seconds and MiB, of each true size."""
    found = re.findall(
        r"^\| `(\w+\.py.*?)` \| ([\d.]+) s \| ([\d.]+) MiB \|$",
        PAGE.read_text() if PAGE.is_file() else "", re.MULTILINE,
    )  # fmt: skip
    return [(line, float(seconds), float(mib)) for line, seconds, mib in found]


@pytest.mark.skipif(not PAGE.is_file(), reason="needs the project's docs")
def test_it_is_one_line() -> None:
    assert len(table()) == 6
    for file in EXAMPLES.glob("*.py"):
        uses = re.findall(r"^ +turn_on\(options\)", file.read_text(), re.MULTILINE)
        assert len(uses) == (file.name not in ("training.py", "lmsstats.py")), file.name


DRY = """
    import importlib, shlex
    name, _, arguments = sys.argv[1].partition(".py")
    main = importlib.import_module(name).main
    try:
        main([*shlex.split(arguments), "--no-lms"])
        raise SystemExit("it fits")
    except torch.OutOfMemoryError:
        print("out of memory")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.lms.enable(host_limit=0)
    main(shlex.split(arguments))
    """


@pytest.mark.slow
@pytest.mark.parametrize(("line", "seconds", "mib"), table())
def test_true_sizes(program: Any, sim: Any, line: str, seconds: float, mib: float) -> None:
    """What was modelled with another wheel, or beside the plug-in, differs a little."""
    pytest.importorskip("torchvision")
    env = {"SIMCUDA_DRY": "1", "SIMCUDA_PROFILE": "v100-32gb-pcie3", "SIMCUDA_VALUES": "off"}
    out = program(HEADER + DRY, line, memory=int(31.5 * 1024) * MIB, env=env, fresh=True)
    assert "out of memory" in out
    step = re.search(r"a step \(median\): ([\d.]+) s, ([\d.]+) MiB moved out", out)
    assert step, out
    assert float(step[1]) == pytest.approx(seconds, rel=0.05)
    assert float(step[2]) == pytest.approx(mib, rel=0.05)
