# SPDX-License-Identifier: Apache-2.0
"""The order checker's results: races, which pairs are no races, and what to do about them.

The checking itself is native (src/order); `Device.races` asks for what it found.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SimcudaError

ORDER = ("off", "report", "error")
QUERIES = ("eager", "strict")

_SIGNAL = signal.SIGRTMIN + 11  # of faulthandler; nothing else is known to use it
_OURS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Operation:
    """One of the two: its name, where it ran, what it did to the memory, and the how-manieth
    operation of the process it was."""

    name: str
    stream: str
    access: str  # "read" or "write"
    number: int


@dataclass(frozen=True)
class Race:
    """Two operations on the same memory, one of them a write, that nothing orders."""

    first: Operation
    second: Operation
    memory: str  # "device memory" or "pinned host memory"
    base: int  # of the allocation
    offset: int
    bytes: int
    count: int  # how often these two were seen
    missing: str  # the wait that would order them
    stack: str  # Python's, of the second operation, the latest call first; may be empty

    @property
    def line(self) -> str:
        """``file:line in function`` of the program that issued the second operation."""
        return line_of(self.stack)

    def __str__(self) -> str:
        where = f"; the second at {self.line}" if self.line else ""
        return (
            f"{self.first.name} ({self.first.access}, {self.first.stream}, operation "
            f"{self.first.number}) and {self.second.name} ({self.second.access}, "
            f"{self.second.stream}, operation {self.second.number}), {self.bytes} bytes of "
            f"{self.memory}, seen {self.count} times: {self.missing}{where}"
        )


def line_of(stack: str) -> str:
    """The innermost line of the program's own in what faulthandler wrote: not torch's or ours."""
    frames = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', stack, re.MULTILINE)
    own = [f for f in frames if not _is_library(f[0])] or frames
    return "{}:{} in {}".format(*own[0]) if own else ""


def _is_library(path: str) -> bool:
    frameworks = ("torch", "tensorflow", "keras")
    return any(f"{os.sep}{name}{os.sep}" in path for name in frameworks) or (
        _OURS in Path(path).parents
    )


def parse(text: str) -> list[Race]:
    """From the records of `simcuda_order_races`."""
    races = []
    for record in text.split("\x1e")[:-1]:
        fields = record.split("\x1f")[:-1]
        first, second = (
            Operation(name, stream, access, int(number))
            for name, stream, access, number in (fields[:4], fields[4:8])
        )
        memory, missing, stack = fields[8], fields[13], fields[14]
        base, offset, size, count = map(int, fields[9:13])
        races.append(Race(first, second, memory, base, offset, size, count, missing, stack))
    return races


@dataclass(frozen=True)
class Suppression:
    """A pair of operations that is left out, by patterns as of a shell, and why."""

    first: str
    second: str
    bytes: int  # 0: any number
    reason: str


# What a stock torch does that is no error.
KNOWN = (
    Suppression(
        "aten::fill_",
        "aten::fill_",
        8,
        "torch's CUDAGeneratorState writes seed and offset of a graph's random numbers before the "
        "capture and before each replay, on whichever stream is current",
    ),
)

_FORM = re.compile(r"(\S.*?) then (\S.*?)(?: on (\d+) bytes)? because (\S.*)")


def read_suppressions(path: Path) -> list[Suppression]:
    """A line each, `FIRST then SECOND [on N bytes] because REASON`; empty lines and comments (#).

    Raises SimcudaError for a file that is not there and for any other line.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise SimcudaError(f"the suppressions {path} cannot be read: {error.strerror}") from None
    found = []
    for number, text in enumerate(lines, 1):
        line = text.strip()
        if not line or line.startswith("#"):
            continue
        match = _FORM.fullmatch(line)
        if match is None:
            raise SimcudaError(
                f"{path}:{number} is no suppression; write it like "
                "'copy d2h then aten::add* on 64 bytes because ...'"
            )
        found.append(Suppression(match[1], match[2], int(match[3] or 0), match[4]))
    return found


class Checker:
    """The order checker of this process, from the load of the device to the exit."""

    def __init__(self, call: Callable[..., Any], suppressions: list[Suppression]) -> None:
        self._call = call
        self._suppressions = [*KNOWN, *suppressions]
        for s in self._suppressions:
            call("order_suppress", s.first.encode(), s.second.encode(), s.bytes)
        # Kept open: faulthandler writes a thread's stack into it without Python's lock.
        self._stack = tempfile.TemporaryFile()  # noqa: SIM115
        faulthandler.register(_SIGNAL, file=self._stack, all_threads=False, chain=False)
        call("order_stack", self._stack.fileno(), int(_SIGNAL))

    def races(self) -> list[Race]:
        return parse(self._call("order_races").decode(errors="replace"))

    def suppressed(self) -> list[tuple[Suppression, int]]:
        """Each suppression with how many races it left out."""
        return [(s, self._call("order_suppressed", i)) for i, s in enumerate(self._suppressions)]

    def report(self) -> str:
        """What was found and what to do next; empty if there is nothing to say."""
        races = self.races()
        lines = [f"  {race}" for race in races]
        if races:
            first = races[0].first.number
            lines.insert(0, f"{len(races)} pairs of operations are not ordered (races):")
            lines.append(
                "  Next: add the missing wait at the line named; run again with "
                f"--order-trace {first} to see where operation {first} comes from; a pair that is "
                "no error goes into the file of --order-suppressions, with its reason."
            )
        lines += [
            f"  {count} left out: {s.first} then {s.second}, because {s.reason}"
            for s, count in self.suppressed()
            if count
        ]
        lines += [
            f"  no longer needed: {s.first} then {s.second} (it left nothing out)"
            for s, count in self.suppressed()[len(KNOWN) :]
            if not count
        ]
        return "\n".join(lines)

    def report_at_exit(self) -> None:
        text = self.report()
        if text:
            print(f"simcuda: order: {text}", file=sys.stderr, flush=True)
