# SPDX-License-Identifier: Apache-2.0
"""Random programs, ordered as correct ones must be, and their mirrors on the CPU. Between any two
operators tensors move out, pointers are taken, Large Model Support is turned off and on, streams
come and go, and threads run short of memory together."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import lms_device
import torch
from lms_device import LARGE, MIB
from lms_extension import OwnedStream

N = MIB // 4
SIZES = (N, N, N // 2, N // 8, 2000)
MOST_EXPOSED = 3  # they do not move: each may keep a segment of its own
LIMIT, MOST_ENTRIES = 16 * MIB, 34  # of 0.5 MiB each: about as much as the device has
if lms_device.is_plugin():  # whose segments for more than 1 MiB have 20 MiB, or 10: one is kept
    LIMIT, MOST_ENTRIES = 36 * MIB, 68


@dataclass(eq=False)
class Entry:
    """A tensor, its mirror, and what else refers to its memory."""

    tensor: torch.Tensor | None  # None: only aliases are left
    mirror: torch.Tensor
    users: list[Any]  # streams
    aliases: list[tuple[torch.Tensor, int, int]] = field(default_factory=list)  # with their range
    home: int = 0
    captured: bool = False

    def __post_init__(self) -> None:
        self.home = self.users[0].cuda_stream

    def exposed(self) -> bool:
        return bool(self.aliases) or self.captured


class Pointer:
    """What another library would make of a pointer."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


class Program:
    """One program. `limit` leaves the device so many bytes."""

    def __init__(self, seed: int, limit: Callable[[int], None], on: bool) -> None:
        self.random = random.Random(seed)
        self.limit = limit
        self.on = on
        self.known = on  # before the first enable only DLPack's aliases are
        self.main = torch.cuda.current_stream()
        self.streams = [self.main, torch.cuda.Stream(), torch.cuda.Stream()]
        self.owned: dict[Any, OwnedStream] = {}  # that this has made, not PyTorch
        self.entries: list[Entry] = []
        self.graph: tuple[Any, Entry, Entry] | None = None
        self.count = 0
        limit(LIMIT if on else LARGE)

    # ---- what it is made of

    def value(self) -> float:
        self.count += 1
        return float(self.count)

    def pick(self) -> Entry:
        return self.random.choice(self.entries)

    def owners(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.tensor is not None]

    def operand(self, entry: Entry) -> tuple[torch.Tensor, torch.Tensor]:
        """One of the tensors that refer to its memory, with that part of the mirror."""
        ways = [(alias, entry.mirror[a:b]) for alias, a, b in entry.aliases]
        if entry.tensor is not None:
            ways.append((entry.tensor, entry.mirror))
        return self.random.choice(ways)

    @contextmanager
    def on_stream(self, *entries: Entry, stream: Any = None) -> Iterator[Any]:
        """A stream that waits for all that used the entries."""
        stream = stream or self.random.choice(self.streams)
        for entry in entries:
            for used in entry.users:
                if used != stream:
                    stream.wait_stream(used)
            if stream not in entry.users:
                entry.users.append(stream)
        with torch.cuda.stream(stream):
            yield stream

    def drop(self, entry: Entry) -> None:
        self.entries.remove(entry)
        if entry.tensor is None:
            torch.cuda.synchronize()  # nothing is left to tell of the streams
            return
        for stream in entry.users:
            if stream.cuda_stream != entry.home:
                entry.tensor.record_stream(stream)

    # ---- operators

    def make(self) -> None:
        size, value = self.random.choice(SIZES), self.value()
        with self.on_stream() as stream:
            made = torch.full((size,), value, device="cuda")
        self.entries.append(Entry(made, torch.full((size,), value), [stream]))

    def give(self) -> None:
        """Memory is used on a stream that is ordered after all that was freed before, and not after
        what others have done since, and what only Large Model Support lets have that memory."""
        home, other = self.random.sample(self.streams, 2)
        for stream in self.streams:
            if stream != other:
                other.wait_stream(stream)
        entry, value = self.pick(), self.value()
        with self.on_stream(entry, stream=home):
            tensor, mirror = self.operand(entry)
            tensor.add_(value)
            mirror.add_(value)
            for owner in self.owners() if self.known else ():
                torch.ops.lms.evict(owner.tensor)
            made = torch.empty(0 if value % 2 else len(mirror), device="cuda")
            made.resize_(len(mirror))
        with torch.cuda.stream(other):
            made.fill_(value)
        self.entries.append(Entry(made, torch.full((len(mirror),), value), [home, other]))

    def update(self) -> None:
        entry, value = self.pick(), self.value()
        with self.on_stream(entry):
            tensor, mirror = self.operand(entry)
            for each in (tensor, mirror):
                each.mul_(-0.5).add_(value)

    def add(self) -> None:
        to, other = self.pick(), self.pick()
        if to is other:
            return
        with self.on_stream(to, other):
            (a, a_mirror), (b, b_mirror) = self.operand(to), self.operand(other)
            n = min(len(a), len(b))
            a[:n].mul_(0.5).add_(b[:n])
            a_mirror[:n].mul_(0.5).add_(b_mirror[:n])

    def compute(self) -> None:
        entry, value = self.pick(), self.value()
        with self.on_stream(entry) as stream:
            tensor, mirror = self.operand(entry)
            made = tensor * 0.5 + value
        self.entries.append(Entry(made, mirror * 0.5 + value, [stream]))

    def overwrite(self) -> None:
        entry, value = self.pick(), self.value()
        with self.on_stream(entry):
            tensor, mirror = self.operand(entry)
            for each in (tensor, mirror):
                each.zero_() if value % 2 else each[len(each) // 2 :].fill_(value)

    def copy(self) -> None:
        to, other = self.pick(), self.pick()
        with self.on_stream(to, other):
            (a, a_mirror), (b, b_mirror) = self.operand(to), self.operand(other)
            if to is not other and len(a) == len(b):
                a.copy_(b)
                a_mirror.copy_(b_mirror)

    def lists(self) -> None:
        owners = self.owners()
        chosen = self.random.sample(owners, min(len(owners), 4))
        value = self.value()
        with self.on_stream(*chosen) as stream:
            torch._foreach_add_([entry.tensor for entry in chosen], value)
            made = torch._foreach_mul([entry.tensor for entry in chosen[:2]], 0.5)
        for entry in chosen:
            entry.mirror.add_(value)
        for entry, tensor in zip(chosen[:2], made, strict=True):
            self.entries.append(Entry(tensor, entry.mirror * 0.5, [stream]))

    def read(self) -> None:
        entry = self.pick()
        with self.on_stream(entry):
            tensor, mirror = self.operand(entry)
            assert torch.equal(tensor.cpu(), mirror)

    # ---- what moves, and what must not

    def evict(self) -> None:
        entry = self.random.choice(self.owners())
        with torch.cuda.stream(self.random.choice(self.streams)):
            if self.known:
                torch.ops.lms.evict(entry.tensor)

    def reclaim(self) -> None:
        torch.cuda.lms.reclaim()

    def alias(self) -> None:
        """A pointer, by DLPack, as another library takes it, or as a part of the storage."""
        entry = self.random.choice(self.owners())
        kind = self.random.choice(("dlpack", "interface", "slice") if self.known else ("dlpack",))
        tensor, size = entry.tensor, len(entry.mirror)
        if tensor is None or sum(e.exposed() for e in self.entries) >= MOST_EXPOSED:
            return
        a, b = 0, size
        with self.on_stream(entry):
            if kind == "dlpack":
                made = torch.from_dlpack(tensor)
            elif kind == "interface":
                made = torch.as_tensor(Pointer(tensor), device="cuda")
            else:
                a, b = sorted(self.random.sample(range(size + 1), 2))
                part = tensor.untyped_storage()[4 * a : 4 * b]
                part.fill_(63)
                entry.mirror.untyped_storage()[4 * a : 4 * b].fill_(63)
                made = torch.empty(0, device="cuda").set_(part)
        entry.aliases.append((made, a, b))

    def release(self) -> None:
        """The pointers are not used any more."""
        entry = self.pick()
        if not entry.aliases or entry.captured or entry.tensor is None:
            return
        torch.cuda.synchronize()
        entry.aliases.clear()
        if self.known:
            torch.cuda.lms.release_pointer(entry.tensor)

    def leave_aliases(self) -> None:
        entry = self.pick()
        if entry.aliases and not entry.captured:
            torch.cuda.synchronize()  # no stream can be recorded any more
            entry.tensor = None

    def capture(self) -> None:
        self.drop_graph()
        owners = self.owners()
        a, b = self.random.choice(owners), self.random.choice(owners)
        if not self.known or a is b or len(a.mirror) != len(b.mirror):
            return
        torch.cuda.synchronize()
        torch.cuda.lms.reclaim()  # nothing makes way during a capture
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with (
            self.on_stream(a, b, stream=torch.cuda.Stream()),
            torch.cuda.lms.pin(a.tensor, b.tensor),
        ):
            graph.capture_begin()
            a.tensor.copy_(a.tensor * 0.5 + b.tensor)
            graph.capture_end()
        a.captured = b.captured = True
        self.graph = graph, a, b

    def replay(self) -> None:
        if self.graph is None:
            return
        graph, a, b = self.graph
        with self.on_stream(a, b):
            graph.replay()
        a.mirror.mul_(0.5).add_(b.mirror)

    def drop_graph(self) -> None:
        if self.graph is None:
            return
        torch.cuda.synchronize()
        _, *entries = self.graph
        self.graph = None
        for entry in entries:
            entry.captured = False
            if not entry.aliases:
                torch.cuda.lms.release_pointer(entry.tensor)

    # ---- streams, threads, and the switch

    def renew_stream(self) -> None:
        index = self.random.randrange(1, len(self.streams))
        old = self.streams[index]
        self.main.wait_stream(old)
        for entry in self.entries:
            entry.users = [self.main if user == old else user for user in entry.users]
        if owned := self.owned.pop(old, None):
            owned.destroy()
        if self.random.random() < 0.5:
            owned = OwnedStream()
            self.streams[index] = owned.stream
            self.owned[owned.stream] = owned
        else:
            self.streams[index] = torch.cuda.Stream()

    def together(self) -> None:
        """Threads whose operators each fit, and hardly two of them at once."""
        mine = [entry for entry in self.owners() if not entry.exposed()]
        self.random.shuffle(mine)
        made: list[Entry] = []
        failed: list[BaseException] = []

        def work(entries: list[Entry], stream: Any, seed: int) -> None:
            try:
                chosen = random.Random(seed)
                for _ in range(4):
                    entry = chosen.choice(entries)
                    operator = chosen.choice((torch.sort, torch.cat, torch.add))
                    with self.on_stream(entry, stream=stream):
                        x, mirror = entry.tensor, entry.mirror
                        if operator is torch.sort:
                            got, want = x.sort().values, mirror.sort().values
                        elif operator is torch.cat:
                            got, want = torch.cat([x, x])[: len(x)], mirror
                        else:
                            got, want = x + 1, mirror + 1
                        assert torch.equal(got.cpu(), want), operator
                        if operator is torch.add:
                            made.append(Entry(got, want, [stream]))
            except BaseException as error:
                failed.append(error)

        shares = [mine[i::3] for i in range(3)]
        threads = [
            threading.Thread(target=work, args=(share, torch.cuda.Stream(), self.random.random()))
            for share in shares
            if share
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if self.on:
                torch.cuda.lms.reclaim()
            threads[0].join(0.002)
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        self.entries += made

    def switch(self) -> None:
        """What does not fit on the device stays out for a while after it was turned off."""
        if self.on:
            narrow = self.random.random() < 0.5
            if not narrow:
                self.limit(LARGE)
            torch.cuda.lms.disable()
            for _ in range(3 if narrow else 0):
                self.read()
            self.limit(LARGE)
        else:
            torch.cuda.lms.enable(min_size=0)
            if not self.known:  # what was made before the first time is not known before a use
                for entry in self.owners():
                    with torch.cuda.lms.pin(entry.tensor):
                        pass
            self.limit(LIMIT)
            self.known = True
        self.on = not self.on

    # ---- running

    def step(self) -> None:
        if len(self.entries) < 4:
            self.make()
            return
        actions = {
            self.make: 3, self.give: 2, self.update: 6, self.add: 6, self.compute: 6,
            self.overwrite: 4, self.copy: 4, self.lists: 3, self.read: 4, self.evict: 20,
            self.reclaim: 1, self.alias: 3, self.release: 2, self.leave_aliases: 0.5,
            self.capture: 1, self.replay: 4, self.drop_graph: 0.3, self.renew_stream: 1,
            self.together: 0.5, self.switch: 2 if self.on else 8,
        }  # fmt: skip
        self.random.choices(list(actions), list(actions.values()))[0]()
        while len(self.entries) > MOST_ENTRIES:
            self.drop(next(entry for entry in self.entries if not entry.captured))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.check()

    def check(self) -> None:
        torch.cuda.synchronize()
        for entry in self.entries:
            for tensor, mirror in [
                *((alias, entry.mirror[a:b]) for alias, a, b in entry.aliases),
                *([(entry.tensor, entry.mirror)] if entry.tensor is not None else []),
            ]:
                assert torch.equal(tensor.cpu(), mirror)
