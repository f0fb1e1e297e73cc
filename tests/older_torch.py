# SPDX-License-Identifier: Apache-2.0
"""PyTorch 2's names, in which the suites are written, for those of 1.13 that lack them."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    weights = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if is_causal:
        seen = torch.ones_like(weights, dtype=torch.bool).tril()
        weights = weights.masked_fill(~seen, -math.inf)
    return weights.softmax(-1) @ value


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Library(torch.library.Library):
    """With fragments, which it makes in C++ alone, and an end that can be called for."""

    def __init__(self, namespace: str, kind: str, dispatch_key: str = "") -> None:
        super().__init__(namespace, "IMPL" if kind == "FRAGMENT" else kind, dispatch_key)
        if kind == "FRAGMENT":
            place = (__file__, 0)
            self.m = torch._C._dispatch_library(kind, namespace, dispatch_key, *place)

    def _destroy(self) -> None:
        self.__del__()
        self._op_impls = set()


def _record_memory_history(enabled: str | None = "all", **_: Any) -> None:
    _record(enabled is not None)


_record: Any = torch.cuda.memory._record_memory_history


# Words of a test's file or name, and what it is about that PyTorch 1.13 does not have.
_LACKING = {
    "execution_trace_observer": "torch.profiler.ExecutionTraceObserver",
    "expandable": "expandable segments",
    "unmapped": "expandable segments",
    "does_not_ask_for_what_is_set": "expandable segments",
    "allocator_configurations": "expandable segments",
    "lets_its_dead_go": "torch.library.custom_op",
    "operators_defined_late": "torch.library.custom_op",
    "that_an_operator_makes_is_pinned": "torch.library._scoped_library",
    "memory_snapshot_and_history": "traces in a snapshot of memory",
    "recorded_history": "traces in a snapshot of memory",
    "[hooks": "register_post_accumulate_grad_hook",
    "[checkpointing": "use_reentrant of checkpoint_sequential",
    "[replaced_storages": "swap_tensors",
    "[data_of_a_module": "set_swap_module_params_on_conversion",
    "[copies_on_write": "copies on write",
    "[foreach": "_foreach_lerp_",
    "-fused": "fused optimisers",
    "[fused": "fused optimisers",
    "makes_the_copy_stale[optimiser]": "fused optimisers",
    "[lbfgs_and_averages": "get_ema_multi_avg_fn",
    "[nested_tensors": "jagged tensors",
    "[mixed_precision": "half precision on the CPU, to compare with",
    "[function_transforms": "torch.func",
    "[transforms": "torch.func",
    "[compiled": "torch.compile",
    "compile[": "torch.compile",
    "[inductor": "torch.compile",
    "alignment_is_compared": "torch.compile",
    "who_holds_the_interpreter": "AOTInductor's C interface",
    "saved_tensors_that_may_change": "allow_mutation_on_saved_tensors",
    "everything_else_at_the_same_time": "operators that can be taken away",
    "out_of_memory_observers": "observers of out of memory",
    "a_group_of_collectives": "a process group of one that does nothing",
    "names_what_is_in_pieces": "expandable segments, to advise them",
    "chaos_catches_an_extension": "pointers that refuse to be read",
    "profiler_in_chaos_mode": "pointers that refuse to be read",
    "profiler_that_runs_already": "pointers that refuse to be read",
    "test_dry.py": "shapes of what a dry device computes",
    "both_keep_less": "shapes of what a dry device computes",
    "reading_does_not_count_as_writing": "a write barrier",
    "a_clean_eviction": "a write barrier",
    "pluggable": "pluggable allocators",
    "capture_forbids": "capture_error_mode",
    "thread_local_capture": "capture_error_mode",
}
if sys.version_info >= (3, 11):  # whose data classes refuse its own
    _LACKING |= dict.fromkeys(("[with_lightning", "[fsdp"), "torch.distributed's shards here")


def lacks(test: str) -> str | None:
    """What this torch does not have that the test, by its file and name, is about."""
    if hasattr(torch, "compile"):
        return None
    return next((what for words, what in _LACKING.items() if words in test), None)


def name() -> None:
    """Add what is missing, and let what is there take what PyTorch 2's takes."""
    if hasattr(torch, "compile"):
        return
    names: list[tuple[Any, str, Any]] = [
        (torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError),
        (torch.Tensor, "untyped_storage", torch.Tensor._storage),  # type: ignore[attr-defined]
        (torch.Tensor, "nbytes", property(_bytes)),
        (torch.cuda.Stream, "stream_id", property(lambda stream: stream._cdata & ((1 << 48) - 1))),
        (torch.storage.TypedStorage, "_data_ptr", torch.storage.TypedStorage.data_ptr),
        (functional, "scaled_dot_product_attention", _attention),
        (torch.amp, "GradScaler", lambda _device, **words: torch.cuda.amp.GradScaler(**words)),
    ]
    for where, what, value in names:
        if not hasattr(where, what):
            setattr(where, what, value)
    torch.library.Library = _Library  # type: ignore[misc]
    torch.cuda.memory._record_memory_history = _record_memory_history
