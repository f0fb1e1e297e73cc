# SPDX-License-Identifier: Apache-2.0
"""Profiles: what the dry device stands for, and how fast it would be. The figures and their sources
are in profiles.toml, which is checked as a whole when it is read."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ImportError:  # nothing else is needed here beside torch, and pip has it
        from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

from .errors import SimcudaError
from .sizes import format_bytes, parse_bytes

SUFFIX = ".toml"  # of a file with one profile, named by its path
PROFILES = Path(__file__).with_name("profiles.toml")

_GPU = ("fp64", "fp32", "tf32", "half", "bandwidth")
MEASURED = "measured"  # a source that begins so is no data sheet
NANOSECONDS = ("kernel", "copy", "op", "call", "malloc", "host_malloc")
_SIZES = ("context", "host", "convolution_workspace")
_EFFICIENCY = ("matmul", "convolution", "attention", "memory", "link")

# What no machine is below or above: a figure beyond is a slip of the pen, or in another unit.
_FLOPS = (1e9, 1e17)  # operations a second
_RATE = (1e8, 1e15)  # bytes a second
_LONGEST = 10**9  # nanoseconds of a launch, a copy or a call
_LARGEST = 1 << 50  # bytes, of the device or of the host
_MULTIPROCESSORS = 10_000
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


class Native(ctypes.Structure):
    """`SimcudaProfile` of simcuda.h."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("in_", "out", *_GPU)),
        *((name, ctypes.c_double) for name in ("matmul", "convolution", "attention", "host_pin")),
        *((name, ctypes.c_int64) for name in (*NANOSECONDS, "convolution_workspace")),
        *((name, ctypes.c_int) for name in ("duplex", "major", "minor", "multiprocessors")),
        ("workspaces", ctypes.c_int),
    )


@dataclass(frozen=True)
class Profile:
    """One GPU with its link. Bytes; FLOPS and bytes a second; nanoseconds; shares of a figure."""

    name: str
    memory: int
    context: int  # of the memory: not the program's
    host: int  # the machine's
    convolution_workspace: int
    capability: tuple[int, int]
    multiprocessors: int
    flops: dict[str, float]  # fp64, fp32, tf32, half
    bandwidth: float
    link_in: float
    link_out: float
    duplex: int  # thousandths
    host_pin: float
    nanoseconds: dict[str, int]
    efficiency: dict[str, float]
    sources: dict[str, str]  # of gpu, link; assumed: why

    @property
    def measured(self) -> bool:
        return self.sources["gpu"].startswith(MEASURED)

    @property
    def available(self) -> int:
        """The memory that programs can have."""
        return self.memory - self.context

    def native(self, *, workspaces: bool = True) -> Native:
        """As the runtime takes it: what a kernel or copy reaches. `workspaces`: whether operators
        take those of libraries."""
        reached = self.efficiency
        return Native(
            in_=self.link_in * reached["link"],
            out=self.link_out * reached["link"],
            **self.flops,
            bandwidth=self.bandwidth * reached["memory"],
            matmul=reached["matmul"],
            convolution=reached["convolution"],
            attention=reached["attention"],
            host_pin=self.host_pin,
            **self.nanoseconds,
            convolution_workspace=self.convolution_workspace if workspaces else 0,
            workspaces=workspaces,
            duplex=self.duplex,
            major=self.capability[0],
            minor=self.capability[1],
            multiprocessors=self.multiprocessors,
        )


def is_file(name: str) -> bool:
    """Whether it is the path of a profile."""
    return name.endswith(SUFFIX)


def profile(name: str, path: Path = PROFILES) -> Profile:
    """The profile of this name, or the one of a file NAME.toml. Raises SimcudaError, with the known
    ones, if there is none."""
    if is_file(name):
        found = list(read_profiles(Path(name)).values())
        if len(found) != 1:
            raise SimcudaError(
                f"{name} cannot be taken for a profile because it has {len(found)}; leave one in it"
            )
        return found[0]
    known = read_profiles(path)
    if name not in known:
        raise SimcudaError(
            f"there is no profile {name!r}; choose one of {', '.join(sorted(known))}, or a file "
            f"NAME{SUFFIX} of `python -m simcuda calibrate`"
        )
    return known[name]


def read_profiles(path: Path = PROFILES) -> dict[str, Profile]:
    """All profiles of a file. Raises SimcudaError on what is missing, unknown or out of range."""
    top = _Table(path.name, _parse(path))
    documents = top.table("source")
    sources = {name: documents.text(name) for name in documents.values}
    assumed = top.table("assumed")
    efficiency = assumed.table("efficiency")
    common: dict[str, Any] = {
        **{name: assumed.size(name) for name in _SIZES},
        "duplex": assumed.whole("duplex", 1000),
        "host_pin": assumed.number("host_pin", *_RATE),
        "nanoseconds": {name: assumed.whole(name, _LONGEST) for name in NANOSECONDS},
        "efficiency": {name: efficiency.number(name, 1e-3, 1) for name in _EFFICIENCY},
    }
    why = assumed.text("why")
    gpus, links = top.table("gpu"), top.table("link")
    shapes = {name: _gpu(gpus.table(name), sources) for name in gpus.values}
    speeds = {name: _link(links.table(name), sources) for name in links.values}
    for table in (assumed, efficiency):
        table.end()
    made = {}
    profiles = top.table("profile")
    for name in profiles.values:
        table = profiles.table(name)
        gpu, link = table.choice("gpu", shapes), table.choice("link", speeds)
        memory = table.size("memory")
        table.end()
        for name_of, whose in (("context", "driver's own"), ("convolution_workspace", "workspace")):
            if memory <= common[name_of]:
                table.refuse("memory", f"is not more than the {whose} ({name_of})")
        of = {"gpu": gpu["source"], "link": link["source"], "assumed": why}
        figures = {k: v for k, v in {**gpu, **link}.items() if k != "source"}
        made[name] = Profile(name=name, memory=memory, sources=of, **figures, **common)
    top.end()
    return made


def to_toml(profile: Profile) -> str:
    """A file with this profile alone."""
    gpu = {
        "source": "gpu",
        "capability": ".".join(map(str, profile.capability)),
        "multiprocessors": profile.multiprocessors,
        **profile.flops,
        "bandwidth": profile.bandwidth,
    }
    assumed = {
        "why": profile.sources["assumed"],
        **{name: str(getattr(profile, name)) for name in _SIZES},
        **profile.nanoseconds,
        "host_pin": profile.host_pin,
        "duplex": profile.duplex,
    }
    link = {"source": "link", "in": profile.link_in, "out": profile.link_out}
    one = {"gpu": "measured", "memory": str(profile.memory), "link": "measured"}
    tables: dict[str, dict[str, Any]] = {
        "source": {name: profile.sources[name] for name in ("gpu", "link")},
        "assumed": assumed,
        "assumed.efficiency": profile.efficiency,
        "link.measured": link,
        "gpu.measured": gpu,
        f"profile.{json.dumps(profile.name)}": one,
    }
    texts = ["# SPDX-License-Identifier: Apache-2.0\n# Units are those of simcuda's profiles.toml."]
    for name, values in tables.items():
        lines = (f"{key} = {json.dumps(value)}" for key, value in values.items())
        texts.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(texts) + "\n"


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SimcudaError(f"the profiles {path} cannot be read: {error}") from None


def _gpu(table: _Table, sources: dict[str, str]) -> dict[str, Any]:
    capability = _CAPABILITY.fullmatch(table.text("capability"))
    if not capability:
        table.refuse("capability", "is not written like 8.0")
    made = {
        "source": table.choice("source", sources),
        "capability": (int(capability[1]), int(capability[2])),
        "multiprocessors": table.whole("multiprocessors", _MULTIPROCESSORS),
        "flops": {name: table.number(name, *_FLOPS) for name in _GPU if name != "bandwidth"},
        "bandwidth": table.number("bandwidth", *_RATE),
    }
    table.end()
    return made


def _link(table: _Table, sources: dict[str, str]) -> dict[str, Any]:
    made = {
        "source": table.choice("source", sources),
        "link_in": table.number("in", *_RATE),
        "link_out": table.number("out", *_RATE),
    }
    table.end()
    return made


class _Table:
    """A table whose values are each taken once, by what they must be; `end` refuses the rest."""

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where, self.values = where, values
        self._taken: set[str] = set()

    def refuse(self, name: str, problem: str) -> NoReturn:
        raise SimcudaError(f"{self.where}: {name} {problem}")

    def _take(self, name: str, kind: type | tuple[type, ...], what: str) -> Any:
        self._taken.add(name)
        if name not in self.values:
            self.refuse(name, "is missing")
        value = self.values[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            self.refuse(name, f"is {value!r}, which is not {what}")
        return value

    def table(self, name: str) -> _Table:
        return _Table(f"{self.where}: {name}", self._take(name, dict, "a table"))

    def text(self, name: str) -> str:
        return str(self._take(name, str, "text"))

    def number(self, name: str, least: float, most: float) -> float:
        value = self._take(name, (int, float), "a number")
        if not least <= value <= most:
            self.refuse(name, f"is {value}, not from {least:g} to {most:g}")
        return float(value)

    def whole(self, name: str, most: int) -> int:
        value = int(self._take(name, int, "a whole number"))
        if not 1 <= value <= most:
            self.refuse(name, f"is {value}, not from 1 to {most}")
        return value

    def size(self, name: str) -> int:
        text = self.text(name)
        try:
            size = parse_bytes(text)
        except SimcudaError as error:
            self.refuse(name, f"is wrong: {error}")
        if size > _LARGEST:
            self.refuse(name, f"is {text}, more than {format_bytes(_LARGEST)}")
        return size

    def choice(self, name: str, known: dict[str, Any]) -> Any:
        value = self.text(name)
        if value not in known:
            self.refuse(name, f"is {value!r}; choose one of {', '.join(sorted(known))}")
        return known[value]

    def end(self) -> None:
        for name in self.values:
            if name not in self._taken:
                self.refuse(name, "is unknown")
