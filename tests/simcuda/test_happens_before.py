# SPDX-License-Identifier: Apache-2.0
"""Random programs on the runtime alone, against an oracle that searches their happens-before graph.

Up to the first race of a program the checker must say exactly what the oracle says. (What comes
after a race may be hidden by it: the later of the two accesses is remembered alone.)
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import simcuda

pytestmark = pytest.mark.engine
device = simcuda.device
BYTES = 64  # of each of two memories: small, so that accesses meet
NON_BLOCKING, DEFAULT = 1, 0


class View(ctypes.Structure):
    _fields_ = [
        ("at", ctypes.c_void_p),
        ("element", ctypes.c_size_t),
        ("dimensions", ctypes.c_int),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("written", ctypes.c_int),
    ]


class Work(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("views", ctypes.POINTER(View)),
        ("count", ctypes.c_size_t),
    ]


@dataclass(frozen=True)
class Use:
    """Of one of the two memories, from `start` on."""

    memory: int
    start: int
    element: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    written: bool

    def touched(self) -> set[tuple[int, int]]:
        offsets = {0}
        for size, stride in zip(self.sizes, self.strides, strict=True):
            offsets = {o + i * stride * self.element for o in offsets for i in range(size)}
        first = self.start
        return {(self.memory, first + o + b) for o in offsets for b in range(self.element)}


@dataclass
class Node:
    """Something that happened, and what it comes right after."""

    after: list[int]
    touched: set[tuple[int, int]] = field(default_factory=set)
    written: set[tuple[int, int]] = field(default_factory=set)


HOST, LEGACY = -1, 0


class Oracle:
    """Who comes after whom, as edges; found by searching them all."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.last: dict[int, int] = {}  # what each stream, or the host, did last
        self.blocking: set[int] = set()

    def add(self, actor: int, uses: list[Use] | None = None, after: list[int] | None = None) -> int:
        """The actor does something, which also comes `after` these; or waits for them."""
        actors = {actor, HOST}
        if actor == LEGACY:
            actors |= self.blocking
        elif actor in self.blocking:
            actors.add(LEGACY)
        node = Node([*(after or []), *(self.last[a] for a in actors if a in self.last)])
        for use in uses or []:
            node.touched |= use.touched()
            if use.written:
                node.written |= use.touched()
        self.nodes.append(node)
        self.last[actor] = len(self.nodes) - 1
        return self.last[actor]

    def races_with(self, index: int) -> set[int]:
        seen, todo = set(), list(self.nodes[index].after)
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += self.nodes[node].after
        mine = self.nodes[index]
        return {
            i
            for i, other in enumerate(self.nodes[:index])
            if i not in seen and (mine.written & other.touched or mine.touched & other.written)
        }


class Program:
    """One random program: each step is done on the runtime and told to the oracle."""

    def __init__(self, seed: int) -> None:
        assert device._runtime is not None
        self.random = random.Random(seed)
        self.cuda = device._runtime
        self.names: list[bytes] = []
        self.memories = [ctypes.c_void_p(), ctypes.c_void_p()]
        self.cuda.cudaMalloc(ctypes.byref(self.memories[0]), ctypes.c_size_t(BYTES))
        self.cuda.cudaHostAlloc(ctypes.byref(self.memories[1]), ctypes.c_size_t(BYTES), 0)
        self.oracle = Oracle()
        self.streams = [ctypes.c_void_p()]  # the legacy default stream
        for index in range(1, self.random.randint(3, 5)):
            handle = ctypes.c_void_p()
            flags = self.random.choice((NON_BLOCKING, NON_BLOCKING, DEFAULT))
            self.cuda.cudaStreamCreateWithFlags(ctypes.byref(handle), flags)
            self.streams.append(handle)
            if flags == DEFAULT:
                self.oracle.blocking.add(index)
        self.events: list[tuple[ctypes.c_void_p, int]] = []
        self.care = self.random.choice((0.0, 0.7, 0.97, 1.0))

    def close(self) -> None:
        self.cuda.cudaDeviceSynchronize()
        for stream in self.streams[1:]:
            self.cuda.cudaStreamDestroy(stream)
        for event, _ in self.events:
            self.cuda.cudaEventDestroy(event)
        self.cuda.cudaFree(self.memories[0])
        self.cuda.cudaFreeHost(self.memories[1])
        device.clear_races()

    def use(self) -> Use:
        pick = self.random
        element = pick.choice((1, 2, 4))
        dimensions = pick.choice((1, 1, 1, 2, 2, 3))
        sizes = tuple(pick.randint(1, 4) for _ in range(dimensions))
        strides = tuple(pick.randint(0 if dimensions > 1 else 1, 6) for _ in range(dimensions))
        reach = sum((s - 1) * t for s, t in zip(sizes, strides, strict=True)) * element + element
        if reach > BYTES:
            return self.use()
        start = pick.randint(0, BYTES - reach)
        return Use(pick.randrange(2), start, element, sizes, strides, pick.random() < 0.5)

    def views(self, uses: list[Use]) -> Any:
        def numbers(values: tuple[int, ...]) -> Any:
            return (ctypes.c_int64 * len(values))(*values)

        return (View * len(uses))(
            *(
                View(
                    (self.memories[u.memory].value or 0) + u.start,
                    u.element,
                    len(u.sizes),
                    numbers(u.sizes),
                    numbers(u.strides),
                    u.written,
                )
                for u in uses
            )
        )

    def work(self, uses: list[Use]) -> Work:
        self.names.append(b"operation %d" % len(self.names))  # a name of its own: told by itself
        NAMES.append(self.names[-1])
        return Work(self.names[-1], self.views(uses), len(uses))

    def on_stream(self) -> set[int]:
        index = self.random.randrange(len(self.streams))
        uses = [self.use() for _ in range(self.random.randint(1, 2))]
        for other in range(len(self.streams)):
            if other != index and self.random.random() < self.care:
                self.record(other)
                self.wait(index, *self.events[-1])
        node = self.oracle.add(index, uses)
        work = self.work(uses)
        self.cuda.simcuda_order_note(self.streams[index], 0, ctypes.byref(work))
        return self.compare(node)

    def on_host(self) -> set[int]:
        uses = [self.use()]
        for index in range(len(self.streams)):
            if self.random.random() < self.care:
                self.oracle.add(HOST, after=[self.oracle.add(index)])
                self.cuda.cudaStreamSynchronize(self.streams[index])
        node = self.oracle.add(HOST, uses)
        work = self.work(uses)
        self.cuda.simcuda_order_host_use(ctypes.byref(work))
        return self.compare(node)

    def compare(self, node: int) -> set[int]:
        expected = self.oracle.races_with(node)
        accesses = [i for i, n in enumerate(self.oracle.nodes) if n.touched]
        named = dict(zip(self.names, accesses, strict=True))
        found = {named[race.first.name.encode()] for race in device.races()}
        # Of several earlier accesses that one covers, the checker knows the last.
        assert found <= expected, (node, found, expected)
        assert bool(found) == bool(expected), (node, found, expected)
        return found

    def record(self, index: int) -> None:
        event = ctypes.c_void_p()
        self.cuda.cudaEventCreateWithFlags(ctypes.byref(event), 2)
        self.cuda.cudaEventRecord(event, self.streams[index])
        self.events.append((event, self.oracle.add(index)))

    def wait(self, index: int, event: ctypes.c_void_p, known: int) -> None:
        self.oracle.add(index, after=[known])
        self.cuda.cudaStreamWaitEvent(self.streams[index], event, 0)

    def order(self) -> None:
        pick, oracle = self.random, self.oracle
        index = pick.randrange(len(self.streams))
        stream = self.streams[index]
        what = pick.choice(("record", "record", "wait", "wait", "event", "query", "stream", "all"))
        if what == "record":
            self.record(index)
        elif what in {"wait", "event", "query"} and self.events:
            event, known = pick.choice(self.events)
            if what == "wait":
                self.wait(index, event, known)
            elif what == "event":
                oracle.add(HOST, after=[known])
                self.cuda.cudaEventSynchronize(event)
            elif self.cuda.cudaEventQuery(event) == 0:
                oracle.add(HOST, after=[known])
            else:
                self.cuda.cudaGetLastError()
        elif what == "stream" and pick.random() < 0.4:
            oracle.add(HOST, after=[oracle.add(index)])
            self.cuda.cudaStreamSynchronize(stream)
        elif what == "all" and pick.random() < 0.2:
            oracle.add(HOST, after=[oracle.add(i) for i in range(len(self.streams))])
            self.cuda.cudaDeviceSynchronize()

    def run(self, steps: int) -> bool:
        """Whether it came to a race."""
        for _ in range(steps):
            kind = self.random.random()
            if kind < 0.5:
                self.order()
            elif self.on_host() if kind > 0.95 else self.on_stream():
                return True
        return False


NAMES: list[bytes] = []  # live as long as the process, as the runtime wants it


@pytest.fixture
def program(torch: Any) -> Iterator[Any]:
    torch.cuda.synchronize()
    yield Program
    device.clear_races()


@pytest.mark.parametrize("seed", range(10))
def test_random_programs(program: Any, mode: str, seed: int) -> None:
    raced = 0
    for i in range(25):
        case = program(1000 * seed + i)
        try:
            raced += case.run(40)
        finally:
            case.close()
    assert 0 < raced < 25, "both kinds of programs are wanted"


def test_random_views_meet_as_their_bytes_do(program: Any) -> None:
    """Each pair by itself, on two streams without order."""
    case = program(1)
    handle = ctypes.c_void_p()
    case.cuda.cudaStreamCreateWithFlags(ctypes.byref(handle), NON_BLOCKING)
    met = 0
    for _ in range(3000):
        a, b = case.use(), case.use()
        case.cuda.simcuda_order_note(None, 0, ctypes.byref(case.work([a])))
        case.cuda.simcuda_order_note(handle, 0, ctypes.byref(case.work([b])))
        meets = bool(a.touched() & b.touched()) and (a.written or b.written)
        assert bool(device.races()) == meets, (a, b)
        met += meets
        device.clear_races()
        case.cuda.cudaDeviceSynchronize()
    case.cuda.cudaStreamDestroy(handle)
    case.close()
    assert 300 < met < 2700
