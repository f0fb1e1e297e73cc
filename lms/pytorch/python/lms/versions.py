# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's versions and builds spell differently, or do not have: from 1.1 on."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type

import torch

# Before 1.13 a storage has a type itself, with a class for each on each kind of device.
_TYPED = not hasattr(torch, "UntypedStorage")
# Of a TypedStorage, the one that has the bytes.
_UNTYPED = "_untyped_storage" if hasattr(torch.Tensor, "untyped_storage") else "_storage"


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    if hasattr(torch.Tensor, "untyped_storage"):
        return tensor.untyped_storage()
    if _TYPED:
        return tensor.storage()  # type: ignore[return-value]
    found: torch.UntypedStorage = tensor._storage()  # type: ignore[attr-defined]
    return found


def untyped(storage: Any) -> torch.UntypedStorage:
    """Of a storage of either kind."""
    if _TYPED or isinstance(storage, torch.UntypedStorage):
        return storage  # type: ignore[no-any-return]
    found: torch.UntypedStorage = getattr(storage, _UNTYPED)
    return found


def storages() -> List[Type[Any]]:
    """The classes of storages of the device that have the bytes."""
    if not _TYPED:
        return [torch.UntypedStorage]
    return [kind for kind in torch._storage_classes if kind.__module__ == "torch.cuda"]


def host_storages() -> List[Type[Any]]:
    """The classes of storages of the host, where they are others."""
    if not _TYPED:
        return []
    return [kind for kind in torch._storage_classes if kind.__module__ == "torch"]


def iterated() -> List[Type[Any]]:
    """The classes of storages that are iterated by element."""
    return storages() if _TYPED else [torch.UntypedStorage, torch.TypedStorage]


def view_of(storage: Any) -> torch.Tensor:
    """A tensor without elements that holds the storage. With its sizes named it is one operator,
    which waits for room; else another is called within it."""
    return _make_view()(storage)  # type: ignore[no-any-return]


@functools.lru_cache(None)  # once there is a torch to ask
def _make_view() -> Callable[[Any], torch.Tensor]:
    def view(storage: Any) -> torch.Tensor:
        dtype = storage.dtype if _TYPED else torch.uint8
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (0,))

    return past_modes(view)


def bytes_of(tensor: torch.Tensor) -> int:
    """Of its storage; of a wrapper that has none, those that it says it has."""
    try:
        storage: Any = storage_of(tensor)
    except (RuntimeError, NotImplementedError):
        return tensor.numel() * tensor.element_size()
    return int(storage.size() if _TYPED else storage.nbytes())


_SEEING = (
    "PythonTLSSnapshot",
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
    "FuncTorchBatched",
)


def _keys_of_modes() -> Any:
    """Those by which modes, and the levels of torch.func, see an operator."""
    module: Any = torch._C
    keys = module.DispatchKeySet(module.DispatchKey.Python)
    for name in _SEEING:
        keys = keys | module.DispatchKeySet(getattr(module.DispatchKey, name))
    return keys


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, of which a trace (torch.jit.trace) has nothing: whoever loads that may have no
    such operators."""
    module: Any = torch._C

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        trace = module._get_tracing_state()
        if trace is None:
            return function(*args)
        module._set_tracing_state(None)
        try:
            return function(*args)
        finally:
            module._set_tracing_state(trace)

    return run


def past_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, unseen by modes, by classes of tensors, by the levels of torch.func, and by a
    trace. Before PyTorch 2 there is no way past modes and classes."""
    if not hasattr(torch, "compile"):
        return _untraced(function)
    module: Any = torch._C
    keys, without_keys = _keys_of_modes(), module._ExcludeDispatchKeyGuard
    without_classes: Any = module.DisableTorchFunction

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        with without_keys(keys), without_classes():
            return function(*args)

    return _untraced(run)


# Whether a class or a mode may see what is asked of it. An old PyTorch shows it to none.
_seen: Callable[[Any], bool] = getattr(torch._C, "_has_torch_function_unary", lambda _: False)


def unseen(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same look at a tensor, or a storage, with nothing between for what none sees."""
    past: List[Callable[[Any], Any]] = []  # not yet while torch is being imported

    @functools.wraps(look)
    def run(of: Any) -> Any:
        if not _seen(of):
            return look(of)
        if not past:
            past.append(past_modes(look))
        return past[0](of)

    return run


def intercepted(of: Any) -> bool:
    """Whether a class or a mode may see what is asked of a tensor, or of a storage; or a trace."""
    if torch._C._get_tracing_state() is not None:
        return True
    if not isinstance(of, torch.Tensor):
        return False
    if type(of) not in (torch.Tensor, torch.nn.Parameter) or _seen(of):
        return True
    return of.layout != torch.strided  # it has several, or none


def argument(storage: Any) -> Any:
    """A storage, as an operator takes it."""
    return storage._cdata if _TYPED else storage


def initialized() -> bool:
    """Whether CUDA is."""
    cuda: Any = sys.modules["torch.cuda"]  # torch may be being imported
    return bool(cuda.is_initialized() if hasattr(cuda, "is_initialized") else cuda._initialized)


def in_bad_fork() -> bool:
    cuda: Any = torch.cuda
    forked = cuda._is_in_bad_fork() if hasattr(cuda, "_is_in_bad_fork") else cuda._in_bad_fork
    return bool(forked)


def native_allocator() -> bool:
    """Whether the caching allocator is PyTorch's native one; before 2.0 there is no other."""
    get_backend = getattr(torch.cuda, "get_allocator_backend", None)
    return get_backend is None or get_backend() == "native"


def allocator_stats(device: int) -> Dict[str, Any]:
    """What the allocator has counted, nested; before 1.4 only the bytes that are allocated, of all
    pools, and their peak."""
    module: Any = torch._C
    if counts_allocations():
        return module._cuda_memoryStats(device)  # type: ignore[no-any-return]
    stats = {
        kind: {
            pool: dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
            for pool in ("all", "large_pool", "small_pool")
        }
        for kind in ("allocation", "allocated_bytes")
    }
    stats["allocated_bytes"]["all"].update(
        current=module._cuda_memoryAllocated(device), peak=module._cuda_maxMemoryAllocated(device)
    )
    return stats


def counts_allocations() -> bool:
    """Whether the allocator does, from 1.4 on."""
    return hasattr(torch._C, "_cuda_memoryStats")


def limit_of_ibms() -> str:
    """What set_limit_lms sets: up to 1.3 IBM's ``soft`` limit, up to 1.5 its ``hard`` one, and from
    then on, for which IBM had none, ``ours``."""
    if not counts_allocations():
        return "soft"
    return "hard" if _TYPED else "ours"


def reset_peaks(device: Any) -> None:
    """Of the allocator, and thereby ours; before 1.4 nothing resets all."""
    if hasattr(torch.cuda, "reset_peak_memory_stats"):
        torch.cuda.reset_peak_memory_stats(device)
        return
    cuda: Any = torch.cuda
    cuda.reset_max_memory_allocated(device)
    cuda.lms.reset_peak_stats(device)


def device_allocations(stats: Dict[str, int]) -> int:
    """How often the allocator has asked the device for memory, by its flat statistics."""
    return stats.get("num_device_alloc", stats["segment.all.allocated"])


def parts(tensor: torch.Tensor) -> Optional[List[torch.Tensor]]:
    """The tensors that a wrapper (a DTensor, say, or a level of torch.func) holds its values in;
    None when it is none."""
    levels: Any = getattr(torch._C, "_functorch", None)
    if levels is not None and levels.is_functorch_wrapped_tensor(tensor):
        return [levels.get_unwrapped(tensor)]
    # Before 2.1 no more is asked for than that it names them.
    is_wrapper: Callable[[Any], bool] = getattr(
        sys.modules.get("torch.utils._python_dispatch"),
        "is_traceable_wrapper_subclass",
        lambda of: hasattr(of, "__tensor_flatten__"),
    )
    if not is_wrapper(tensor):
        return None
    held = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # type: ignore[attr-defined]
    return [part for part in held if isinstance(part, torch.Tensor)]  # a mesh, too, since 2.15


def boxed(work: Any) -> Optional[Any]:
    """A work of torch.distributed, as an operator takes it. None: it cannot be given to one."""
    return work.boxed() if hasattr(work, "boxed") else None


def _observer() -> str:
    """What the class of those that write down what is executed calls that."""
    return "Trace" if hasattr(torch.profiler, "ExecutionTraceObserver") else "Graph"


def profilers() -> Iterator[Tuple[str, str, str]]:
    """A module, and its functions that begin and end a profiler. None in versions where an access
    cannot be refused, so that none of theirs is."""
    if _TYPED:
        return
    yield "torch.autograd.profiler", "_enable_profiler", "_disable_profiler"
    begin, end = (
        f"_{act}_execution_{_observer().lower()}_observer" for act in ("enable", "disable")
    )
    yield "torch.profiler.profiler", begin, end


def execution_observers() -> Optional[Tuple[Any, str]]:
    """Their class, and its attribute that says whether one runs; None where there are none."""
    if _TYPED:
        return None
    kind = _observer()
    running = f"_execution_{kind.lower()}_running"
    return getattr(torch.profiler, f"Execution{kind}Observer"), running


def profiling() -> bool:
    """Whether a profiler runs; of versions that do not say, whether one may."""
    if _TYPED:
        return False
    module: Any = torch.autograd.profiler
    if hasattr(module, "_is_profiler_enabled"):
        return bool(module._is_profiler_enabled)
    return bool(torch._C._autograd._profiler_enabled())


def fuses_unseen() -> bool:
    """Whether TorchScript cannot be made to compile anew what it has fused."""
    return _TYPED


def fusers() -> Iterator[Tuple[str, str]]:
    """Of each of TorchScript's fusers for GPUs, what turns it on and off and, but for 1.5, what
    tells whether it is on; 1.4 has neither. The second is nvFuser, to which 1.13 gives all that it
    can fuse."""
    if hasattr(torch._C, "_jit_override_can_fuse_on_gpu"):
        yield "_jit_override_can_fuse_on_gpu", "_jit_can_fuse_on_gpu"
    if hasattr(torch._C, "_jit_set_nvfuser_enabled") and not hasattr(torch, "compile"):
        yield "_jit_set_nvfuser_enabled", "_jit_nvfuser_enabled"


def native(name: str) -> Optional[Any]:
    """What PyTorch's own module of C++ has by that name; None in versions that have it not."""
    return getattr(torch._C, name, None)


def graph_class() -> Optional[Type[Any]]:
    """Of CUDA graphs; None before 1.10, where none is captured."""
    try:
        from torch.cuda.graphs import CUDAGraph  # torch is being imported
    except ImportError:
        return None
    return CUDAGraph


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it has a class of its own, from 1.13 on, and is of that."""
    return isinstance(error, getattr(torch.cuda, "OutOfMemoryError", ()))


def rpc() -> Optional[Any]:
    """The module; None in a build without it."""
    module = getattr(torch.distributed, "rpc", None)
    return module if module is not None and module.is_available() else None


def collectives_are_operators() -> bool:
    return hasattr(getattr(torch.distributed, "ProcessGroup", None), "_start_coalescing")
