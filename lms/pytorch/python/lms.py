# SPDX-License-Identifier: Apache-2.0
r"""Large Model Support: train models that are larger than the memory of the GPU.

When the device is full, tensors that no operator is using move to pinned host memory, and come back
before they are used again. Nothing in the model changes::

    import torch
    torch.cuda.lms.enable()

or, with no edit at all, ``PYTORCH_LMS=1 python train.py``. ``PYTORCH_LMS`` also takes the arguments
of :func:`enable`: ``PYTORCH_LMS=device_limit=8GiB,host_limit=64GiB``.

``LMS_DEBUG=chaos`` moves every tensor out after every operator and makes any access that no
operator made raise: a program, or an extension, that runs under it is safe under Large Model
Support.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import os
import re
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

import torch

__all__ = [
    "enable",
    "disable",
    "is_enabled",
    "settings",
    "exclude",
    "include",
    "pin",
    "release_pointer",
    "reclaim",
    "stats",
    "summary",
    "reset_peak_stats",
    "reset_accumulated_stats",
]

Size = Union[int, str]

_DEFAULT_MIN_SIZE = 1 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SETTERS = {
    "device_limit": "set_device_limit",
    "soft_limit": "set_soft_limit",
    "host_limit": "set_host_limit",
    "min_size": "set_min_size",
}

# What was set, whether or not the library is loaded yet.
_settings: Dict[str, int] = {
    "device_limit": 0,
    "soft_limit": 0,
    "host_limit": 0,
    "min_size": _DEFAULT_MIN_SIZE,
}
_loaded = False


def _parse_size(name: str, size: Size) -> int:
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(
            f"{name} must be a number of bytes or a string such as '8GiB', got {size!r}"
        )
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", size, re.IGNORECASE)
        if match is None:
            raise ValueError(
                f"{name} must be bytes or a size such as '512MiB' or '8G', got {size!r}"
            )
        size = int(float(match.group(1)) * _UNITS[match.group(2).lower()])
    if size < 0:
        raise ValueError(f"{name} cannot be negative, got {size}")
    return size


def _ops() -> Any:
    return torch.ops.lms


def _library() -> str:
    return os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_lms.so")


def _load() -> Any:
    """Loads the library with the operator boundary; nothing of it runs before the first enable."""
    global _loaded
    if not _loaded:
        torch.cuda._lazy_init()
        library = _library()
        if not os.path.exists(library):
            raise RuntimeError(
                f"Large Model Support is not part of this build of PyTorch: {library} is missing"
            )
        torch.ops.load_library(library)
        _loaded = True
        for name, value in _settings.items():
            getattr(_ops(), _SETTERS[name])(value)
        _hand_out_safely()
        _hand_to_launches_safely()
        _set_debug(os.environ.get("LMS_DEBUG", ""))
    return _ops()


def _set_debug(modes: str) -> None:
    for mode in filter(None, modes.split(",")):
        if mode != "chaos":
            raise ValueError(f"LMS_DEBUG knows the mode 'chaos', got {mode!r}")
        _ops().set_chaos(True)


def _set(name: str, size: Size) -> None:
    _settings[name] = _parse_size(name, size)
    if _loaded:
        getattr(_ops(), _SETTERS[name])(_settings[name])


def enable(
    device_limit: Optional[Size] = None,
    host_limit: Optional[Size] = None,
    min_size: Optional[Size] = None,
) -> None:
    r"""Turn Large Model Support on, or change its settings while it is on.

    Args:
        device_limit: most bytes the allocator may reserve on each device; 0 for no limit but the
            device's own. Reaching it moves tensors out; what cannot fit in it raises
            :class:`torch.OutOfMemoryError`.
        host_limit: most bytes of pinned host memory; 0 for no limit.
        min_size: tensors smaller than this many bytes move only if nothing else makes room (1 MiB
            unless set).

    Sizes are integers or strings such as ``"8GiB"``. What is ``None`` keeps its value.
    """
    for name, size in (
        ("device_limit", device_limit),
        ("host_limit", host_limit),
        ("min_size", min_size),
    ):
        if size is not None:
            _set(name, size)
    _load().set_enabled(True)


def disable() -> None:
    r"""Turn Large Model Support off. Tensors in host memory come back now as far as they fit, and
    the others when they are used."""
    if _loaded:
        _ops().set_enabled(False)


def is_enabled() -> bool:
    r"""Whether Large Model Support is on."""
    return _loaded and _ops().enabled()


def settings() -> Dict[str, Any]:
    r"""The settings in force: ``enabled``, ``device_limit``, ``soft_limit``, ``host_limit``,
    ``min_size`` (bytes, 0 for no limit) and ``chaos``."""
    return {
        "enabled": is_enabled(),
        **_settings,
        "chaos": _loaded and _ops().chaos(),
    }


def _tensors(target: Union[torch.Tensor, torch.nn.Module]) -> List[torch.Tensor]:
    if isinstance(target, torch.nn.Module):
        return [*target.parameters(), *target.buffers()]
    if isinstance(target, torch.Tensor):
        return [target]
    raise TypeError(f"expected a tensor or a module, got {type(target).__name__}")


def exclude(target: Union[torch.Tensor, torch.nn.Module]) -> None:
    r"""Keep a tensor, or the parameters and buffers of a module, on the device."""
    ops = _load()
    for tensor in _tensors(target):
        ops.exclude(tensor, True)


def include(target: Union[torch.Tensor, torch.nn.Module]) -> None:
    r"""Undo :func:`exclude`."""
    ops = _load()
    for tensor in _tensors(target):
        ops.exclude(tensor, False)


@contextlib.contextmanager
def pin(*targets: Union[torch.Tensor, torch.nn.Module]) -> Iterator[None]:
    r"""Context manager: the tensors are on the device, and their pointers valid, inside it."""
    ops = _load()
    pinned: List[torch.Tensor] = []
    try:
        for target in targets:
            for tensor in _tensors(target):
                ops.pin(tensor)
                pinned.append(tensor.detach())  # the storage, whatever becomes of the tensor
        yield
    finally:
        for tensor in pinned:
            ops.unpin(tensor)


def release_pointer(tensor: torch.Tensor) -> None:
    r"""Let a tensor move again whose raw pointer was handed out (``data_ptr()``, DLPack,
    ``__cuda_array_interface__``, IPC) and is not used any more."""
    _load().unexpose(tensor)


def reclaim(device: Optional[Union[torch.device, int]] = None) -> int:
    r"""Move every tensor that no operator is using to host memory. Returns the bytes moved."""
    return _ops().reclaim_inactive(_index(device)) if _loaded else 0


def _index(device: Optional[Union[torch.device, int]]) -> int:
    return torch.cuda._utils._get_device_index(device, optional=True)


_COUNTERS = ("current", "peak", "allocated", "freed")
_POOLS = ("all", "large_pool", "small_pool")
_ROUTES = (
    "freelist",
    "cudamalloc",
    "reclaim_one",
    "reclaim_fragments",
    "reclaim_all",
    "cudamalloc_retry",
)


def _no_stats() -> Dict[str, int]:
    names = [
        f"{kind}.{pool}.{counter}"
        for kind in ("pinned", "pinned_bytes")
        for pool in _POOLS
        for counter in _COUNTERS
    ]
    names += ["reclaimed", "reclaimed_bytes"]
    names += [f"alloc_distribution.{route}" for route in _ROUTES]
    return dict.fromkeys(names, 0)


def stats(device: Optional[Union[torch.device, int]] = None) -> Dict[str, int]:
    r"""Statistics of Large Model Support for one device, as they also appear in
    :func:`torch.cuda.memory_stats`:

    - ``pinned``, ``pinned_bytes`` (by pool; current, peak, allocated, freed): storages in use by
      operators, and their bytes
    - ``reclaimed``, ``reclaimed_bytes``: storages moved out so far, and their bytes
    - ``alloc_distribution``: how allocations were satisfied
    - ``lms``: what is on, the limits, copies both ways (``paged_out_bytes``, ``paged_in_bytes``),
      moves that needed no copy (``clean_*``, ``overwrite*``), what is where now, and host memory
    """
    return dict(_ops().stats(_index(device))) if _loaded else _no_stats()


def reset_peak_stats(device: Optional[Union[torch.device, int]] = None) -> None:
    r"""Reset the peaks of :func:`stats` to the current values."""
    if _loaded:
        _ops().reset_peak_stats(_index(device))


def reset_accumulated_stats(device: Optional[Union[torch.device, int]] = None) -> None:
    r"""Reset the counters of :func:`stats` that only grow."""
    if _loaded:
        _ops().reset_accumulated_stats(_index(device))


def _nested(flat: Dict[str, int]) -> Dict[str, Any]:
    nested: Dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def _size(value: int) -> str:
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{int(amount)} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


def summary(device: Optional[Union[torch.device, int]] = None) -> str:
    r"""A few lines that say whether Large Model Support is on and what it did."""
    if not _loaded:
        return "Large Model Support: off (never enabled)"
    s = stats(device)

    def limit(name: str) -> str:
        return _size(s[name]) if s[name] else "none"

    return "\n".join(
        [
            f"Large Model Support: {'on' if s['lms.enabled'] else 'off'}"
            + (" (chaos mode)" if _ops().chaos() else ""),
            f"  limits: device {limit('lms.device_limit')}, host {limit('lms.host.limit')},"
            f" minimum size {_size(s['lms.min_size'])}",
            f"  copied: {_size(s['lms.paged_out_bytes'])} out in {s['lms.paged_out']},"
            f" {_size(s['lms.paged_in_bytes'])} in in {s['lms.paged_in']}",
            f"  moved without a copy: {_size(s['lms.clean_bytes'])} out,"
            f" {_size(s['lms.overwrite_bytes'])} in",
            f"  now: {_size(s['lms.on_host_bytes'])} on the host,"
            f" {_size(s['lms.idle_bytes'])} idle on the device,"
            f" {_size(s['lms.exposed_bytes'])} held by raw pointers,"
            f" {_size(s['lms.excluded_bytes'])} excluded",
            f"  pinned host memory: {_size(s['lms.host.used_bytes'])} used of"
            f" {_size(s['lms.host.reserved_bytes'])} reserved"
            f" (peak {_size(s['lms.host.reserved_bytes_peak'])})",
        ]
    )


# ---- raw pointers

# A raw pointer does not follow its storage: whoever gets one finds the storage on the device, and
# it stays there for its life, or until release_pointer.


# Code of PyTorch that asks for a pointer and never follows it: functions, or whole modules. True is
# for what compares pointers: a storage may move between two looks, and another take its place, so
# it gets what names the memory for good.
_NEVER_FOLLOWED = {
    ("torch._tensor", "__deepcopy__"): False,
    ("torch._tensor", "_reduce_ex_internal"): False,
    ("torch._inductor.utils", "copy_misaligned_inputs"): False,
    ("torch._inductor.utils", "remove_unaligned_input_idxs"): False,
    ("torch.distributed.fsdp._flat_param", "_same_storage"): True,
    ("torch.distributed.fsdp._fully_shard._fsdp_param", "reset_sharded_param"): True,
    ("torch.distributed.fsdp._runtime_utils", None): True,
    ("torch.distributed.utils", "_data_ptr_allocated"): False,
    ("torch.nn.modules.rnn", "flatten_parameters"): True,
    ("torch.serialization", None): True,
}


def _compares() -> Optional[bool]:
    """Whether who asks for a pointer compares it; None when it may follow it."""
    caller: Any = sys._getframe(2)  # of data_ptr
    while caller.f_globals.get("__name__") == "torch.storage" and caller.f_back is not None:
        caller = caller.f_back  # TypedStorage asks its UntypedStorage
    module = caller.f_globals.get("__name__")
    found = _NEVER_FOLLOWED.get((module, caller.f_code.co_name))
    return _NEVER_FOLLOWED.get((module, None)) if found is None else found


def _identity_of_tensor(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    start: int = _ops().identity(tensor.untyped_storage())
    return start + tensor.storage_offset() * tensor.element_size()


def _identity_of_storage(storage: torch.UntypedStorage) -> int:
    identity: int = _ops().identity(storage)
    return identity


def _expose_tensor(tensor: torch.Tensor) -> None:
    launch = _launches.current
    if launch is None:
        _ops().expose(tensor)
    else:
        launch.hold([tensor])


def _expose_storage(storage: torch.UntypedStorage) -> None:
    _ops().expose(_view_of(storage))


def _pointer(
    function: Callable[[Any], int], identity: Callable[[Any], int], expose: Callable[[Any], None]
) -> Callable[[Any], int]:
    @functools.wraps(function)
    def data_ptr(of: Any) -> int:
        if of.device.type != "cuda" or not is_enabled():
            return function(of)
        compares = _compares()
        if compares:
            return identity(of)
        if compares is None or _ops().chaos():  # in chaos mode what is out has no pointer
            expose(of)
        return function(of)

    return data_ptr


def _view_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _before(function: Callable[..., Any], action: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(first: Any, *args: Any, **kwargs: Any) -> Any:
        action(first)
        return function(first, *args, **kwargs)

    return wrapper


def _exposing(function: Callable[..., Any]) -> Callable[..., Any]:
    """For functions that hand out the pointer of a tensor and are imported by name before the first
    enable (torch/utils/dlpack.py)."""

    def expose(value: Any) -> None:
        if _loaded and isinstance(value, torch.Tensor) and value.is_cuda and is_enabled():
            _ops().expose(value)

    return _before(function, expose)


def _pinned(function: Callable[..., Any]) -> Callable[..., Any]:
    """For methods of a storage that reach its memory without an operator."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not is_enabled():
            return function(*args, **kwargs)
        views = [
            _view_of(value)
            for value in args
            if isinstance(value, torch.UntypedStorage) and value.device.type == "cuda"
        ]
        with pin(*views):
            return function(*args, **kwargs)

    return wrapper


def _hand_out_safely() -> None:
    def share(storage: torch.UntypedStorage) -> None:
        if storage.device.type == "cuda" and is_enabled():
            _expose_storage(storage)

    tensor, storage = torch.Tensor, torch.UntypedStorage
    tensor.data_ptr = _pointer(  # type: ignore[method-assign]
        tensor.data_ptr, _identity_of_tensor, _expose_tensor
    )
    storage.data_ptr = _pointer(  # type: ignore[method-assign]
        storage.data_ptr, _identity_of_storage, _expose_storage
    )
    storage._share_cuda_ = _before(storage._share_cuda_, share)  # type: ignore[method-assign]
    for name in (
        "resize_",
        "copy_",
        "fill_",
        "_write_file",
        "_set_from_file",
        "__getitem__",
        "__setitem__",
    ):
        setattr(storage, name, _pinned(getattr(storage, name)))

    # Operators defined from now on get the boundary before they can be called.
    install_pending = _ops().install_pending

    def install(_: Any) -> None:
        install_pending()

    namespace = type(torch.ops.aten)
    namespace.__getattr__ = _before(namespace.__getattr__, install)  # type: ignore[method-assign]


# ---- launches of Triton's kernels

# They take pointers with no operator call. What they are given is pinned for the launch; after it
# the engine knows the stream, as for an operator.
_LAUNCHERS = {
    "torch._inductor.runtime.triton_heuristics": ("CachingAutotuner", "run"),
    "triton.runtime.jit": ("JITFunction", "run"),
}


class _Launch:
    """What one launch keeps on the device."""

    def __init__(self) -> None:
        self._held: Dict[int, torch.Tensor] = {}

    def hold(self, tensors: List[torch.Tensor]) -> None:
        new = {id(t): t for t in tensors if id(t) not in self._held}
        _ops().pin_all(list(new.values()))
        self._held.update(new)

    def end(self) -> None:
        _ops().unpin_all(list(self._held.values()))


class _Launches(threading.local):
    current: Optional[_Launch] = None


_launches = _Launches()


def _in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _in(value)
        elif isinstance(base := getattr(value, "base", None), torch.Tensor):  # a descriptor
            yield from _in([base])


def _launching(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not is_enabled():
            return function(*args, **kwargs)
        outer, _launches.current = _launches.current, _Launch()
        launch = _launches.current
        try:
            launch.hold(list(_in([*args[1:], *kwargs.values()])))
            return function(*args, **kwargs)
        finally:
            _launches.current = outer
            launch.end()

    return wrapper


def _pin_launches(module: Any) -> None:
    cls, name = _LAUNCHERS[module.__name__]
    launcher = getattr(module, cls, None)
    if hasattr(launcher, name):
        setattr(launcher, name, _launching(getattr(launcher, name)))


class _LauncherFinder(importlib.abc.MetaPathFinder):
    """Wraps the launchers in modules that are imported after the first enable."""

    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _LAUNCHERS or getattr(self._searching, "now", False):
            return None
        self._searching.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.now = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _pin_launches(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _hand_to_launches_safely() -> None:
    for name in _LAUNCHERS:
        if name in sys.modules:
            _pin_launches(sys.modules[name])
    sys.meta_path.insert(0, _LauncherFinder())


# ---- the names that scripts for IBM's Large Model Support use


def set_enabled_lms(enable_lms: bool) -> None:
    r"""Turn Large Model Support on or off."""
    enable() if enable_lms else disable()


def get_enabled_lms() -> bool:
    r"""Whether Large Model Support is on."""
    return is_enabled()


def set_limit_lms(limit: int) -> None:
    r"""Set the soft limit in bytes: beyond it moving tensors out is preferred to allocating more
    device memory. 0 (the default) uses all of the device first."""
    _set("soft_limit", limit)


def get_limit_lms() -> int:
    r"""The soft limit in bytes."""
    return _settings["soft_limit"]


def set_size_lms(size: int) -> None:
    r"""Set the size in bytes below which a tensor moves only if nothing else makes room."""
    _set("min_size", size)


def get_size_lms() -> int:
    r"""The size in bytes below which a tensor moves only if nothing else makes room."""
    return _settings["min_size"]


def reclaim_inactive() -> None:
    r"""Move every tensor that no operator is using to host memory, on the current device."""
    reclaim()


# ---- no edit to the program


def _enable_from_environment() -> None:
    value = os.environ.get("PYTORCH_LMS", "").strip()
    if value.lower() in ("", "0", "off", "false"):
        return
    arguments: Dict[str, Size] = {}
    if value.lower() not in ("1", "on", "true"):
        for item in value.split(","):
            name, separator, size = item.partition("=")
            if not separator or name.strip() not in ("device_limit", "host_limit", "min_size"):
                raise ValueError(
                    f"PYTORCH_LMS takes 1, 0, or device_limit=, host_limit= and min_size= separated"
                    f" by commas; got {item!r}"
                )
            arguments[name.strip()] = _parse_size(f"{name.strip()} in PYTORCH_LMS", size)
    enable(**arguments)  # type: ignore[arg-type]
    print(
        "PYTORCH_LMS: Large Model Support is on"
        + "".join(f", {name} {_size(size)}" for name, size in arguments.items()),  # type: ignore[arg-type]
        file=sys.stderr,
    )
