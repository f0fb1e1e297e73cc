# SPDX-License-Identifier: Apache-2.0
"""The benchmark: its arithmetic, its resumable results, and a small run on the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lms_device
import pytest

sys.path.insert(0, str(lms_device.TOOLS))
from lmsbench import models, point, report
from lmsbench.forks import PROFILE, Forks
from lmsbench.ladder import Ladder, Plan, Results, rungs
from lmsbench.point import METHODS, Point, overlap
from simcuda import trace

MIB = 1 << 20


def test_overlap_is_the_time_of_both() -> None:
    spans = [("kernel", 0, 10), ("kernel", 5, 10), ("kernel", 30, 10)]
    spans += [("gpu_memcpy", 12, 10), ("gpu_memcpy", 35, 10), ("cpu_op", 0, 99)]
    events = [{"cat": cat, "ts": ts, "dur": dur} for cat, ts, dur in spans]
    assert overlap(events) == {"kernels": 25e-6, "copies": 20e-6, "both": 8e-6}


def test_sizes_ascend_in_the_models_steps() -> None:
    for workload in models.WORKLOADS.values():
        ladder = models.sizes(workload, 1.5)
        found = [next(ladder) for _ in range(12)]
        assert found == sorted(set(found)) and found[0] == workload.first
        assert all(size % workload.step == 0 for size in found)
        assert workload.elements(found[-1]) >= 30 * workload.elements(found[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", models.WORKLOADS)
def test_the_other_ways_give_the_same_losses(name: str) -> None:
    import torch

    workload, losses = models.WORKLOADS[name], []
    for way in ("plain", "checkpoint", "both"):
        torch.manual_seed(0)
        size = {1: 2, 2: 96, 3: 32}[workload.power]
        inputs, target = workload.batch(size, 32)
        net = workload.build(32)
        with point.method(Point(name, size, way, 0), net) as forward:
            with forward():
                loss = models.loss_of(net(inputs), target)
            loss.backward()
        losses.append([loss.item(), *(p.grad.sum().item() for p in net.parameters())])
    assert losses[0] == losses[1]
    # What comes back from the host is aligned otherwise, so that the CPU adds in another order.
    assert losses[2] == pytest.approx(losses[0], rel=1e-3, abs=1e-2)


def entry(point: Point, **result: Any) -> dict[str, Any]:
    return {"point": {**vars(point)}, "result": result}


def test_results_survive_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = Point("gpt2", 1, "plain", 0)
    Results.load(path).add(entry(first, status="ok"))
    with path.open("a") as file:
        file.write('{"point": {"mod')
    assert list(Results.load(path).points) == [first.key]
    assert path.read_text().count("\n") == 1 and path.read_text().endswith("\n")
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(ValueError, match="line 1 of"):
        Results.load(path)


def test_host_need_is_predicted_and_over_the_limit_nothing_runs(tmp_path: Path) -> None:
    results = Results.load(tmp_path / "r.jsonl")
    results.add({"about": {"machine": {"device_memory": 1000}}})
    for size, peak in ((1, 200), (2, 300)):
        done = entry(Point("gpt2", size, "plain", 0), status="ok", peak_allocated=peak)
        results.add(done)
    said: list[str] = []
    plan = Plan(("gpt2",), ("lms",), (100,), host_limit=500, growth=2.0)
    ladder = Ladder(plan, results, time.monotonic() + 60, said.append)
    assert ladder.peak("gpt2", 2) == 300
    assert ladder.peak("gpt2", 8) == 900  # 100 more for each
    assert ladder.host_need(Point("gpt2", 8, "lms", 100)) == 800
    assert ladder.host_need(Point("gpt2", 8, "lms", 0)) == 0
    assert ladder._measure(Point("gpt2", 8, "lms", 100))["status"] == "skipped"
    assert "at most 0.0 GiB" in said[0] and "skipped" in said[0]


@pytest.mark.slow
def test_stock_plugin_and_patch_stand_side_by_side(device: Any, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("plugin", "patch")}
    last = {("plugin", "plain"): 1, ("plugin", "lms"): 4, ("patch", "lms"): 8}
    for (name, method), largest in last.items():
        results = Results.load(files[name])
        for size in (1, 2, 4, 8, 16):
            moved = {f"lms.paged_{way}_bytes": size * MIB for way in ("out", "in")}
            fits = {"status": "ok", "lms": moved} if size <= largest else {"status": "oom"}
            results.add(entry(Point("gpt2", size, method, 24 * MIB), **fits))
    page = tmp_path / "page.md"
    start = [sys.executable, *(["-m", "simcuda"] if device.kind == "sim" else []), "-m"]
    command = [*start, "lmsbench", "compare", "--page", str(page), "--models", "gpt2"]
    for name, file in files.items():
        command += [f"--{name}", str(file)]
    command += ["--caps", "24M", "--growth", "2", "--warmup", "0", "--steps", "1"]
    environment = {**os.environ, "PYTHONPATH": str(lms_device.TOOLS)}

    def compare() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    page.write_text("before\n")
    refused = compare()
    assert refused.returncode == 1 and "it has no lines `<!-- sweep: -->`" in refused.stderr
    assert page.read_text() == "before\n"
    page.write_text("before\n<!-- sweep: x -->\nold\n<!-- end of sweep -->\nafter\n")
    for _ in range(2):  # again gives the same
        assert compare().returncode == 0
        head, *_, row, _, after = page.read_text().splitlines()
        assert (head, after) == ("before", "after") and "old" not in page.read_text()
        assert row.split(" | ")[1:] == ["24 MiB", "1", "4", "8", "8.0 MiB at 4", "8.0 MiB at 4 |"]


@pytest.fixture
def on_the_dry_device(device: Any, tmp_path: Path) -> Iterator[Callable[[Point], dict[str, Any]]]:
    """As the benchmark has it: one fork after the other, which write traces."""
    if device.kind != "sim":
        pytest.skip("the dry device is a simulated one")
    forks = Forks(sys.executable)

    def measure(what: Point) -> dict[str, Any]:
        file = tmp_path / "trace"
        settings = {PROFILE: "v100-32gb-pcie3", "SIMCUDA_TRACE": str(file)}
        code, answer, error = forks.measure(vars(what), settings)
        assert code == 0 and answer["status"] == "ok", error
        moved = sum(
            copy.bytes for copy in trace.read(file).of(trace.Copy) if copy.unit != "compute"
        )
        assert moved == answer["copied_bytes"]
        return answer

    yield measure
    forks.close()


@pytest.mark.slow
def test_both_keep_less(on_the_dry_device: Callable[[Point], dict[str, Any]]) -> None:
    """Of a block its input alone is saved, and that in host memory."""
    ways = ("plain", "checkpoint", "save_on_cpu", "both")
    of = {w: on_the_dry_device(Point("gpt130", 16, w, 0, scale=4, steps=1)) for w in ways}
    peak = {way: answer["peak_allocated"] for way, answer in of.items()}
    assert peak["both"] < peak["checkpoint"] < peak["plain"]
    copied = {way: answer["copied_bytes"] for way, answer in of.items()}
    assert copied["plain"] == copied["checkpoint"] < copied["both"] < copied["save_on_cpu"] / 4


@pytest.mark.slow
@pytest.mark.parametrize("amp", [False, True])
def test_a_point_on_the_dry_device(
    on_the_dry_device: Callable[[Point], dict[str, Any]], amp: bool
) -> None:
    """Fewer bytes in fp16, and no weight is drawn."""
    point = Point("gpt2", 8, "lms", 0, scale=4, warmup=0, steps=2, amp=amp)
    assert point.key.endswith("/amp") == amp
    answer = on_the_dry_device(point)
    assert answer["losses"] == ["0x0.0p+0"] * 2
    peak = answer["peak_allocated"] / MIB
    assert 700 < peak < 1000 if amp else 1000 < peak < 2000


@pytest.mark.slow
def test_a_small_run_and_its_page(device: Any, tmp_path: Path) -> None:
    """LMS trains a larger batch than plain at the same cap, with the losses of no cap."""
    if device.kind != "sim":
        pytest.skip("the memory of the device is set for the simulated one")
    path = tmp_path / "results.jsonl"
    options = [
        *("--scale", "64", "--models", "gpt2", "--methods", "plain,lms", "--caps", "24M"),
        *("--growth", "4", "--warmup", "0", "--steps", "1", "--results", str(path)),
    ]
    simulated = [sys.executable, "-m", "simcuda", "--memory", "64M", "-m", "lmsbench"]

    def bench(command: str, *more: str) -> str:
        done = subprocess.run(
            [*simulated, command, *options, *more], capture_output=True, text=True, timeout=300,
                env={**os.environ, "PYTHONPATH": str(lms_device.TOOLS)}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "run the same command to go on" in bench("run", "--minutes", "0")
    bench("run", "--capped-only")
    points = len(Results.load(path).points)
    assert f"{points} points in" in bench("run", "--capped-only")  # nothing was measured again
    plan = Plan(("gpt2",), ("plain", "lms"), (24 * MIB,), scale=64, growth=4.0)
    results = Results.load(path)
    last = {
        m: max(size for size, _ in rungs(results, "gpt2", m, 24 * MIB, plan)) for m in plan.methods
    }
    assert last["lms"] > last["plain"]
    bench("report")
    page = (tmp_path / "README.md").read_text()
    assert "None differed." in page and "The device is simulated" in page
    assert f"| {last['plain']} | {last['lms']} ({last['lms'] / last['plain']:.1f}x) |" in page
    assert " s |" not in page  # no time
    assert report.render(results, plan, "x").startswith("<!-- SPDX")
    assert json.loads(path.read_text().splitlines()[0])["about"]["machine"]["simulated"]
    assert set(METHODS) >= set(plan.methods)
