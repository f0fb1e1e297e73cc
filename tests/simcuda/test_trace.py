# SPDX-License-Identifier: Apache-2.0
"""What a dry run writes down, and what is read from it."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import TOOLS
from fork_server import ForkServer
from test_dry import DRY, ask, dry_server, environment  # noqa: F401

from simcuda import SimcudaError, bounds, trace

PROGRAM = """
    stream = torch.cuda.Stream()
    host = torch.empty(1 << 20, pin_memory=True)
    device.mark("step 0")
    x = torch.ones(1 << 20, device="cuda")
    y = x * 2
    y.add_(x)
    host.copy_(y, non_blocking=True)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        z = x.view(1024, 1024).clone()
    del x
    torch.cuda.synchronize()
    del z
    torch.cuda.empty_cache()
    print(json.dumps(device.times()))
    """


@pytest.fixture(scope="module", name="written")
def _written(
    dry_server: ForkServer,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, int]]:
    file = tmp_path_factory.mktemp("trace") / "run.trace"
    return file, ask(dry_server, {**DRY, "SIMCUDA_TRACE": str(file)}, PROGRAM)


def test_a_trace_has_what_happened(written: tuple[Path, dict[str, int]]) -> None:
    file, times = written
    read = trace.read(file)
    assert read.about["profile"]["name"] == "v100-32gb-pcie3" and read.about["modelled"]
    ops = list(read.of(trace.Op))
    assert [op.name for op in ops] == [
        "aten::fill_", "aten::mul", "aten::add_", "aten::copy_", "aten::copy_"
    ]  # fmt: skip
    uses = [[(use.storage.number, use.access) for use in op.uses] for op in ops]
    x, y, z = 0, 1, 2
    assert uses == [
        [(x, "write")], [(x, "read"), (y, "make")], [(y, "write"), (x, "read")], [(y, "read")],
        [(z, "write"), (x, "read")],
    ]  # fmt: skip
    assert all(use.storage.bytes == 4 << 20 for op in ops for use in op.uses)
    out, within = read.of(trace.Copy)
    assert (out.unit, out.bytes, out.storage.number, out.of_op) == ("out", 4 << 20, y, True)
    assert (within.unit, within.stream) == ("compute", ops[-1].stream)
    assert ops[0].stream != within.stream
    assert list(read.moves()) == []
    timed = [op for op in ops if op.begin >= 0]
    assert [op.name for op in timed] == ["aten::fill_", "aten::mul", "aten::add_"]
    for before, after in itertools.pairwise(timed):
        assert before.time < before.end <= after.begin
    assert out.begin >= timed[-1].end
    busy = sum(c.duration for c in read.of(trace.Command) if c.unit == "compute")
    assert busy == times["compute"] and out.duration == times["out"]
    assert sum(w.duration for w in read.of(trace.Waited)) == times["waited"]
    assert [mark.name for mark in read.of(trace.Mark)] == ["step 0"]


def test_a_trace_has_the_memory(written: tuple[Path, dict[str, int]]) -> None:
    read = trace.read(written[0])
    blocks = list(read.of(trace.Allocated))
    assert [(b.number, b.bytes, b.offset) for b in blocks] == [
        (0, 4 << 20, 0), (1, 4 << 20, 4 << 20), (2, 4 << 20, 0)
    ]  # fmt: skip
    assert [b.segment for b in blocks] == [0, 0, 1]  # another stream's is another segment
    assert [f.allocation for f in read.of(trace.Freed)] == [0, 2]
    assert [s.bytes for s in read.of(trace.Segment)] == [20 << 20, 20 << 20]
    assert [s.segment for s in read.of(trace.SegmentGone)] == [1]
    places = {use.storage.number: use.allocation for op in read.of(trace.Op) for use in op.uses}
    assert places == {0: 0, 1: 1, 2: 2}


def test_it_can_be_looked_at(written: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    shown = tmp_path / "chrome.json"
    done = subprocess.run(
        [sys.executable, "-m", "simcuda", "trace", str(written[0]), "--chrome", str(shown)],
        env={"PYTHONPATH": str(TOOLS)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "v100-32gb-pcie3, modelled: 5 operators" in done.stdout
    events = json.loads(shown.read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert [e["name"] for e in spans] == [
        "aten::fill_", "aten::mul", "aten::add_", "copy d2h", "copy d2d"
    ]  # fmt: skip
    assert [e["tid"] for e in spans] == [0, 0, 0, 2, 0]
    assert max(e["args"]["bytes"] for e in events if e["ph"] == "C") == 12 << 20


@pytest.mark.slow
def test_pytorchs_memory_viewer_opens_it(
    dry_server: ForkServer,  # noqa: F811
    tmp_path: Path,
    loaded: Any,
) -> None:
    """And finds what torch itself would have recorded."""
    file, shown = tmp_path / "run.trace", tmp_path / "run.pickle"
    program = """
        torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=10**6)
        kept = [torch.ones(n << 18, device="cuda") for n in (1, 3, 50, 2)]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            kept.append(torch.ones(5 << 20, device="cuda") * 2)
        del kept[1]
        del kept[1]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        recorded = torch.cuda.memory._snapshot()
        print(json.dumps(recorded, default=str))
        """
    recorded = ask(dry_server, {**DRY, "SIMCUDA_TRACE": str(file)}, program)
    command = [sys.executable, "-m", "simcuda", "trace", str(file), "--memory", str(shown)]
    subprocess.run(command, env={"PYTHONPATH": str(TOOLS)}, check=True, capture_output=True)
    snapshot = pickle.loads(shown.read_bytes())

    def events(of: dict[str, Any]) -> list[tuple[str, int, int]]:
        """Where in which of the segments, in the order of their making."""
        segments: list[tuple[int, int]] = []
        found = []
        for event in of["device_traces"][0]:
            action, size, address = (event[k] for k in ("action", "size", "addr"))
            if action == "segment_alloc":
                segments.append((address, size))
            place = next(
                (n << 40) + address - s
                for n, (s, length) in reversed(list(enumerate(segments)))
                if s <= address < s + length
            )
            found.append((action, size, place))
        return found

    assert events(snapshot) == events(recorded) and len(events(recorded)) > 15
    blocks = [
        sorted((b["size"], b["state"]) for s in of["segments"] for b in s["blocks"])
        for of in (snapshot, recorded)
    ]
    assert blocks[0] == blocks[1]
    from torch.cuda import _memory_viz

    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)
    assert "Allocator State History" in _memory_viz.segment_plot(snapshot)
    assert "aten::mul" in _memory_viz.memory(snapshot, format_flamegraph=str)
    assert "20.0MiB allocated, 18.0MiB (0.0% internal) free" in _memory_viz.segsum(snapshot)
    assert "cudaMalloc" in _memory_viz.trace(snapshot)


def test_what_is_no_trace_is_refused(written: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    whole = written[0].read_bytes()
    head, _, body = whole.partition(b"\n")
    file = tmp_path / "wrong"
    later = json.dumps({**json.loads(head), "version": 2}).encode()
    for content, message in (
        (b"", "is no trace of a dry run"),
        (b"{}\n" + body, "is no trace of a dry run"),
        (later + b"\n" + body, "has version 2, and 1 is read here"),
        (whole[:-3], "is cut off or damaged"),
        (whole + b"\n", "is cut off or damaged"),
        (head + b"\n" + b"\xff" * 10**6, "a number is too large"),
        (head + b"\n" + bytes((6, 0, 7, 0, 0, 0)), "is cut off or damaged"),
        (b"[" * 10**5, "is no trace of a dry run"),
        (b'{"format": "simcuda-trace"}\n', "has version None"),
        (b'{"format": "simcuda-trace", "version": 1}\n' + body, "KeyError\\('profile'\\)"),
    ):
        file.write_bytes(content)
        with pytest.raises(SimcudaError, match=message):
            trace.read(file)
    with pytest.raises(SimcudaError, match="cannot be read: No such file"):
        trace.read(tmp_path / "none")


def test_damage_is_an_error_of_the_trace(
    written: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    whole, dice, file = written[0].read_bytes(), random.Random(0), tmp_path / "damaged"
    begin = whole.index(b"\n") + 1
    for _ in range(200):
        damaged = bytearray(whole)
        at = dice.randrange(begin, len(whole))
        damaged[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
        file.write_bytes(damaged)
        with contextlib.suppress(SimcudaError):
            read = trace.read(file)
            json.dumps(trace.to_chrome(read))
            trace.summary(read)


def simcuda(*arguments: object) -> str:
    """What the command says when it fails, which is no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "simcuda", *map(str, arguments)],
        env={"PYTHONPATH": str(TOOLS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    return done.stderr


def test_the_commands_name_what_is_wrong(
    written: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    file = written[0]
    assert f"{tmp_path} cannot be written" in simcuda("trace", file, "--chrome", tmp_path)
    said = simcuda("bounds", file, "--capacity", "1G", "--device", 7)
    assert "the trace has no device 7; choose one of 0 to 0" in said
    assert "is too large a size" in simcuda("bounds", file, "--capacity", "9" * 400)


def test_what_operators_make_and_read(dry_server: ForkServer, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "run.trace"
    program = """
        x, y = (torch.ones(1 << 20, device="cuda") for _ in range(2))
        torch.add(x, x, out=y)
        torch.add(x, y, out=y)
        y[0].item()
        print(0)
        """
    ask(dry_server, {**DRY, "SIMCUDA_TRACE": str(file), "SIMCUDA_VALUES": "off"}, program)
    read = trace.read(file)
    uses = [[(u.storage.number, u.access) for u in op.uses] for op in read.of(trace.Op)]
    x, y = 0, 1
    assert uses[2:] == [[(x, "read"), (y, "make")], [(x, "read"), (y, "write")], [(y, "read")]]
    assert list(read.moves()) == []  # item() copies, and is an operator


def test_a_use_is_of_a_whole_storage(dry_server: ForkServer, tmp_path: Path) -> None:  # noqa: F811
    """What docs/bounds.md says of views, of resizing and of two storages on the same memory."""
    file = tmp_path / "run.trace"
    program = """
        x = torch.ones(1 << 20, device="cuda")
        x[:16].view(4, 4).neg_()
        x.detach().neg_()
        torch.empty(0, device="cuda").set_(x.untyped_storage(), 0, (4,)).neg_()
        torch.from_dlpack(x).neg_()
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(8 << 20)
        x.neg_()
        print(0)
        """
    ask(dry_server, {**DRY, "SIMCUDA_TRACE": str(file)}, program)
    read = trace.read(file)
    uses = [[(u.storage.number, u.storage.bytes) for u in op.uses] for op in read.of(trace.Op)]
    of_x, by_dlpack = [(0, 4 << 20)], [(1, 4 << 20)]
    assert uses == [of_x] * 4 + [by_dlpack, of_x]


def test_a_trace_that_cannot_be_written_on_is_told(
    dry_server: ForkServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.trace"
    program = """
import resource, torch
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
x = torch.ones(1 << 20, device="cuda")
for _ in range(1000):
    x.add_(1)
"""
    settings = environment({**DRY, "SIMCUDA_TRACE": str(file)})
    done = dry_server.run(["-c", program], [], settings, 120, "device_fork:ready")
    said = f"simcuda: the trace {file} cannot be written: File too large; it is cut off there"
    # Newer torches warn of the old GPU, too.
    assert done.returncode == 0 and done.stderr.strip().splitlines()[-1] == said
    assert done.stderr.count("simcuda: the trace") == 1
    with pytest.raises(SimcudaError, match="is cut off or damaged"):
        trace.read(file)


def test_a_trace_is_of_a_dry_run_alone() -> None:
    from simcuda.config import Settings

    with pytest.raises(SimcudaError, match=r"trace file cannot be used because .* give --dry"):
        Settings(trace="file")


def test_the_steps_of_a_trace_are_those_that_bounds_are_of(
    written: tuple[Path, dict[str, int]],
) -> None:
    problem = bounds.problem_of(trace.read(written[0]), minimum=1 << 20)
    assert [step.uses for step in problem.steps] == [
        {0: "make"}, {0: "read", 1: "make"}, {1: "write", 0: "read"}, {1: "read"},
        {2: "make", 0: "read"},
    ]  # fmt: skip
    assert sum(step.time for step in problem.steps) == written[1]["compute"]
    assert problem.sizes == dict.fromkeys(range(3), 4 << 20)
    assert problem.rate_in == 15.75e9
