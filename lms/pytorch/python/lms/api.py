# SPDX-License-Identifier: Apache-2.0
"""The switch, the settings, and what is said of single tensors."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Dict, Iterator, List, Mapping, Optional, Union

import torch

from . import (
    collectives,
    fusion,
    graphs,
    launches,
    library,
    pointers,
    profiling,
    sizes,
    statistics,
    versions,
)

Size = Union[int, str]

DEFAULT_MIN_SIZE = 1 << 20
# Seconds that operators of other threads have to end when it is turned on while they run: one of
# them may wait for the thread that turns it on.
PATIENCE = 30.0
_SETTERS = {
    "device_limit": "set_device_limit",
    "soft_limit": "set_soft_limit",
    "host_limit": "set_host_limit",
    "min_size": "set_min_size",
}

# What was asked for. Until CUDA is initialised, and the library loaded, that is all there is. Under
# the lock, together with what the library has of it; which is not held while CUDA is initialised,
# because that may come back here, by settle, in whichever thread is at it.
_lock = threading.RLock()
_settings: Dict[str, Optional[int]] = {
    "device_limit": 0,
    "soft_limit": 0,
    "host_limit": None,  # the library's own, which is known once it is loaded
    "min_size": DEFAULT_MIN_SIZE,
}
_wanted = False


def _forked() -> None:
    """In a child: a thread that it does not have may hold the lock, and nothing is wanted of it."""
    global _lock, _wanted
    _lock, _wanted = type(_lock)(), _wanted and not library.in_child()


os.register_at_fork(after_in_child=_forked)


def load() -> Any:
    """The operators of the library, which is loaded and given the settings first."""
    if not library.loaded():
        torch.cuda._lazy_init()
        with _lock:
            if not library.loaded():
                library.load(_prepare)
    return library.ops()


def _prepare(ops: Any) -> None:
    """What can fail comes before what cannot be done twice."""
    chaos = parse_debug(os.environ.get("LMS_DEBUG", ""))
    statistics.before_loading()
    _hand_over(_settings)
    _settings["host_limit"] = ops.host_limit()
    if chaos:
        ops.set_chaos(True)
    ops.count_allocations()
    pointers.install()
    launches.install()
    profiling.install()
    fusion.install()
    collectives.install()


def _hand_over(settings: Mapping[str, Optional[int]]) -> None:
    """All or none: only the device limit can fail, and comes first."""
    for name in _SETTERS:
        if settings.get(name) is not None:
            getattr(library.ops(), _SETTERS[name])(settings[name])


def parse_debug(modes: str) -> bool:
    """Whether LMS_DEBUG asks for chaos mode. Raises ValueError."""
    wrong = [mode for mode in modes.split(",") if mode not in ("", "chaos")]
    if wrong:
        raise ValueError(f"LMS_DEBUG knows the mode 'chaos', got {wrong[0]!r}")
    return "chaos" in modes.split(",")


def _debugs(mode: str) -> bool:
    return mode in os.environ.get("LMS_DEBUG", "").split(",")


def store(wanted: Optional[bool] = None, **given: Optional[Size]) -> None:
    """Sets sizes by name (None: the library's own), all or none, and whether it is to be on."""
    global _wanted
    parsed = {
        name: None if size is None else sizes.parse(name, size) for name, size in given.items()
    }
    with _lock:
        if library.loaded():
            _hand_over(parsed)
        _settings.update(parsed)
        if wanted is not None:
            _wanted = wanted


def settle() -> None:
    """Makes it be what is wanted. CUDA is initialised, or about to be."""
    global _wanted
    try:
        if _wanted:
            graphs.check()
            load()
        with _lock:  # what is wanted may have changed: who changed it comes here, too
            if library.loaded():
                with fusion.following(_wanted):
                    library.ops().set_enabled(_wanted, PATIENCE)
    except BaseException:
        _wanted = library.enabled()
        raise


def _switch(wanted: bool, given: Dict[str, Size]) -> None:
    """All or none, also of two threads that come here at once. CUDA is initialised, or the library
    not loaded."""
    with _lock:
        before = dict(_settings)
        store(wanted, **given)
        try:
            settle()
        except BaseException:
            store(**before)
            raise


def enable(
    device_limit: Optional[Size] = None,
    host_limit: Optional[Size] = None,
    min_size: Optional[Size] = None,
) -> None:
    r"""Turn Large Model Support on, or change its settings while it is on.

    Before CUDA is initialised this only takes note: it is on as soon as CUDA is, and until then the
    process may fork.

    Args:
        device_limit: most bytes the allocator may reserve on each device; 0 for no limit but the
            device's own. Reaching it moves tensors out; what cannot fit in it raises
            :class:`torch.OutOfMemoryError`.
        host_limit: most bytes of pinned host memory; 0 for no limit. Unless it is set, 3/4 of the
            machine's memory, or of the cgroup's where that is less, divided by the processes that
            a launcher (torchrun, MPI, Slurm) began on the machine.
        min_size: tensors smaller than this many bytes move only if nothing else makes room (1 MiB
            unless set).

    Sizes are integers or strings such as ``"8GiB"``. What is ``None`` keeps its value; so does
    everything when this raises, as it does when operators that began while it was off still run in
    other threads after 30 seconds.
    """
    asked = {"device_limit": device_limit, "host_limit": host_limit, "min_size": min_size}
    given = {name: size for name, size in asked.items() if size is not None}
    if versions.initialized():
        load()  # which may wait for who initialises CUDA: not under the lock
        _switch(True, given)
    else:
        parse_debug(os.environ.get("LMS_DEBUG", ""))  # later its error has a longer way
        store(wanted=True, **given)
        torch.cuda._lazy_call(settle)


def disable() -> None:
    r"""Turn Large Model Support off. Tensors in host memory come back now as far as they fit, and
    the others when they are used."""
    _switch(False, {})


def limits() -> Dict[str, Optional[int]]:
    """The limits and the minimum size, in bytes. None: not known before the library is loaded."""
    return dict(_settings)


def is_enabled() -> bool:
    r"""Whether Large Model Support is on, or will be as soon as CUDA is initialised."""
    return _wanted


def settings() -> Dict[str, Any]:
    r"""The settings: ``enabled``, ``device_limit``, ``soft_limit``, ``host_limit``, ``min_size``
    (bytes, 0 for no limit) and ``chaos``. A ``host_limit`` that nobody has set is ``None`` until
    CUDA is initialised."""
    return {
        "enabled": is_enabled(),
        **_settings,
        "chaos": library.ops().chaos() if library.loaded() else _debugs("chaos"),
    }


# ---- tensors


def _tensors(target: Union[torch.Tensor, torch.nn.Module]) -> List[torch.Tensor]:
    if isinstance(target, torch.nn.Module):
        return [*target.parameters(), *target.buffers()]
    if isinstance(target, torch.Tensor):
        return [target]
    raise TypeError(f"expected a tensor or a module, got {type(target).__name__}")


def _on_devices(target: Union[torch.Tensor, torch.nn.Module]) -> List[torch.Tensor]:
    found = (inner for tensor in _tensors(target) for inner in _with_memory(tensor))
    return [tensor for tensor in found if tensor.is_cuda]


def _with_memory(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor, or those that a wrapper (a DTensor, say) holds its values in."""
    held = versions.parts(tensor)
    if held is None:
        yield tensor
    else:
        for part in held:
            yield from _with_memory(part)


def _require_memory(tensor: torch.Tensor) -> None:
    """Of a tensor that was brought in, and whose storage is not one that was freed."""
    has_some = tensor.layout == torch.strided and tensor.numel() and versions.bytes_of(tensor)
    if has_some and not pointers.has_memory(tensor):
        raise TypeError(
            f"the memory of a {type(tensor).__name__} cannot be reached because it holds its "
            "values in other tensors and has no __tensor_flatten__ that names them; name these "
            "tensors"
        )


def exclude(target: Union[torch.Tensor, torch.nn.Module]) -> None:
    r"""Keep a tensor, or the parameters and buffers of a module, on the device: all or none."""
    changed: List[torch.Tensor] = []
    try:
        for tensor in _on_devices(target):
            if not load().excluded(tensor):
                changed.append(tensor)
                library.ops().exclude(tensor)
            _require_memory(tensor)
    except BaseException:
        for tensor in changed:
            library.ops().include(tensor)
        raise


def include(target: Union[torch.Tensor, torch.nn.Module]) -> None:
    r"""Undo :func:`exclude`."""
    for tensor in _on_devices(target):
        load().include(tensor)


@contextlib.contextmanager
def pin(*targets: Union[torch.Tensor, torch.nn.Module]) -> Iterator[None]:
    r"""Context manager: the tensors are on the device, and their pointers valid, inside it. What is
    launched there on other streams, past operators, must come before the current one by its end.
    """
    tensors = [tensor for target in targets for tensor in _on_devices(target)]
    if not tensors:  # nor is the library needed
        yield
        return
    load()
    pins = library.Hold()
    try:
        pins.take_for_any_stream(tensors)
        for tensor in tensors:
            _require_memory(tensor)
        yield
    finally:
        pins.release()


def release_pointer(tensor: torch.Tensor) -> None:
    r"""Let a tensor move again whose raw pointer was taken (``data_ptr()``, DLPack,
    ``__cuda_array_interface__``, IPC) and is not used any more. What used it on other streams must
    come before the current one by now."""
    for inner in _on_devices(tensor):
        load().unexpose(inner)


def reclaim(device: Optional[Union[torch.device, int]] = None) -> int:
    r"""Move every tensor that no operator is using to host memory. Returns the bytes moved."""
    return library.ops().reclaim_inactive(statistics.index_of(device)) if library.loaded() else 0


def measure_waits(on: bool = True) -> None:
    r"""Measure from now on how long streams wait for moves; :func:`stats` tells it, as
    ``lms.waited.*``. It records two timed events more for each wait."""
    if versions.initialized():
        load().measure_waits(on)
    else:
        torch.cuda._lazy_call(lambda: load().measure_waits(on))
