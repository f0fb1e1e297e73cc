# SPDX-License-Identifier: Apache-2.0
"""Raw pointers. One does not follow its storage: whoever gets one finds the storage on the device,
and it stays there for its life, or until release_pointer. Also who gets it while Large Model
Support is off: it may be on again before the pointer is followed for the last time."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from . import comparisons, launches, library, versions

# What is done with a pointer that is never followed. A storage may move between two looks, and
# another take its place, so what compares pointers gets what names the memory for good.
_LOOKED_AT, _COMPARED = "looked at", "compared"

# The functions that never follow the pointers they ask for, by module; None is all of the module.
# Where a pointer is kept, as in a set or by a key, no rule does without a list: it is a number, and
# C that is given it may keep it past the frame that asked (ctypes, a launcher, another library's
# array), of which Python sees nothing. So whoever is not here is taken to follow it.
_NEVER_FOLLOWED: Dict[Tuple[str, Optional[str]], str] = {
    ("torch._tensor", "__deepcopy__"): _LOOKED_AT,
    ("torch._tensor", "_reduce_ex_internal"): _LOOKED_AT,
    ("torch._dynamo.utils", "clone_input"): _LOOKED_AT,
    ("torch._inductor.utils", "copy_misaligned_inputs"): _LOOKED_AT,
    ("torch._inductor.utils", "remove_unaligned_input_idxs"): _LOOKED_AT,
    ("torch.autograd.graph", "_get_sid"): _COMPARED,
    ("torch.autograd.graph", "_get_tid"): _COMPARED,
    ("torch.distributed.fsdp._flat_param", "_same_storage"): _COMPARED,
    ("torch.distributed.fsdp._fully_shard._fsdp_param", "reset_sharded_param"): _COMPARED,
    ("torch.distributed.fsdp._runtime_utils", None): _COMPARED,
    ("torch.distributed.utils", "_data_ptr_allocated"): _LOOKED_AT,
    ("torch.nn.modules.rnn", "flatten_parameters"): _COMPARED,
    ("torch.serialization", None): _COMPARED,
    # What counts bytes counts no memory twice.
    ("pytorch_memlab.mem_reporter", None): _COMPARED,
    ("torch_geometric.profile.utils", None): _COMPARED,
    ("transformers.trainer", None): _COMPARED,
    # What places models on devices looks for weights that are on one already.
    ("accelerate.accelerator", None): _COMPARED,
    ("accelerate.big_modeling", "dispatch_model"): _COMPARED,
    ("accelerate.hooks", None): _COMPARED,
    ("accelerate.utils.modeling", "set_module_tensor_to_device"): _COMPARED,
    # What saves models looks for weights that share memory.
    ("accelerate.utils.modeling", "id_tensor_storage"): _COMPARED,
    ("huggingface_hub.serialization._torch", "_end_ptr"): _COMPARED,
    ("huggingface_hub.serialization._torch", "_filter_shared_not_shared"): _COMPARED,
    ("huggingface_hub.serialization._torch", "_get_unique_id"): _COMPARED,
    ("huggingface_hub.serialization._torch", "_is_complete"): _COMPARED,
    ("huggingface_hub.serialization._torch", "storage_ptr"): _COMPARED,
    ("safetensors.torch", "_end_ptr"): _COMPARED,
    ("safetensors.torch", "_filter_shared_not_shared"): _COMPARED,
    ("safetensors.torch", "_is_complete"): _COMPARED,
    ("safetensors.torch", "storage_ptr"): _COMPARED,
    ("transformers.modeling_utils", "_end_ptr"): _COMPARED,
    ("transformers.modeling_utils", "_find_disjoint"): _COMPARED,
    ("transformers.modeling_utils", "_find_identical"): _COMPARED,
    ("transformers.pytorch_utils", "id_tensor_storage"): _COMPARED,
}


# A table of functions in C, by which DLPack is exchanged past Python. Who finds none exchanges by
# __dlpack__.
_EXCHANGE = "__dlpack_c_exchange_api__"

# By which torch.cuda.caching_allocator_alloc takes memory.
_TAKE = "_cuda_cudaCachingAllocator_raw_alloc"


def _caller() -> Any:
    """The frame of whoever calls data_ptr."""
    caller: Any = sys._getframe(2)
    while caller.f_globals.get("__name__") == "torch.storage" and caller.f_back is not None:
        caller = caller.f_back  # TypedStorage asks its UntypedStorage
    return caller


def _listed(caller: Any) -> Optional[str]:
    """What it does with the pointer; None when it may follow it."""
    module = caller.f_globals.get("__name__")
    found = _NEVER_FOLLOWED.get((module, caller.f_code.co_name))
    return found or _NEVER_FOLLOWED.get((module, None))


_device_of_tensor: Any = torch.Tensor.device  # also where a class has a `device` of its own


@versions.unseen
def _on_device(of: Any) -> bool:
    device = _device_of_tensor.__get__(of) if isinstance(of, torch.Tensor) else of.device
    return bool(device.type == "cuda")


@versions.unseen
def _identity_of_tensor(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return _identity_of_storage(versions.storage_of(tensor)) + _offset(tensor)


def _identity_of_storage(storage: torch.UntypedStorage) -> int:
    return int(library.ops().identity(versions.argument(storage)))


@versions.unseen
def _place_of_tensor(tensor: torch.Tensor) -> int:
    start = _place_of_storage(versions.storage_of(tensor))
    return start and start + _offset(tensor)


def _place_of_storage(storage: torch.UntypedStorage) -> int:
    return int(library.ops().place(versions.argument(storage)))


def _offset(tensor: torch.Tensor) -> int:
    return tensor.storage_offset() * tensor.element_size()


def _expose_tensor(tensor: torch.Tensor) -> None:
    launch = launches.current()
    if launch is None:
        library.ops().expose(tensor)
    else:
        launch.hold([tensor])


def _expose_storage(storage: torch.UntypedStorage) -> None:
    library.ops().expose(versions.view_of(storage))


def _pointer(
    function: Callable[[Any], int],
    identity: Callable[[Any], int],
    expose: Callable[[Any], None],
    place: Callable[[Any], int],
) -> Callable[[Any], int]:
    in_chaos = _pinned(function)

    def follow(of: Any) -> int:
        expose(of)
        return function(of)

    @functools.wraps(function)
    def data_ptr(of: Any) -> int:
        if not library.loaded() or not _on_device(of):
            return function(of)
        caller = _caller()
        use = _listed(caller)
        if use == _COMPARED:  # also while it is off: what is compared with may be of a time before
            return identity(of)
        if use is None:
            # Whoever is asked before it is compared may keep it.
            if not versions.intercepted(of) and comparisons.compares(caller.f_code, caller.f_lasti):
                compared = comparisons.Compared(
                    identity(of), functools.partial(place, of), functools.partial(follow, of)
                )
                return compared or function(of)  # of no memory
            return follow(of)
        if library.active() and library.ops().chaos():
            return in_chaos(of)  # where what is out has no pointer
        return function(of)

    return data_ptr


_raw_pointer = torch.Tensor.data_ptr


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor that is on the device has memory of its own there."""
    try:
        return _raw_pointer(tensor) != 0
    except RuntimeError:
        return False


def _before(function: Callable[..., Any], action: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(first: Any, *args: Any, **kwargs: Any) -> Any:
        action(first)
        return function(first, *args, **kwargs)

    return wrapper


def _after(function: Callable[..., Any], action: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        action(result)
        return result

    return wrapper


# Storages whose pointer was given away before there was a library to tell: their classes, and weak
# references.
_given_away: List[Any] = []


@versions.unseen
def _note(tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        return
    from torch.multiprocessing.reductions import StorageWeakRef

    _given_away[:] = [kept for kept in _given_away if not kept[1].expired()]
    storage = versions.storage_of(tensor)
    _given_away.append((type(storage), StorageWeakRef(storage)))


def _expose_noted() -> None:
    for kind, given in _given_away:
        storage = kind._new_with_weak_ptr(given.cdata)
        if storage is not None:
            _expose_storage(storage)
    _given_away.clear()


def exposing(function: Callable[..., Any]) -> Callable[..., Any]:
    """For functions that expose the pointer of a tensor and are imported by name before the first
    enable (torch/utils/dlpack.py)."""

    def expose(value: Any) -> None:
        if isinstance(value, torch.Tensor) and _on_device(value):
            if library.loaded():
                library.ops().expose(value)
            else:
                _note(value)

    return _before(function, expose)


def _pinned(function: Callable[..., Any]) -> Callable[..., Any]:
    """For methods that reach the memory of a storage, or a tensor, without an operator. Also while
    it is off: it may be on before they end."""
    kinds = tuple(versions.storages())

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not library.loaded():
            return function(*args, **kwargs)
        views = [
            value if isinstance(value, torch.Tensor) else versions.view_of(value)
            for value in args
            if isinstance(value, (torch.Tensor, *kinds)) and _on_device(value)
        ]
        if not views:
            return function(*args, **kwargs)
        pins = library.Hold()
        try:
            pins.take(views)
            return function(*args, **kwargs)
        finally:
            pins.release()

    return wrapper


def _resizing(function: Callable[..., Any]) -> Callable[..., Any]:
    """For `storage.resize_`: to free what is out takes no room."""
    pinned = _pinned(function)

    def drop_if_out(storage: Any) -> bool:
        on_device = library.active() and _on_device(storage)
        return on_device and bool(library.ops().drop_if_out(versions.argument(storage)))

    @functools.wraps(function)
    def wrapper(storage: Any, size: Any) -> Any:
        if size == 0:
            drop_if_out(storage)
        while True:
            try:
                return pinned(storage, size)
            except RuntimeError:
                # Another thread may have moved it out since, and then it had to come in.
                if size != 0 or not drop_if_out(storage):
                    raise

    return wrapper


def _iterating(function: Callable[..., Any]) -> Callable[..., Any]:
    """For `iter(storage)`: it stays in while it is iterated, not for each element anew. What is
    written meanwhile is seen."""

    def elements(storage: Any) -> Iterator[Any]:
        view = [versions.view_of(versions.untyped(storage))]
        pins = library.Hold()
        try:
            pins.take(view)
            yield from function(storage)
        finally:
            pins.release()

    @functools.wraps(function)
    def wrapper(storage: Any) -> Any:
        on_device = library.active() and _on_device(storage)
        return elements(storage) if on_device else function(storage)

    return wrapper


def _item(function: Callable[..., Any]) -> Callable[..., Any]:
    """For `storage[...]`: a slice is a storage with a pointer into this one, kept alive by it."""
    pinned = _pinned(function)

    @functools.wraps(function)
    def wrapper(storage: Any, index: Any) -> Any:
        if isinstance(index, slice):
            _share(storage)
        return pinned(storage, index)

    return wrapper


def _share(storage: torch.UntypedStorage) -> None:
    if library.loaded() and _on_device(storage):
        _expose_storage(storage)


def install() -> None:
    """From now on, what gives a pointer away holds its tensor."""
    _expose_noted()
    if _EXCHANGE in vars(torch.Tensor):
        delattr(torch.Tensor, _EXCHANGE)
    take = versions.native(_TAKE)
    if take is not None:
        # Memory of no tensor may be followed to on any stream, of which no operator tells.
        setattr(torch._C, _TAKE, _after(take, library.ops().wait_for_memory))
    tensor = torch.Tensor
    tensor.data_ptr = _pointer(  # type: ignore[method-assign]
        tensor.data_ptr, _identity_of_tensor, _expose_tensor, _place_of_tensor
    )
    for storage in versions.storages():
        storage.data_ptr = _pointer(
            storage.data_ptr, _identity_of_storage, _expose_storage, _place_of_storage
        )
        storage._share_cuda_ = _before(storage._share_cuda_, _share)
        for name in (
            "copy_",
            "fill_",
            "_write_file",
            "_set_from_file",
            "__setitem__",
        ):
            setattr(storage, name, _pinned(getattr(storage, name)))
        storage.resize_ = _resizing(storage.resize_)
        storage.__getitem__ = _item(storage.__getitem__)
    for storage in versions.host_storages():
        storage.copy_ = _pinned(storage.copy_)  # from one of the device, too
    for kind in versions.iterated():
        kind.__iter__ = _iterating(kind.__iter__)

    # Operators defined from now on get the boundary before they can be called.
    install_pending = library.ops().install_pending

    def hook_pending(_: Any) -> None:
        install_pending()

    namespace = type(torch.ops.aten)
    namespace.__getattr__ = _before(namespace.__getattr__, hook_pending)  # type: ignore[method-assign]
