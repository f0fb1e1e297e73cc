// SPDX-License-Identifier: Apache-2.0
// Of torch 2.6 and later; included by versions.h.
#pragma once

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <simcuda.h>

#include <optional>

namespace simcuda {

template <class T>
using Optional = std::optional<T>;
inline constexpr auto nothing = std::nullopt;

inline const void* data_of(const at::Tensor& t) { return t.const_data_ptr(); }

// From now on it has memory of its own.
inline void* writable_data_of(const c10::Storage& s) {
  return s.unsafeGetStorageImpl()->mutable_data();
}

inline bool is_compressed(const at::Tensor& t) { return at::sparse_csr::is_sparse_compressed(t); }

inline at::Tensor sparse_coo(const at::Tensor& indices, const at::Tensor& values,
                             at::IntArrayRef sizes, const at::TensorOptions& options,
                             bool coalesced) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, options, coalesced);
}

// What dropout on the CPU draws into, in the order of its memory.
inline at::Tensor noise_for(const at::Tensor& x) { return at::empty_like(x); }

template <class Run>
auto silently(const Run& run) {
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  return run();
}

// False when there is nobody to ask.
inline bool trace_allocator() {
  using c10::cuda::CUDACachingAllocator::TraceEntry;
  auto tell = [](const TraceEntry& entry) {
    auto say = [&](int event) {
      simcuda_trace_memory(event, entry.device_, static_cast<uintptr_t>(entry.addr_), entry.size_,
                           entry.stream_);
    };
    switch (entry.action_) {
      case TraceEntry::ALLOC:
        return say(SIMCUDA_ALLOCATED);
      case TraceEntry::FREE_COMPLETED:
        return say(SIMCUDA_FREED);
      case TraceEntry::SEGMENT_ALLOC:
      case TraceEntry::SEGMENT_MAP:
        return say(SIMCUDA_SEGMENT);
      case TraceEntry::SEGMENT_FREE:
      case TraceEntry::SEGMENT_UNMAP:
        return say(SIMCUDA_SEGMENT_GONE);
      default:
        return;
    }
  };
  try {
    c10::cuda::CUDACachingAllocator::get()->attachAllocatorTraceTracker(tell);
  } catch (const c10::Error&) {
    return false;  // an allocator that is not torch's own
  }
  return true;
}

}  // namespace simcuda
