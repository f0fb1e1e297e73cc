# SPDX-License-Identifier: Apache-2.0
"""Brings the simulated device into this process, and into its children."""

from __future__ import annotations

import atexit
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from . import dry, statics
from .builder import Build, build, build_for_tensorflow
from .config import Settings
from .device import Device
from .dry import require_shapes
from .errors import SimcudaError
from .order import Checker, Suppression, read_suppressions
from .profiles import profile as read_profile
from .tfinfo import find_tensorflow
from .torchinfo import find_torch
from .trace import write_header

HOOK = Path(__file__).resolve().parent / "hook"

device = Device()

_build: Build | None = None
_dry = False
_unsettled: Settings | None = None  # until a fork has its own
_installed = False
_kernels: ctypes.CDLL | None = None
_settings = Settings()


def load(
    *,
    memory: str | int | None = None,
    mode: str | None = None,
    lag: int | None = None,
    devices: int | None = None,
    strict: str | None = None,
    bandwidth: str | int | None = None,
    host_memory: str | int | None = None,
    poison: bool | None = None,
    order: str | None = None,
    queries: str | None = None,
    order_trace: int | None = None,
    order_suppressions: str | Path | None = None,
    dry: bool | None = None,
    profile: str | None = None,
    assume: str | None = None,
    values: str | None = None,
    trace: str | Path | None = None,
    workspaces: str | None = None,
    contents: str | None = None,
    framework: str | None = None,
    children: bool = True,
    for_forks: bool = False,
) -> Device:
    """Put the simulated device in place of CUDA, before torch or TensorFlow is imported; build it
    if need be.

    What is not given comes from the environment (``SIMCUDA_MEMORY``, ...), else the default:
    `framework` is TensorFlow where that alone is installed. The kernels install themselves when
    torch is imported. With `children`, Python processes started from here get the same device. With
    `for_forks`, it is forks of this process that will use it, each after `settle`. A second call
    changes nothing. Returns `simcuda.device`.

    Raises SimcudaError if the framework is imported already, or if the native part cannot be built.
    """
    global _build, _dry, _settings, _unsettled
    if _build is not None:
        return device
    settings = Settings.read(
        memory=memory,
        mode=mode,
        lag=lag,
        devices=devices,
        strict=strict,
        bandwidth=bandwidth,
        host_memory=host_memory,
        poison=poison,
        order=order,
        queries=queries,
        order_trace=order_trace,
        order_suppressions=str(order_suppressions) if order_suppressions else None,
        dry=dry,
        profile=profile,
        assume=assume,
        values=values,
        trace=str(trace) if trace else None,
        workspaces=workspaces,
        contents=contents,
        framework=framework or os.environ.get("SIMCUDA_FRAMEWORK") or _framework(),
    )
    name = settings.framework
    if name in sys.modules:
        raise SimcudaError(f"{name} is imported already; call simcuda.load() before import {name}")
    torch = find_torch() if settings.dry and name == "torch" else None
    if torch:
        require_shapes(torch)
    _settings = settings
    suppressions = _suppressions(settings)
    make = build if name == "torch" else build_for_tensorflow
    made = make(progress=_announce)
    settings.export()
    if children:
        _share_with_children(made)
    libraries = [ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL) for path in made.libraries]
    device._runtime = libraries[0]
    _tell_xla(made)
    _dry = settings.dry
    if for_forks:
        _unsettled = settings
    else:
        _start(settings, suppressions)
    _build = made
    if name == "torch":
        sys.meta_path.insert(0, _After("torch", install))
    elif made.statics:
        sys.meta_path.insert(0, _After("tensorflow", _redirect_statics))
    if os.environ.get("SIMCUDA_ANNOUNCED") != "1":
        os.environ["SIMCUDA_ANNOUNCED"] = "1"  # once, not once more in every child
        times = "times are modelled" if settings.dry else "timings are not a GPU's"
        _announce(f"{settings.describe()}: {times}")
    return device


def _framework() -> str:
    if "torch" in sys.modules or importlib.util.find_spec("torch"):
        return "torch"
    return "tensorflow" if importlib.util.find_spec("tensorflow") else "torch"


def settle() -> None:
    """Take the settings from the environment once more, in a fork of a process that called
    `load(for_forks=True)`. Raises SimcudaError where nobody did, or if they are to check order in
    another way than was said there: it is part of the kernels that torch has by now."""
    global _unsettled
    if _build is None or _unsettled is None:
        raise SimcudaError("call simcuda.load(for_forks=True) before the fork")
    settings = Settings.read()
    for name in ("order", "queries", "order_trace", "dry", "framework"):
        if getattr(settings, name) != getattr(_unsettled, name):
            raise SimcudaError(f"{name} cannot change in a fork; give it to simcuda.load")
    _unsettled = None
    suppressions = _suppressions(settings)
    settings.export()
    _share_with_children(_build)
    _start(settings, suppressions)
    if _installed:
        _settle_kernels(settings)


def _suppressions(settings: Settings) -> list[Suppression]:
    path = settings.order_suppressions
    return read_suppressions(Path(path)) if path else []


def _start(settings: Settings, suppressions: list[Suppression]) -> None:
    """The first call into the runtime, which keeps the settings that it finds then."""
    if settings.dry:
        profile = read_profile(settings.profile)
        device._start_dry(profile, settings.workspaces != "off")
        if settings.framework == "tensorflow":
            device._call("take_kernels")
        if settings.contents == "all":
            device._call("keep_contents")
        if settings.trace:
            write_header(Path(settings.trace), profile, settings)
            device._start_trace(settings.trace)
    if settings.order != "off":
        device._checker = Checker(device._call, suppressions)
        atexit.register(device._checker.report_at_exit)


def install() -> int:
    """Install the kernels on the imported torch; done by itself after ``import torch``.

    Returns the number of operators that now run on the simulated device.
    """
    global _installed, _kernels
    if _build is None:
        raise SimcudaError("no simulated device is loaded; call simcuda.load() before import torch")
    if _installed:
        return 0
    torch = find_torch()
    assert torch is not None and device._runtime is not None
    if torch.cuda_major < 12:
        statics.redirect_torch(torch.lib, device._runtime)
    count = 0
    if torch.computes:
        _kernels = ctypes.CDLL(str(_build.kernels))
        count = int(_kernels.simcuda_install_kernels(int(_dry)))
    _installed = True
    _settle_kernels(_settings)
    _turn_off_what_is_not_simulated()
    if _dry:
        dry.prepare()
    return count


def _settle_kernels(settings: Settings) -> None:
    if not settings.dry:
        return
    assert _kernels is not None
    for what, value in settings.assumptions().items():
        _kernels.simcuda_assume(what.encode(), ctypes.c_double(value))
    if settings.trace:
        import torch

        torch.cuda.init()
        _kernels.simcuda_trace_allocator()
    policy = settings.values or "report"
    dry.listen(_kernels, policy, lambda text: device._call("refuse", text.encode()))


def _turn_off_what_is_not_simulated() -> None:
    import torch

    torch.backends.cudnn.enabled = False
    if not _dry:  # where it is dry, the device's capability decides
        _turn_off_attention("flash", "mem_efficient")
    _turn_off_attention("cudnn")
    # The profiler has nothing to measure on the device.
    for module in (torch.autograd, torch.autograd.profiler):
        module._supported_activities = lambda: {torch.profiler.ProfilerActivity.CPU}


def _turn_off_attention(*kinds: str) -> None:
    """Fused attention, of which a release has some kinds or none."""
    import torch

    for kind in kinds:
        enable = getattr(torch.backends.cuda, f"enable_{kind}_sdp", None)
        if enable is not None:
            enable(False)


def _share_with_children(made: Build) -> None:
    os.environ["SIMCUDA"] = "1"
    # The second is for programs of torch that are not Python, like its shared memory manager.
    for variable, folder in (("PYTHONPATH", HOOK), ("LD_LIBRARY_PATH", made.path)):
        paths = [p for p in os.environ.get(variable, "").split(os.pathsep) if p]
        if str(folder) not in paths:
            os.environ[variable] = os.pathsep.join([str(folder), *paths])


def _tell_xla(made: Build) -> None:
    """The user's flags come last, and win."""
    told = os.environ.get("XLA_FLAGS", "").split()
    new = [flag for flag in made.xla_flags if flag not in told]
    if new:
        os.environ["XLA_FLAGS"] = " ".join([*new, *told])


def _announce(text: str) -> None:
    if os.environ.get("SIMCUDA_QUIET") != "1":
        print(f"simcuda: {text}", file=sys.stderr, flush=True)


def _redirect_statics() -> None:
    """Before the first call of CUDA, which no import makes."""
    assert _build is not None and device._runtime is not None
    tensorflow = find_tensorflow()
    assert tensorflow is not None
    statics.redirect(tensorflow.kernels, _build.statics, device._runtime)


class _After(importlib.abc.MetaPathFinder):
    """Wraps the loader of a framework so that something is done right after its import, however
    often a program asks beforehand whether there is one."""

    def __init__(self, framework: str, do: Callable[[], object]) -> None:
        self._framework, self._do = framework, do
        self._asking = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._framework or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.now = False
        if spec is None or spec.loader is None:
            return spec
        original: Any = spec.loader
        run = original.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            sys.meta_path.remove(self)
            self._do()

        original.exec_module = exec_module
        return spec
