# SPDX-License-Identifier: Apache-2.0
"""Settings of the simulated device: keyword arguments, environment variables, defaults.

Every setting has an environment variable of the same name (``memory`` is ``SIMCUDA_MEMORY``), so
that child processes get the device of their parent. What is given in the program wins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from .errors import SimcudaError
from .order import ORDER, QUERIES
from .profiles import Profile, is_file, profile, read_profiles
from .sizes import format_bytes, parse_bytes

MODES = ("immediate", "lazy", "eager-copy", "late-write")
STRICT = ("error", "abort")
# What is done about a line of a program that reads a value, which a dry device has none of.
VALUES = ("off", "report", "error")
# What a program may declare where a size depends on data; see docs/simcuda.md.
ASSUMPTIONS = ("nonzero", "unique", "bincount", "repeat_interleave")
# Whether operators of a dry device take the workspaces of NVIDIA's libraries.
WORKSPACES = ("on", "off")
# What is remembered of what TensorFlow copies to a device: values of up to 4 KiB, or everything.
CONTENTS = ("small", "all")
FRAMEWORKS = ("torch", "tensorflow")
_BLOCK = 256  # the smallest of TensorFlow's allocator, which has a word for each


@dataclass(frozen=True)
class Settings:
    """How the device starts. `memory`, `host_memory` in bytes (0: no host limit), `bandwidth` in
    bytes per second (0: copies take no time), `lag` in queries that answer "not ready",
    `order_trace` the number of an operation (0: none), `order_suppressions` a file ("": none),
    `profile` the name of what the dry device stands for, `assume` like "nonzero=0.1,bincount=8",
    `values` what is done where a program reads one of a dry device ("": it is told), `trace` a file
    ("": none), `workspaces` whether operators of a dry device take those of libraries ("": they
    do), `contents` how much of what TensorFlow copies there is kept ("": small values), `framework`
    what the program imports."""

    memory: int = 1 << 30
    mode: str = "immediate"
    lag: int = 0
    devices: int = 1
    strict: str = "error"
    bandwidth: int = 0
    host_memory: int = 0
    poison: bool = True
    order: str = "off"
    queries: str = "eager"
    order_trace: int = 0
    order_suppressions: str = ""
    dry: bool = False
    profile: str = ""
    assume: str = ""
    values: str = ""
    trace: str = ""
    workspaces: str = ""
    contents: str = ""
    framework: str = "torch"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SimcudaError(f"there is no mode {self.mode!r}; choose one of {', '.join(MODES)}")
        if self.strict not in STRICT:
            raise SimcudaError(f"strict is {self.strict!r}; choose one of {', '.join(STRICT)}")
        if self.order not in ORDER:
            raise SimcudaError(f"order is {self.order!r}; choose one of {', '.join(ORDER)}")
        if self.queries not in QUERIES:
            raise SimcudaError(f"queries is {self.queries!r}; choose one of {', '.join(QUERIES)}")
        if self.queries == "strict" and self.order == "off":
            raise SimcudaError("queries cannot be strict with order off; choose report or error")
        if self.values and self.values not in VALUES:
            raise SimcudaError(f"values is {self.values!r}; choose one of {', '.join(VALUES)}")
        if self.workspaces and self.workspaces not in WORKSPACES:
            raise SimcudaError(
                f"workspaces is {self.workspaces!r}; choose one of {', '.join(WORKSPACES)}"
            )
        if self.contents and self.contents not in CONTENTS:
            raise SimcudaError(
                f"contents is {self.contents!r}; choose one of {', '.join(CONTENTS)}"
            )
        if self.contents and self.framework != "tensorflow":
            raise SimcudaError(
                f"contents {self.contents} cannot be used because it is of TensorFlow's device; "
                "leave it out"
            )
        if self.framework not in FRAMEWORKS:
            raise SimcudaError(
                f"there is no framework {self.framework!r}; choose one of {', '.join(FRAMEWORKS)}"
            )
        if not self.memory:
            raise SimcudaError(
                "a device without memory cannot be simulated; give some with --memory"
            )
        if not 1 <= self.devices <= 16:
            raise SimcudaError(f"{self.devices} devices cannot be simulated; choose 1 to 16")
        if self.dry:
            _profile(self.profile)
            if self.mode != "immediate" or self.bandwidth or self.lag:
                raise SimcudaError(
                    "mode, lag and bandwidth are of the device that computes; "
                    "leave them out with dry"
                )
        else:
            for name in ("profile", "assume", "values", "trace", "workspaces"):
                value = getattr(self, name)
                if value:
                    raise SimcudaError(
                        f"{name} {value} cannot be used because it is of the dry device; give "
                        "--dry, too, or leave it out"
                    )
        self.assumptions()
        if self.framework == "tensorflow":
            self._of_tensorflow()

    def _of_tensorflow(self) -> None:
        if not self.dry:
            raise SimcudaError(
                "TensorFlow cannot compute here because none of its kernels is simulated; give "
                "--dry and a profile, for memory and modelled time without numbers"
            )
        table = self.memory // _BLOCK * 8 * self.devices
        has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if table > has:
            raise SimcudaError(
                f"{format_bytes(self.memory)} of device memory cannot be used because TensorFlow's "
                f"allocator would keep a table of {format_bytes(table)}, and this machine has "
                f"{format_bytes(has)}; give less with --memory"
            )
        for name in ("assume", "values", "trace"):
            value = getattr(self, name)
            if value:
                raise SimcudaError(
                    f"{name} {value} cannot be used because it knows torch's operators alone; "
                    "leave it out"
                )

    def assumptions(self) -> dict[str, float]:
        """What `assume` says. Raises SimcudaError on what it cannot be."""
        made = {}
        for part in filter(None, self.assume.split(",")):
            name, _, text = part.partition("=")
            if name not in ASSUMPTIONS:
                raise SimcudaError(
                    f"there is nothing to assume for {name!r}; choose of {', '.join(ASSUMPTIONS)}"
                )
            try:
                value = float(text)
            except ValueError:
                value = -1
            most = 1 if name in ("nonzero", "unique") else 1e12
            if not 0 <= value <= most:
                raise SimcudaError(f"{name} is {text!r}, not a number from 0 to {most:g}")
            made[name] = value
        return made

    @staticmethod
    def read(**given: str | int | bool | None) -> Settings:
        """The settings from `given`; what is None comes from the environment, else the default."""
        known = {field.name for field in fields(Settings)}
        unknown = set(given) - known
        if unknown:
            raise SimcudaError(
                f"unknown setting {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}"
            )
        values: dict[str, int | str | bool] = {}
        for name in known:
            raw = given.get(name)
            if raw is None:
                raw = os.environ.get(f"SIMCUDA_{name.upper()}") or None
            if raw is not None:
                values[name] = _convert(name, raw)
        if values.get("dry"):
            stands_for = _profile(str(values.get("profile", "")))
            values.setdefault("memory", stands_for.available)
            values.setdefault("host_memory", stands_for.host)
        return Settings(**values)._from_anywhere()  # type: ignore[arg-type]

    def _from_anywhere(self) -> Settings:
        """With whole paths, because children may start elsewhere."""
        names = ["order_suppressions", "trace", *(["profile"] if is_file(self.profile) else [])]
        whole: dict[str, Any] = {
            name: str(Path(getattr(self, name)).resolve()) for name in names if getattr(self, name)
        }
        return replace(self, **whole)

    def export(self) -> None:
        """Put the settings into the environment, for the native runtime and for children."""
        for field in fields(self):
            value = getattr(self, field.name)
            text = str(int(value)) if isinstance(value, bool) else str(value)
            os.environ[f"SIMCUDA_{field.name.upper()}"] = text
        os.environ["SIMCUDA_TRACE"] = ""  # of this process alone
        # The native runtime reads plain numbers.
        os.environ["SIMCUDA_MEMORY_BYTES"] = str(self.memory)
        os.environ["SIMCUDA_HOST_MEMORY_BYTES"] = str(self.host_memory)
        os.environ["SIMCUDA_MODE_NUMBER"] = str(MODES.index(self.mode))

    def describe(self) -> str:
        if self.dry:
            memory, stands_for = format_bytes(self.memory), _profile(self.profile)
            source = "measured" if stands_for.measured else "of data sheets"
            return f"dry CUDA device, {stands_for.name} ({source}), {memory}: nothing is computed"
        many = "" if self.devices == 1 else f" {self.devices} x"
        return f"simulated CUDA device,{many} {format_bytes(self.memory)}, mode {self.mode}"


def _profile(name: str) -> Profile:
    if not name:
        raise SimcudaError(
            "no device can be dry without a profile, which says what GPU it stands for; give "
            f"--profile with one of {', '.join(sorted(read_profiles()))}"
        )
    return profile(name)


def _convert(name: str, raw: str | int | bool) -> int | str | bool:
    if name in ("memory", "host_memory", "bandwidth"):
        return parse_bytes(raw)
    if name in (
        "mode",
        "strict",
        "order",
        "queries",
        "order_suppressions",
        "profile",
        "assume",
        "values",
        "trace",
        "workspaces",
        "contents",
        "framework",
    ):
        return str(raw)
    try:
        number = int(raw)
    except ValueError:
        raise SimcudaError(f"{name} is {raw!r}, which is not a number") from None
    return bool(number) if name in ("poison", "dry") else number
