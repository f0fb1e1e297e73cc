// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tensors hold before PyTorch 1.6; included by the implementations of those versions.

#include <ATen/ATen.h>

namespace torch::lms {

inline bool is_plain(const at::Tensor&) { return false; }

inline bool elsewhere(const at::Tensor& tensor) { return !tensor.is_cuda(); }

inline bool is_sparse_compressed(const at::Tensor&) { return false; }

template <class F>
void each_compressed_part(const at::Tensor&, const F&) {}

inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl()
                              : nullptr;
}

inline c10::StorageImpl* storage_in(const c10::IValue&) { return nullptr; }

}  // namespace torch::lms
