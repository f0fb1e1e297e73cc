# SPDX-License-Identifier: Apache-2.0
"""Virtual time: small schedules worked out by hand, and random ones against a scheduler that goes
through them nanosecond by nanosecond."""

from __future__ import annotations

import random
import subprocess
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import simcuda
from simcuda.builder import SOURCES, compiler

LEGACY, BLOCKING, NONE = range(3)
COMPUTE, IN, OUT = range(3)
Command = tuple[object, ...]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clock") / "clock"
    sources = [Path(__file__).with_name("clock_program.cpp"), SOURCES / "clock" / "clock.cpp"]
    command = [compiler(), "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GLIBCXX_DEBUG"]
    command += ["-fsanitize=undefined", "-fno-sanitize-recover"]
    subprocess.run([*command, "-I", SOURCES / "clock", *sources, "-o", made], check=True)
    return made


def follow(
    program: Path, schedule: list[Command], devices: int = 1, duplex: int = 1000
) -> dict[str, int]:
    text = "\n".join(" ".join(map(str, command)) for command in schedule)
    done = subprocess.run(
        [program], input=f"{devices} {duplex}\n{text}\n", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return {key: int(value) for key, value in (s.rsplit(" ", 1) for s in done.stdout.splitlines())}


A: Command = ("open", "a", 0, NONE)
B: Command = ("open", "b", 0, NONE)
ALL: Command = ("finish_device", 0)


@pytest.mark.slow
def test_a_stream_does_one_thing_after_the_other(program: Path) -> None:
    schedule = [A, ("run", "a", COMPUTE, 30), ("record", "a", "x"), ("run", "a", IN, 12)]
    times = follow(program, [*schedule, ("record", "a", "y"), ALL])
    assert (times["x"], times["y"], times["now"], times["waited"]) == (30, 42, 42, 42)


def test_the_host_runs_ahead_until_it_waits(program: Path) -> None:
    schedule = [A, ("spend", 5), ("run", "a", COMPUTE, 30), ("record", "a", "x"), ("spend", 10)]
    times = follow(program, [*schedule, ("done", "x"), ("finish_mark", "x"), ("done", "x")])
    assert (times["x"], times["now"], times["waited"]) == (35, 35, 20)
    idle = follow(program, [*schedule, ("spend", 90), ("finish_mark", "x")])
    assert (idle["x"], idle["now"], idle["waited"]) == (35, 105, 0)


def test_a_query_finds_done_what_has_ended_by_now(program: Path) -> None:
    schedule = [A, ("run", "a", COMPUTE, 30), ("record", "a", "x")]
    assert follow(program, [*schedule, ("spend", 29), ("done", "x")])["done x"] == 0
    assert follow(program, [*schedule, ("spend", 30), ("done", "x")])["done x"] == 1


def test_copies_overlap_with_kernels_and_with_the_other_way(program: Path) -> None:
    schedule = [A, B, ("open", "c", 0, NONE)]
    for stream, unit in (("a", COMPUTE), ("b", IN), ("c", OUT)):
        schedule += [("run", stream, unit, 100), ("record", stream, f"{stream}!")]
    times = follow(program, [*schedule, ALL])
    assert [times[k] for k in ("a!", "b!", "c!", "now", "waited")] == [100] * 5
    assert [times[f"busy 0{e}"] for e in range(3)] == [100] * 3


@pytest.mark.parametrize("unit", [COMPUTE, IN, OUT])
def test_each_unit_does_one_thing_at_a_time(program: Path, unit: int) -> None:
    schedule = [A, B, ("run", "a", unit, 100), ("run", "b", unit, 10), ("record", "b", "x")]
    assert follow(program, [*schedule, ALL])["x"] == 110


def test_what_is_ready_first_goes_first(program: Path) -> None:
    """The copy of `a` was issued first, but waits for a kernel."""
    schedule = [A, B, ("run", "a", COMPUTE, 50), ("run", "a", IN, 10), ("record", "a", "x")]
    schedule += [("run", "b", IN, 30), ("record", "b", "y"), ALL]
    times = follow(program, schedule)
    assert (times["y"], times["x"]) == (30, 60)


def test_both_ways_at_once_are_slower(program: Path) -> None:
    """At 800 of 1000, 40 of the 100 out need 50; the other 60 are alone."""
    schedule = [A, B, ("run", "a", IN, 40), ("run", "b", OUT, 100), ("record", "a", "x")]
    times = follow(program, [*schedule, ("record", "b", "y"), ALL], duplex=800)
    assert (times["x"], times["y"]) == (50, 110)


def test_an_event_orders_streams_as_of_its_recording(program: Path) -> None:
    schedule = [A, B, ("run", "a", COMPUTE, 50), ("record", "a", "x"), ("run", "a", COMPUTE, 50)]
    schedule += [("wait", "b", "x"), ("run", "b", IN, 5), ("record", "b", "y"), ALL]
    assert follow(program, schedule)["y"] == 55


def test_the_legacy_stream_and_blocking_streams_wait_for_each_other(program: Path) -> None:
    schedule = [("open", "legacy", 0, LEGACY), ("open", "a", 0, BLOCKING), ("open", "b", 0, NONE)]
    schedule += [("run", "legacy", COMPUTE, 10), ("run", "a", IN, 10), ("run", "b", OUT, 10)]
    schedule += [("run", "legacy", COMPUTE, 10), ("record", "a", "x"), ("record", "b", "y")]
    times = follow(program, [*schedule, ("record", "legacy", "z"), ALL])
    # `x` is recorded after the second kernel was issued, so it waits for that one, too.
    assert (times["x"], times["y"], times["z"]) == (30, 10, 30)


def test_a_closed_stream_ends_its_work(program: Path) -> None:
    schedule = [A, ("run", "a", COMPUTE, 30), ("record", "a", "x"), ("close", "a"), B, ALL]
    assert follow(program, schedule)["x"] == 30
    assert follow(program, [*schedule, ("open", "c", 0, NONE)])["now"] == 30


def test_devices_do_not_wait_for_each_other(program: Path) -> None:
    schedule = [A, ("open", "b", 1, NONE), ("run", "a", IN, 30), ("run", "b", IN, 40)]
    schedule += [("record", "a", "x"), ("record", "b", "y"), ALL]
    times = follow(program, [*schedule, ("finish_device", 1)], devices=2)
    assert (times["x"], times["y"], times["now"]) == (30, 40, 40)


# ---- against a scheduler that tries every nanosecond


@dataclass
class Item:
    number: int
    wait: str | None = None
    unit: int = -1
    left: int = 0
    mark: str | None = None


@dataclass
class Stream:
    device: int
    order: int
    items: deque[Item] = field(default_factory=deque)
    since: int | None = None  # when the first item became ready for its unit
    running: bool = False


class Reference:
    """Says when everything happens, by doing all that can happen at a time, then the next time."""

    def __init__(self, devices: int, duplex: int) -> None:
        self.devices, self.duplex = devices, duplex
        self.time = self.waited = self.issued = 0
        self.streams: dict[str, Stream] = {}
        self.marks: dict[str, int] = {}
        self.hidden = 0
        self.busy = {(d, e): 0 for d in range(devices) for e in range(3)}

    def issue(self, stream: str, **item: object) -> None:
        self.streams[stream].items.append(Item(self.issued, **item))  # type: ignore[arg-type]
        self.issued += 1

    def mark(self, stream: str) -> str:
        self.hidden += 1
        name = f"hidden {self.hidden}"
        self.issue(stream, mark=name)
        return name

    def legacy_order(self, name: str) -> None:
        stream = self.streams[name]
        for other, s in self.streams.items():
            pair = {stream.order, s.order}
            if s.device == stream.device and pair == {LEGACY, BLOCKING}:
                self.issue(name, wait=self.mark(other))

    def settle(self) -> None:
        """All that takes no time."""
        changed = True
        while changed:
            changed = False
            for stream in self.streams.values():
                while stream.items and not stream.running:
                    item = stream.items[0]
                    if item.wait is not None and item.wait not in self.marks:
                        break
                    if item.left > 0:
                        if stream.since is None:
                            stream.since = self.time
                        break
                    if item.mark is not None:
                        self.marks[item.mark] = self.time
                    stream.items.popleft()
                    changed = True

    def running(self, device: int, unit: int) -> Stream | None:
        for stream in self.streams.values():
            if stream.running and stream.device == device and stream.items[0].unit == unit:
                return stream
        return None

    def tick(self) -> None:
        self.settle()
        for device, unit in self.busy:
            ready = [
                (s.since, s.items[0].number, s)
                for s in self.streams.values()
                if s.since is not None and s.device == device and s.items[0].unit == unit
            ]
            if ready and self.running(device, unit) is None:
                first = min(ready, key=lambda r: r[:2])[2]
                first.running, first.since = True, None
        for device in range(self.devices):
            both = self.running(device, IN) and self.running(device, OUT)
            for unit in range(3):
                stream = self.running(device, unit)
                if stream is not None:
                    slow = both and unit != COMPUTE
                    stream.items[0].left -= self.duplex if slow else 1000
                    self.busy[device, unit] += 1
        self.time += 1
        for stream in self.streams.values():
            if stream.running and stream.items[0].left <= 0:
                stream.running = False
                stream.items.popleft()
        self.settle()

    def finish(self, mark: str) -> None:
        self.settle()
        while mark not in self.marks:
            self.tick()
            self.waited += 1

    def follow(self, schedule: list[Command]) -> dict[str, int]:
        answers: dict[str, int] = {}
        for word, name, *rest in schedule:
            assert isinstance(name, str | int)
            if word == "open":
                self.streams[str(name)] = Stream(*rest)  # type: ignore[arg-type]
            elif word == "run":
                self.legacy_order(str(name))
                self.issue(str(name), unit=rest[0], left=1000 * int(str(rest[1])))
            elif word == "record":
                self.legacy_order(str(name))
                self.issue(str(name), mark=rest[0])
            elif word == "wait":
                self.issue(str(name), wait=rest[0])
            elif word == "spend":
                for _ in range(int(name)):
                    self.tick()
            elif word == "finish_mark":
                self.finish(str(name))
            elif word == "finish_line":
                self.legacy_order(str(name))
                self.finish(self.mark(str(name)))
            elif word == "finish_device":
                of = [k for k, s in self.streams.items() if s.device == int(name)]
                for mark in [self.mark(stream) for stream in of]:
                    self.finish(mark)
            self.settle()
        answers |= {"now": self.time, "waited": self.waited}
        answers |= {f"busy {d}{e}": time for (d, e), time in self.busy.items()}
        shown = {k: v for k, v in self.marks.items() if not k.startswith("hidden")}
        return {**answers, **shown}


def random_schedule(seed: int) -> tuple[list[Command], int, int]:
    r = random.Random(seed)
    devices = r.choice((1, 1, 2))
    duplex = r.choice((1000, 900, 777, 500))
    schedule: list[Command] = []
    streams = []
    for device in range(devices):
        orders = [LEGACY, *r.choices((BLOCKING, NONE), k=r.randint(1, 4))]
        for i, order in enumerate(orders):
            streams.append(f"s{device}{i}")
            schedule.append(("open", streams[-1], device, order))
    marks: list[str] = []
    for _ in range(r.randint(5, 60)):
        stream = r.choice(streams)
        kind = r.choices(("run", "record", "wait", "spend", "finish"), (8, 3, 3, 2, 1))[0]
        if kind == "run":
            schedule.append(("run", stream, r.randrange(3), r.choice((1, 2, 5, 10, 30))))
            marks.append(f"m{len(marks)}")
            schedule.append(("record", stream, marks[-1]))
        elif kind == "record":
            marks.append(f"m{len(marks)}")
            schedule.append(("record", stream, marks[-1]))
        elif kind == "wait" and marks:
            schedule.append(("wait", stream, r.choice(marks)))
        elif kind == "spend":
            schedule.append(("spend", r.choice((1, 3, 10, 40))))
        elif kind == "finish" and marks:
            way = r.randrange(3)
            one = (("finish_mark", r.choice(marks)), ("finish_line", stream))
            schedule.append([*one, ("finish_device", r.randrange(devices))][way])
    schedule += [("finish_device", device) for device in range(devices)]
    return schedule, devices, duplex


@pytest.mark.parametrize("seed", range(0, 300, 50))
def test_random_schedules_equal_the_reference(program: Path, seed: int) -> None:
    for one in range(seed, seed + 50):
        schedule, devices, duplex = random_schedule(one)
        expected = Reference(devices, duplex).follow(schedule)
        got = follow(program, schedule, devices, duplex)
        assert got == expected, f"seed {one}"


def test_the_clock_knows_no_cuda() -> None:
    for source in (Path(simcuda.__file__).parent / "src" / "clock").iterdir():
        assert "cuda_runtime" not in source.read_text()
