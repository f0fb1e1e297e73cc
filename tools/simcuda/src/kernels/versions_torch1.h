// SPDX-License-Identifier: Apache-2.0
// Of torch 1.13; included by versions.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <c10/util/Optional.h>

#include <string>

namespace simcuda {

template <class T>
using Optional = c10::optional<T>;
inline constexpr auto nothing = c10::nullopt;

inline const void* data_of(const at::Tensor& t) { return t.data_ptr(); }

inline void* writable_data_of(const c10::Storage& s) { return s.unsafeGetStorageImpl()->data(); }

inline bool is_compressed(const at::Tensor& t) {
  const auto layout = t.layout();
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr ||
         layout == at::kSparseBsc;
}

inline at::Tensor sparse_coo(const at::Tensor& indices, const at::Tensor& values,
                             at::IntArrayRef sizes, const at::TensorOptions& options,
                             bool coalesced) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, options)._coalesced_(coalesced);
}

// What dropout on the CPU draws into, in the order of its memory.
inline at::Tensor noise_for(const at::Tensor& x) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

template <class Run>
auto silently(const Run& run) {
  struct Silent : c10::WarningHandler {
    void process(const c10::SourceLocation&, const std::string&, bool) override {}
  } silent;
  c10::Warning::WarningHandlerGuard guard(&silent);
  return run();
}

inline bool trace_allocator() { return false; }  // the allocator tells nobody what it does

}  // namespace simcuda
