# SPDX-License-Identifier: Apache-2.0
"""Which GPU is near which memory, on machines that are folders made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmsbuild.commands import doctor
from lmsbuild.places import numa


def machine(root: Path, nodes: dict[int, str], devices: dict[str, tuple[str, str, str]]) -> Path:
    """`devices`: by address, vendor, class and node."""
    for node, processors in nodes.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{processors}\n")
    for address, facts in devices.items():
        folder = root / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in zip(("vendor", "class", "numa_node"), facts, strict=True):
            (folder / name).write_text(f"{text}\n")
    return root


TWO = {0: "0-15", 8: "16-31"}
GPU0 = ("0x10de", "0x030200", "0")
GPU8 = ("0x10de", "0x030000", "8")


def test_each_gpu_has_the_command_of_its_node(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {**TWO, 255: ""},  # the memory of a GPU, as POWER9 lists it
        {
            "0004:04:00.0": GPU0,
            "0035:03:00.0": GPU8,
            "0001:00:00.0": ("0x10de", "0x040300", "0"),  # sound
            "0002:00:00.0": ("0x8086", "0x030000", "8"),  # of another maker
        },
    )
    assert numa.nodes(root) == [0, 8]
    assert [(gpu.index, gpu.address, gpu.node) for gpu in numa.gpus(root)] == [
        (0, "0004:04:00.0", 0), (1, "0035:03:00.0", 8),
    ]  # fmt: skip
    assert numa.gpus(root)[1].command == (
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1 "
        "numactl --cpunodebind=8 --membind=8 python train.py"
    )


@pytest.mark.parametrize(
    ("nodes", "gpu"), [({0: "0-15"}, GPU0), (TWO, ("0x10de", "0x030200", "-1")), (TWO, GPU0[:2])]
)
def test_nothing_to_bind(tmp_path: Path, nodes: Any, gpu: Any) -> None:
    root = machine(tmp_path, nodes, {"0000:3b:00.0": (*gpu, "")[:3]})
    assert [gpu.node for gpu in numa.gpus(root)] == [None]
    assert numa.gpus(tmp_path / "nothing") == [] == numa.nodes(tmp_path / "nothing")


@pytest.mark.parametrize("installed", [True, False])
def test_doctor_prints_it(tmp_path: Path, monkeypatch: Any, installed: bool) -> None:
    root = machine(tmp_path, TWO, {"0004:04:00.0": GPU0, "0035:03:00.0": GPU8})
    monkeypatch.setattr(numa, "SYSTEM", root)
    monkeypatch.setattr(doctor, "checks", lambda *_: [doctor_numa(monkeypatch, installed)])
    done = CliRunner().invoke(doctor.command, obj={})
    assert done.exit_code == 0, done.output
    assert "GPU 0 at node 0, GPU 1 at node 8" in done.output
    assert ("numactl is not installed" in done.output) != installed
    assert "CUDA_VISIBLE_DEVICES=1 numactl --cpunodebind=8 --membind=8" in done.output


@pytest.mark.parametrize(("compiler", "good"), [("no-such-compiler -O2", False), ("gcc", True)])
def test_doctor_looks_at_the_compiler_that_is_named(
    monkeypatch: Any, compiler: str, good: bool
) -> None:
    from lmsbuild.places import doctor as places

    monkeypatch.setenv("CXX", compiler)
    (check,) = [c for c in places.checks(Path("/"), Path("/")) if c.name == "C++ compiler"]
    assert check.good == good and compiler.split()[0] in check.found


def test_doctor_gives_it_as_json(tmp_path: Path, monkeypatch: Any) -> None:
    devices = {"0004:04:00.0": GPU0, "0035:03:00.0": GPU8, "0040:01:00.0": (*GPU0[:2], "-1")}
    monkeypatch.setattr(numa, "SYSTEM", machine(tmp_path, TWO, devices))
    monkeypatch.setattr(doctor, "checks", lambda *_: [doctor_numa(monkeypatch, True)])
    done = CliRunner().invoke(doctor.command, ["--json"], obj={})
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert [check["name"] for check in value["checks"]] == ["NUMA"]
    assert value["gpus"] == [
        {"index": gpu.index, "address": gpu.address, "node": gpu.node, "command": gpu.command}
        for gpu in numa.gpus()[:2]  # of the third the machine does not say
    ]
    assert value["gpus"][1]["command"].startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEV")


def doctor_numa(monkeypatch: Any, installed: bool) -> Any:
    from lmsbuild.places import doctor as places

    with monkeypatch.context() as patch:
        patch.setattr("shutil.which", lambda tool: tool if installed else None)
        return places._numa()
