// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <c10/cuda/lms/compat/storage.h>
#include <torch/csrc/lms/compat/tensors.h>

#include <atomic>

namespace torch::lms {

// Calls f(tensor, storage) for every CUDA storage behind `tensor` that the engine can manage; the
// tensor is undefined when the value is a bare storage. A sparse tensor has several: its kernels
// take their pointers without another operator call.
template <class F>
void each_storage(const at::Tensor& tensor, const F& f);

// Whether a glance shows a block of the allocator: of nearly every storage it does, and then there
// is no call, as each operand of each op comes by here.
C10_ALWAYS_INLINE bool looks_manageable(const c10::StorageImpl& storage) {
  const c10::cuda::lms::Glance seen = c10::cuda::lms::glance(storage);
  const c10::DataPtr& pointer = seen.pointer();
  if (C10_UNLIKELY(pointer.get() == nullptr || pointer.get() != pointer.get_context())) {
    return false;
  }
  return pointer.get_deleter() ==
         c10::cuda::lms::detail::block_deleter.load(std::memory_order_relaxed);
}

template <class F>
C10_ALWAYS_INLINE void its_storage(const at::Tensor& tensor, const F& f) {
  auto* storage = storage_of(tensor);
  if (C10_UNLIKELY(storage == nullptr)) {
    return;
  }
  if (C10_UNLIKELY(!looks_manageable(*storage)) && !c10::cuda::lms::manageable(storage)) {
    return;
  }
  f(tensor, storage);
}

template <class F>
C10_NOINLINE void each_storage_of_any(const at::Tensor& tensor, const F& f) {
  if (!tensor.defined() || elsewhere(tensor)) {
    return;
  }
  if (tensor.layout() == at::kSparse) {
    each_storage(sparse(tensor).indices(), f);
    each_storage(sparse(tensor).values(), f);
  } else if (is_sparse_compressed(tensor)) {
    each_compressed_part(tensor, [&](const at::Tensor& part) { each_storage(part, f); });
  } else {
    its_storage(tensor, f);
  }
}

// Every operand comes by here.
template <class F>
C10_ALWAYS_INLINE void each_storage(const at::Tensor& tensor, const F& f) {
  if (C10_LIKELY(is_plain(tensor))) {
    its_storage(tensor, f);
  } else {
    each_storage_of_any(tensor, F(f));  // of which a copy need be in memory alone
  }
}

template <class F>
void each_storage(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    each_storage(value.toTensor(), f);
  } else if (auto* storage = storage_in(value)) {
    if (c10::cuda::lms::manageable(storage)) {
      f(at::Tensor(), storage);
    }
  } else {
    each_element(value, [&](const auto& item) { each_storage(item, f); });
  }
}

}  // namespace torch::lms
