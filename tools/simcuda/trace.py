# SPDX-License-Identifier: Apache-2.0
"""Traces of dry runs: reads them, and exports them to Chrome's trace viewer (chrome://tracing,
https://ui.perfetto.dev). docs/trace.md has the format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import SimcudaError
from .profiles import Profile
from .sizes import format_bytes

if TYPE_CHECKING:
    from .config import Settings

FORMAT, VERSION = "simcuda-trace", 1
UNITS = ("compute", "in", "out")
ACCESS = ("read", "write", "make")
_END, _OP, _COMMAND, _RAN, _WAITED, _ALLOCATED, _FREED, _SEGMENT, _SEGMENT_GONE, _MARK = range(10)


@dataclass(frozen=True)
class Storage:
    """What moves as a whole: all bytes behind one pointer of torch's."""

    number: int
    bytes: int


@dataclass(frozen=True)
class Use:
    """Of a storage by an operator, which finds it in an allocation (None: not torch's)."""

    storage: Storage
    access: str  # of ACCESS
    allocation: int | None


@dataclass
class Event:
    """`time` is the host's, in nanoseconds."""

    time: int


@dataclass
class Command(Event):
    """What a unit does: an operator, or a copy, memset or kernel outside of one. `begin` and `end`
    are -1 for an operator that only makes copies, which are commands of their own."""

    name: str
    unit: str  # of UNITS
    device: int
    stream: int
    begin: int = -1
    end: int = -1

    @property
    def duration(self) -> int:
        return self.end - self.begin


@dataclass
class Op(Command):
    uses: list[Use] = field(default_factory=list)


@dataclass
class Copy(Command):
    """`storage`: whose memory on the device it is, if an operator uses that, too. `of_op`: it is
    what the operator before it does; what moves storages is not."""

    bytes: int = 0
    allocation: int | None = None
    storage: Storage | None = None
    of_op: bool = False


@dataclass
class Allocated(Event):
    number: int
    bytes: int
    device: int
    stream: int
    segment: int | None
    offset: int


@dataclass
class Freed(Event):
    allocation: int


@dataclass
class Segment(Event):
    number: int
    device: int
    bytes: int


@dataclass
class SegmentGone(Event):
    segment: int


@dataclass
class Waited(Event):
    """The host has waited for so long, until `time`."""

    duration: int


@dataclass
class Mark(Event):
    name: str


@dataclass
class Trace:
    """`about` is the header. `events` are in the order of the host's calls."""

    about: dict[str, Any]
    events: list[Event]

    def of(self, *kinds: type[Event]) -> Iterator[Any]:
        return (event for event in self.events if isinstance(event, kinds))

    @property
    def time(self) -> int:
        """From the start of the first command to the end of the last, in nanoseconds."""
        ran = [c for c in self.of(Command) if c.begin >= 0]
        return max(c.end for c in ran) - min(c.begin for c in ran) if ran else 0

    def moves(self) -> Iterator[Copy]:
        """Copies between device and host that no operator made: what Large Model Support moves."""
        return (c for c in self.of(Copy) if not c.of_op and c.unit in ("in", "out"))


def write_header(path: Path, profile: Profile, settings: Settings) -> None:
    """Begin a trace. Raises SimcudaError if the file cannot be written."""
    about = {
        "format": FORMAT,
        "version": VERSION,
        "modelled": True,
        "memory": settings.memory,
        "devices": settings.devices,
        "profile": asdict(profile),
    }
    try:
        path.write_text(json.dumps(about, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise SimcudaError(f"the trace {path} cannot be written: {error.strerror}") from None


def read(path: Path) -> Trace:
    """Raises SimcudaError for what is no trace, is of another version, or has no end."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise SimcudaError(f"the trace {path} cannot be read: {error.strerror}") from None
    try:
        about = json.loads(head)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise SimcudaError(f"{path} is no trace of a dry run")
    if about.get("version") != VERSION:
        raise SimcudaError(
            f"{path} has version {about.get('version')}, and {VERSION} is read here; trace the "
            "program once more"
        )
    try:
        _check(about)
        return Trace(about, _Reader(body).events())
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise SimcudaError(
            f"the trace {path} is cut off or damaged ({error!r}); trace the program once more, and "
            "let it end"
        ) from None


def _check(about: dict[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError unless what is read of a header is there."""
    profile = about["profile"]
    str(profile["name"])
    for number in (profile["link_in"], profile["link_out"], profile["efficiency"]["link"]):
        if not number > 0:
            raise ValueError(f"a rate of {number}")
    if not 1 <= about["devices"] <= 16:
        raise ValueError(f"{about['devices']} devices")


class _Reader:
    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0
        self._names: list[str] = []
        self._storages: dict[int, Storage] = {}
        self._places: dict[int, int] = {}  # storage -> allocation + 1
        self._owners: dict[int, Storage] = {}  # allocation + 1 -> whose it is
        self._commands: list[Command] = []
        self._live: set[int] = set()  # allocations

    def events(self) -> list[Event]:
        made: list[Event] = []
        time = began = allocations = segments = 0
        while True:
            kind, time = self._number(), time + self._number()
            if kind == _END:
                if self._number() != len(self._commands) or self._at != len(self._body):
                    raise ValueError("it does not end where it should")
                # What comes in has its place before an operator says whose that is.
                for copy in (c for c in self._commands if isinstance(c, Copy)):
                    if copy.allocation is not None:
                        copy.storage = self._owners.get(copy.allocation + 1)
                return made
            if kind == _RAN:
                command = self._commands[self._number()]
                shift = self._number()
                began += (shift >> 1) ^ -(shift & 1)
                command.begin, command.end = began, began + self._number()
            elif kind == _OP:
                made.append(self._op(time))
            elif kind == _COMMAND:
                made.append(self._copy(time))
            elif kind == _ALLOCATED:
                size, device, stream = self._number(), self._number(), self._number()
                segment, offset = self._optional(), self._number()
                made.append(Allocated(time, allocations, size, device, stream, segment, offset))
                self._live.add(allocations)
                allocations += 1
            elif kind == _FREED:
                freed = self._number()
                self._live.remove(freed)
                made.append(Freed(time, freed))
            elif kind == _SEGMENT:
                made.append(Segment(time, segments, self._number(), self._number()))
                segments += 1
            elif kind == _SEGMENT_GONE:
                made.append(SegmentGone(time, self._number()))
            elif kind == _WAITED:
                made.append(Waited(time, self._number()))
            elif kind == _MARK:
                made.append(Mark(time, self._name()))
            else:
                raise ValueError(f"kind {kind}")

    def _number(self) -> int:
        value = 0
        for shift in range(0, 63, 7):
            byte = self._body[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number is too large")

    def _optional(self) -> int | None:
        number = self._number()
        return number - 1 if number else None

    def _name(self) -> str:
        number = self._number()
        if number == len(self._names):
            length = self._number()
            self._names.append(self._body[self._at : self._at + length].decode())
            self._at += length
        return self._names[number]

    def _op(self, time: int) -> Op:
        name, device, stream, timed = self._name(), self._number(), self._number(), self._number()
        op = Op(time, name, UNITS[0], device, stream)
        for _ in range(self._number()):
            head = self._number()
            number, access = head >> 4, ACCESS[head & 3]
            if head & 8:
                self._storages[number] = Storage(number, self._number())
            storage = self._storages[number]
            if head & 4:
                self._places[number] = self._number()
            place = self._places[number]
            self._owners[place] = storage
            op.uses.append(Use(storage, access, place - 1 if place else None))
        if timed:
            self._commands.append(op)
        return op

    def _copy(self, time: int) -> Copy:
        name, unit = self._name(), UNITS[self._number()]
        made = Copy(time, name, unit, self._number(), self._number())
        made.bytes, place, made.of_op = self._number(), self._number(), bool(self._number())
        made.allocation = place - 1 if place else None
        self._commands.append(made)
        return made


def summary(trace: Trace) -> str:
    ops, moves = sum(1 for _ in trace.of(Op)), list(trace.moves())
    moved = {way: sum(c.bytes for c in moves if c.unit == way) for way in UNITS[1:]}
    busy = ", ".join(
        f"{unit} {sum(c.duration for c in trace.of(Command) if c.unit == unit) / 1e9:.3f} s"
        for unit in UNITS
    )
    return (
        f"{trace.about['profile']['name']}, modelled: {ops} operators in {trace.time / 1e9:.3f} s "
        f"({busy}); moved out {format_bytes(moved['out'])}, in {format_bytes(moved['in'])}"
    )


def to_chrome(trace: Trace) -> dict[str, Any]:
    """As Chrome's trace viewer reads it: a process a device, a row a unit, and memory in use."""
    events: list[dict[str, Any]] = []
    for device in range(int(trace.about["devices"])):
        name = f"device {device}, {trace.about['profile']['name']}, modelled time"
        events.append({"ph": "M", "pid": device, "name": "process_name", "args": {"name": name}})
        for row, unit in enumerate(UNITS):
            about = {"ph": "M", "pid": device, "tid": row, "name": "thread_name"}
            events.append({**about, "args": {"name": unit}})
    sizes: dict[int, Allocated] = {}
    used: dict[int, int] = {}
    for event in trace.events:
        if isinstance(event, Command) and event.begin >= 0:
            arguments: dict[str, Any] = {"stream": event.stream, "issued": event.time / 1e3}
            if isinstance(event, Op):
                arguments["storages"] = [f"{u.storage.number} {u.access}" for u in event.uses]
            elif isinstance(event, Copy):
                arguments["bytes"] = event.bytes
                arguments["storage"] = event.storage.number if event.storage else None
            events.append(
                {
                    "ph": "X", "pid": event.device, "tid": UNITS.index(event.unit),
                    "name": event.name, "ts": event.begin / 1e3, "dur": event.duration / 1e3,
                    "args": arguments,
                }
            )  # fmt: skip
        elif isinstance(event, Allocated | Freed):
            if isinstance(event, Allocated):
                block, sign = event, 1
                sizes[event.number] = event
            else:
                block, sign = sizes[event.allocation], -1
            used[block.device] = used.get(block.device, 0) + sign * block.bytes
            events.append(
                {
                    "ph": "C", "pid": block.device, "name": "bytes allocated",
                    "ts": event.time / 1e3, "args": {"bytes": used[block.device]},
                }
            )  # fmt: skip
        elif isinstance(event, Mark):
            events.append(
                {"ph": "i", "s": "g", "pid": 0, "name": event.name, "ts": event.time / 1e3}
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
