# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a network that needs three times the device's memory, without and with LMS."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.base import log, strictjson
from lmsbuild.base.console import Console
from lmsbuild.base.errors import DemoError
from lmsbuild.base.hashing import sha256_file, sha256_value, write_atomic
from lmsbuild.base.project import make_folder
from lmsbuild.places import device as devices
from lmsbuild.places.device import Device
from lmsbuild.places.environment import Environment
from lmsbuild.tags.frameworks import Target
from lmsbuild.trials import picture
from lmsbuild.trials.picture import MIB, Trace, draw, terminal

OVERSUBSCRIPTION = 3
# Bytes of a device that is large enough for any demonstration; 0: all of it.
_ROOMY = {"cuda": 0, "sim": 16 << 30, "cpu": 16 << 30, "dry": 1 << 42}
_SIDE, _SIDES = 1024, 32  # of the script's images, and what it must be a multiple of
_GRAIN = 2 * MIB
PROGRAM = Path(__file__).parent / "programs" / "demo_run.py"
_SCHEMA = 2


@dataclass(frozen=True)
class Demonstration:
    device: str
    simulated: bool
    needed: int  # bytes of live tensors at the peak where everything fits
    capacity: int  # bytes of the device
    stock: str  # what became of the official wheel
    stock_message: str
    lms: str
    losses_equal: bool | None  # None: no value was computed
    reference: str
    paged_out: int  # bytes counted outside the engine, above what the program itself copies
    paged_in: int
    picture: Path
    result: Path
    profile: str = ""  # of a dry device, whose times are modelled
    modelled_seconds: float | None = None  # with LMS
    modelled_seconds_without_limit: float | None = None
    reused: bool = False


def demonstrate(
    target: Target, stock: Environment, lms: Environment, device: Device, console: Console
) -> Demonstration:
    """Run the demonstration, or give the last one if nothing has changed since.

    Raises DemoError when the stock wheel does not run out of memory, when LMS does not finish, when
    the losses differ, or when fewer bytes left the device than do not fit into it.
    """
    folder = target.work / "demo"
    make_folder(folder)
    shows = target.framework.shows
    script = target.project.root / shows.example
    dry = device.kind == "dry"
    code = [sha256_file(file) for file in (Path(__file__), PROGRAM, Path(picture.__file__))]
    simulated = device.kind != "cuda"
    key = sha256_value(
        [_SCHEMA, sha256_file(script), stock.key, lms.key, code, device.name]
        + ([devices.identity(target)] if device.simulated else [])
    )
    result = folder / "result.json"
    previous = _previous(result, key)
    if previous:
        return previous
    runner = _Runner(target, script, device, folder, console)
    images = runner.true_size(stock) if dry else ()
    roomy = runner.run("without a limit", stock, 0, arguments=images)
    if device.kind == "cpu":  # the official allocator of a CPU tells nobody what it needed
        roomy["needed"] = runner.run("what it needs", lms, 0, {shows.switch: "1"})["needed"]
    reference = runner.reference(stock, roomy)
    capacity = roomy["needed"] // OVERSUBSCRIPTION // _GRAIN * _GRAIN
    if dry:
        capacity = roomy["whole"]
    size = f"{capacity / MIB:.0f} MiB"
    tight = runner.run(f"official wheel, {size}", stock, capacity, arguments=images)
    # A dry device's host memory is as little there as its own, so this machine's is no limit.
    switch = {shows.switch: "host_limit=0" if dry else "1"}
    swapped = runner.run(f"with LMS, {size}", lms, capacity, switch, images)
    done = Demonstration(
        device=device.name,
        simulated=simulated,
        needed=roomy["needed"],
        capacity=capacity,
        stock=tight["outcome"],
        stock_message=_gist(tight["message"]),
        lms=swapped["outcome"],
        losses_equal=None
        if dry
        else swapped["losses"] is not None and swapped["losses"] == reference["losses"],
        reference=reference["label"],
        paged_out=swapped["out_bytes"] - roomy["out_bytes"],
        paged_in=swapped["in_bytes"] - roomy["in_bytes"],
        picture=folder / "memory.png",
        result=result,
        profile=device.profile,
        modelled_seconds=swapped.get("seconds"),
        modelled_seconds_without_limit=roomy.get("seconds"),
    )
    _check(done, swapped)
    _pictures(done, target, [roomy, tight, swapped], folder)
    value = {"key": key, **vars(done), "picture": str(done.picture), "result": str(result)}
    write_atomic(result, json.dumps(value, indent=2).encode())
    return done


def _gist(message: str) -> str:
    """The line of an out-of-memory error that says so."""
    lines = message.splitlines() or [""]
    return next((line for line in lines if "OOM" in line), lines[0])


def _previous(result: Path, key: str) -> Demonstration | None:
    value = strictjson.record(result)
    if value.pop("key", None) != key or not Path(value["picture"]).is_file():
        return None
    value.update(picture=Path(value["picture"]), result=Path(value["result"]), reused=True)
    return Demonstration(**value)


class _Runner:
    def __init__(
        self, target: Target, script: Path, device: Device, folder: Path, console: Console
    ) -> None:
        self._script = script
        self._device = device
        self._folder = folder
        self._console = console
        self._target = target
        self._variables = devices.variables(target, device, console)
        self._number = 0

    def run(
        self,
        label: str,
        environment: Environment,
        memory: int,
        variables: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Run the script in a process of its own; `memory` bytes of device memory, 0 for ample."""
        self._number += 1
        stem = self._folder / f"run{self._number}"
        losses, result = stem.with_suffix(".losses.json"), stem.with_suffix(".result.json")
        for stale in (losses, result):
            stale.unlink(missing_ok=True)
        ample = _ROOMY[self._device.kind]
        given = {**self._variables, **(variables or {})}
        if self._device.kind == "cpu":
            given["LD_PRELOAD"] = given["LMS_POOL_METER"]
            given["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
            given["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str((memory or ample) // MIB)
        order = {
            "framework": self._target.framework_name,
            "script": str(self._script),
            "arguments": ["--output", str(losses), *arguments],
            "device": self._device.kind,
            "memory": memory or ample,
            "result": str(result),
        }
        with self._console.task(f"training: {label}"):
            done = log.run(
                [str(environment.python), str(PROGRAM), json.dumps(order)],
                env=environment.run_environment(given),
            )
        if not result.is_file():
            last = ((done.stderr or done.stdout).splitlines() or ["nothing was said"])[-1]
            raise DemoError(
                f"the run {label!r} gave no result because its process ended early ({last}); see "
                "the full log"
            )
        value: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        value["label"] = label
        value["losses"] = json.loads(losses.read_text()) if losses.is_file() else None
        if value["outcome"] == "failed":
            raise DemoError(
                f"the run {label!r} failed because of {value['message']}; see the full log"
            )
        return value

    def true_size(self, stock: Environment) -> tuple[str, ...]:
        """Arguments that make the images so large that the network needs OVERSUBSCRIPTION times
        the memory of the profile's GPU."""
        small = self.run("small images", stock, 0, arguments=("--size", str(_SIDE)))
        pixels = _SIDE**2 * OVERSUBSCRIPTION * small["whole"] / small["needed"]
        return "--size", str(-(-math.isqrt(round(pixels)) // _SIDES) * _SIDES)

    def reference(self, stock: Environment, roomy: dict[str, Any]) -> dict[str, Any]:
        """What the losses are compared with: the CPU where the device computes as the CPU does."""
        if self._device.kind == "sim":
            return self.run("the CPU run", stock, 0, arguments=("--device", "cpu"))
        return {**roomy, "label": "the run without a limit"}


def _check(done: Demonstration, swapped: dict[str, Any]) -> None:
    if done.stock != "out of memory":
        raise DemoError(
            f"nothing was shown because the official wheel {done.stock} in {done.capacity} bytes; "
            "make the network larger"
        )
    if done.lms != "finished":
        raise DemoError(
            f"LMS did not train the network because it ended with {done.lms}: "
            f"{swapped['message']}; see the full log"
        )
    if done.losses_equal is False:
        raise DemoError(
            f"LMS trained wrongly because its losses or parameters differ from those of "
            f"{done.reference}; see the full log"
        )
    if done.paged_out < done.needed - done.capacity:
        raise DemoError(
            f"LMS cannot have trained this because only {done.paged_out} bytes left the device, "
            f"fewer than the {done.needed - done.capacity} that do not fit; check the counters"
        )


def _trace(run: dict[str, Any]) -> Trace:
    return Trace(run["label"], run["unit"], run["samples"], run["outcome"] != "finished")


def _pictures(
    done: Demonstration, target: Target, runs: list[dict[str, Any]], folder: Path
) -> None:
    traces = [_trace(run) for run in runs]
    title = f"{target.label}: U-Net training on the {done.device}"
    draw(done.picture, traces, done.capacity, title)
    top = max(run["peak"] for run in runs)
    plots = [terminal(trace, top, done.capacity) for trace in traces]
    (folder / "memory.txt").write_text("\n\n".join(plots) + "\n", encoding="utf-8")


def table(done: Demonstration) -> list[tuple[str, str]]:
    """The closing table, as rows of what and how much."""

    def size(count: int) -> str:
        return f"{count / MIB:,.0f} MiB"

    if done.profile:
        free, lms = done.modelled_seconds_without_limit, done.modelled_seconds
        last = [
            ("time", f"{lms:.2f} s, without a limit {free:.2f} s (modelled)"),
            ("losses", "not computed: the device is dry"),
        ]
    else:
        equal = "yes" if done.losses_equal else "no"
        last = [("losses equal", f"{equal}, bit for bit, to {done.reference}")]
    return [
        ("device", done.device),
        ("peak needed", f"{size(done.needed)} ({done.needed / done.capacity:.2f} x the device)"),
        ("device memory", size(done.capacity)),
        ("official wheel", done.stock),
        ("with LMS", done.lms),
        ("paged out", f"{size(done.paged_out)} (counted outside the engine)"),
        ("paged in", f"{size(done.paged_in)} (counted outside the engine)"),
        *last,
    ]
