# SPDX-License-Identifier: Apache-2.0
"""The switch, the settings, and what is said of single tensors."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Dict, Iterator, List, Optional, Union

import torch

from . import launches, library, pointers, sizes, statistics

Size = Union[int, str]

DEFAULT_MIN_SIZE = 1 << 20
_SETTERS = {
    "device_limit": "set_device_limit",
    "soft_limit": "set_soft_limit",
    "host_limit": "set_host_limit",
    "min_size": "set_min_size",
}

# What was asked for. Until CUDA is initialised, and the library loaded, that is all there is.
_settings: Dict[str, int] = {
    "device_limit": 0,
    "soft_limit": 0,
    "host_limit": 0,
    "min_size": DEFAULT_MIN_SIZE,
}
_wanted = False
_loading = threading.Lock()


def load() -> Any:
    """The operators of the library, which is loaded and given the settings first."""
    torch.cuda._lazy_init()  # without the lock: it may come back here, by settle
    with _loading:
        if not library.loaded():
            statistics.before_loading()
            library.load()
            library.ops().count_allocations()
            for name, value in _settings.items():
                getattr(library.ops(), _SETTERS[name])(value)
            pointers.install()
            launches.install()
            set_debug(os.environ.get("LMS_DEBUG", ""))
    return library.ops()


def set_debug(modes: str) -> None:
    for mode in filter(None, modes.split(",")):
        if mode != "chaos":
            raise ValueError(f"LMS_DEBUG knows the mode 'chaos', got {mode!r}")
        library.ops().set_chaos(True)


def store(wanted: Optional[bool] = None, **given: Size) -> None:
    """Sets sizes by name, all or none, and whether it is to be on."""
    global _wanted
    parsed = {name: sizes.parse(name, size) for name, size in given.items()}
    _settings.update(parsed)
    if library.loaded():
        for name, value in parsed.items():
            getattr(library.ops(), _SETTERS[name])(value)
    if wanted is not None:
        _wanted = wanted


def settle() -> None:
    """Makes it be what is wanted. CUDA is initialised, or about to be."""
    global _wanted
    if not _wanted:
        if library.loaded():
            library.ops().set_enabled(False)
        return
    try:
        load().set_enabled(True)
    except BaseException:
        _wanted = False
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
        host_limit: most bytes of pinned host memory; 0 for no limit.
        min_size: tensors smaller than this many bytes move only if nothing else makes room (1 MiB
            unless set).

    Sizes are integers or strings such as ``"8GiB"``. What is ``None`` keeps its value.
    """
    given = {"device_limit": device_limit, "host_limit": host_limit, "min_size": min_size}
    store(wanted=True, **{name: size for name, size in given.items() if size is not None})
    if torch.cuda.is_initialized():
        settle()
    else:
        torch.cuda._lazy_call(settle)


def disable() -> None:
    r"""Turn Large Model Support off. Tensors in host memory come back now as far as they fit, and
    the others when they are used."""
    store(wanted=False)
    settle()


def limits() -> Dict[str, int]:
    """The limits and the minimum size, in bytes."""
    return dict(_settings)


def is_enabled() -> bool:
    r"""Whether Large Model Support is on, or will be as soon as CUDA is initialised."""
    return _wanted


def settings() -> Dict[str, Any]:
    r"""The settings: ``enabled``, ``device_limit``, ``soft_limit``, ``host_limit``, ``min_size``
    (bytes, 0 for no limit) and ``chaos``."""
    return {
        "enabled": is_enabled(),
        **_settings,
        "chaos": library.loaded() and library.ops().chaos(),
    }


# ---- tensors


def _tensors(target: Union[torch.Tensor, torch.nn.Module]) -> List[torch.Tensor]:
    if isinstance(target, torch.nn.Module):
        return [*target.parameters(), *target.buffers()]
    if isinstance(target, torch.Tensor):
        return [target]
    raise TypeError(f"expected a tensor or a module, got {type(target).__name__}")


def _on_devices(target: Union[torch.Tensor, torch.nn.Module]) -> List[torch.Tensor]:
    return [tensor for tensor in _tensors(target) if tensor.is_cuda]


def exclude(target: Union[torch.Tensor, torch.nn.Module]) -> None:
    r"""Keep a tensor, or the parameters and buffers of a module, on the device."""
    for tensor in _on_devices(target):
        load().exclude(tensor, True)


def include(target: Union[torch.Tensor, torch.nn.Module]) -> None:
    r"""Undo :func:`exclude`."""
    for tensor in _on_devices(target):
        load().exclude(tensor, False)


@contextlib.contextmanager
def pin(*targets: Union[torch.Tensor, torch.nn.Module]) -> Iterator[None]:
    r"""Context manager: the tensors are on the device, and their pointers valid, inside it."""
    pinned: List[torch.Tensor] = []
    try:
        for target in targets:
            for tensor in _on_devices(target):
                load().pin(tensor)
                pinned.append(tensor.detach())  # the storage, whatever becomes of the tensor
        yield
    finally:
        for tensor in pinned:
            library.ops().unpin(tensor)


def release_pointer(tensor: torch.Tensor) -> None:
    r"""Let a tensor move again whose raw pointer was handed out (``data_ptr()``, DLPack,
    ``__cuda_array_interface__``, IPC) and is not used any more."""
    if tensor.is_cuda:
        load().unexpose(tensor)


def reclaim(device: Optional[Union[torch.device, int]] = None) -> int:
    r"""Move every tensor that no operator is using to host memory. Returns the bytes moved."""
    return library.ops().reclaim_inactive(statistics.index_of(device)) if library.loaded() else 0
