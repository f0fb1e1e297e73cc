// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <torch/csrc/lms/compat/tensors.h>

namespace torch::lms {

// Calls f(tensor, storage) for every CUDA storage behind `tensor` that the engine can manage; the
// tensor is undefined when the value is a bare storage. A sparse tensor has several: its kernels
// take their pointers without another operator call.
template <class F>
void each_storage(const at::Tensor& tensor, const F& f);

template <class F>
C10_ALWAYS_INLINE void its_storage(const at::Tensor& tensor, const F& f) {
  auto* storage = storage_of(tensor);
  if (storage != nullptr && c10::cuda::lms::manageable(storage)) {
    f(tensor, storage);
  }
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
    each_storage_of_any(tensor, f);
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
