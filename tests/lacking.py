# SPDX-License-Identifier: Apache-2.0
"""What PyTorch 1.13 does not have: a test that is about it is skipped there, and says why."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

import pytest

# Words of a test's file, name or fixtures, and what it is about that PyTorch 1.13 does not have.
WORDS = {
    "for_a_capture_on": "captures that another thread's requests for memory do not fail",
    "end_of_a_capture": "captures that another thread's requests for memory do not fail",
    "end_of_a_pools_use": "torch.cuda.MemPool",
    "could_not_be_captured": "pools of captures that can be ended from outside",
    "that_a_graph_was_told_of": "CUDAGraph.register_generator_state",
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
    "stays_copy_on_write": "copies on write",
    "with_one_of_shared_memory": "copies on write",
    "is_no_longer_shared": "copies on write",
    "illegal_access_is_refused_by_name": "storages made of a pointer",
    "may_point_at_pinned_host_memory": "storages made of a pointer",
    "pool_lives_as_long": "pools in a snapshot of memory",
    "freed_memory_faults[True]": "expandable segments",
    "pointer_that_throws": "pointers that refuse to be read",
    "parts_of_buckets": "pointers that refuse to be read",
    "[foreach": "_foreach_lerp_",
    "-amp]": "a GradScaler for the CPU, to compare with",
    "immediate-foreach]": "_foreach_addcdiv_ with a tensor of scalars",
    "lazy-foreach]": "_foreach_addcdiv_ with a tensor of scalars",
    "copy-foreach]": "_foreach_addcdiv_ with a tensor of scalars",
    "write-foreach]": "_foreach_addcdiv_ with a tensor of scalars",
    "a_recorder_runs_no_python": "recorders that run without the allocator's lock",
    "a_state_from_nowhere": "Generator.set_offset",
    "adam-fused": "fused optimisers",
    "adamw-fused": "fused optimisers",
    "sgd-fused": "fused optimisers",
    "-fused_adam": "fused optimisers",
    "-fused]": "fused optimisers",
    "[fused": "fused optimisers",
    "makes_the_copy_stale[optimiser]": "fused optimisers",
    "[lbfgs_and_averages": "get_ema_multi_avg_fn",
    "[nested_tensors": "jagged tensors",
    "[ragged": "jagged tensors",
    "[set_to_another_storage": "swap_tensors",
    "[functions_of_all_kinds": "torch.func",
    "[checkpoints_within_checkpoints": "policies of checkpoints",
    "[forward_derivatives": "setup_context",
    "[parametrised": "weight_norm as a parametrisation",
    "[from_meta": "devices as contexts",
    "[lists_of_all_kinds": "_foreach_copy_",
    "[capturable_and_scheduled": "clip_grad_norm_ by foreach",
    "[amp_with_a_cache": "half precision on the CPU, to compare with",
    "[operators_of_ones_own": "torch.library.custom_op",
    "test_switched[backward_on_streams": "streams in a mode of dispatch",
    "test_switched[offload_by_hand": "streams in a mode of dispatch",
    "test_switched[ping_pong": "streams in a mode of dispatch",
    "test_switched[prefetched_batches": "streams in a mode of dispatch",
    "test_switched[complex_numbers": "conjugates in a mode of dispatch",
    "[mixed_precision": "half precision on the CPU, to compare with",
    "test_autocast[": "half precision on the CPU, to compare with",
    "gradient_clipping": "clip_grad_norm_ by foreach",
    "async_allocator": "other allocators",
    "remove backend:cudaMallocAsync": "other allocators",
    "memory_pool": "torch.cuda.MemPool",
    "[function_transforms": "torch.func",
    "[transforms": "torch.func",
    "-transforms]": "torch.func",
    "[compiled": "torch.compile",
    "compile[": "torch.compile",
    "compile_with_inductor": "torch.compile",
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
    "dry_server": "shapes of what a dry device computes",
    "test_calibrate.py": "shapes of what a dry device computes",
    "true_sizes": "shapes of what a dry device computes",
    "both_keep_less": "shapes of what a dry device computes",
    "reading_does_not_count_as_writing": "a write barrier",
    "a_clean_eviction": "a write barrier",
    "statistics_keeps_their_copy": "a write barrier",
    "of_another_device_reads": "a write barrier",
    "pluggable": "pluggable allocators",
    "capture_forbids": "capture_error_mode",
    "thread_local_capture": "capture_error_mode",
    "used_beside_a_capture": "capture_error_mode",
}
if sys.version_info >= (3, 11):  # whose data classes refuse its own
    WORDS |= dict.fromkeys(("[with_lightning", "[fsdp"), "torch.distributed's shards here")
else:  # whose NCCL frees twice what it made, where it finds no GPU
    WORDS["launches_in_c_is_noticed[nccl"] = "an NCCL that fails without an abort"


def _old() -> bool:
    """Asked without an import of torch, which comes after that of its device."""
    try:
        return int(version("torch").partition(".")[0]) < 2
    except PackageNotFoundError:
        return False


def of(test: str) -> str | None:
    """What PyTorch 1.13 does not have of what a test is about."""
    return next((what for words, what in WORDS.items() if words in test), None)


def skip(tests: Iterable[pytest.Item]) -> None:
    """Those that are about what this torch does not have."""
    for test in tests if _old() else ():
        if test.get_closest_marker("negative"):
            continue  # named after a safeguard, which says itself what it is for
        if lacked := of(f"{test.nodeid} {getattr(test, 'fixturenames', '')}"):
            test.add_marker(pytest.mark.skip(reason=f"this PyTorch lacks {lacked}"))
