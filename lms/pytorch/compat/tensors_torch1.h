// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tensors and values hold from PyTorch 1.13 on; included by tensors.h.

#include <ATen/SparseCsrTensorImpl.h>
#include <torch/csrc/lms/compat/tensors_sparse.h>

namespace torch::lms {

inline bool is_plain(const at::Tensor& tensor) {
  const auto keys = tensor.key_set();
  return keys.has_backend(c10::BackendComponent::CUDABit) &&
         !keys.has_any(c10::sparse_ks | c10::sparse_csr_ks);
}

inline bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

inline bool is_sparse_compressed(const at::Tensor& tensor) {
  const at::Layout layout = tensor.layout();
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr ||
         layout == at::kSparseBsc;
}

// Before PyTorch 2 the key of a compressed sparse tensor names no backend, so what it holds is
// asked instead.
inline bool elsewhere(const at::Tensor& tensor) {
  return !tensor.key_set().has_backend(c10::BackendComponent::CUDABit) &&
         !is_sparse_compressed(tensor);
}

// Whether no tensor is of the device that has any of these keys, as those of a call have together.
template <class Keys>
bool all_elsewhere(const Keys& keys) {
  return !keys.has_backend(c10::BackendComponent::CUDABit) && !keys.has_any(c10::sparse_csr_ks);
}

template <class F>
void each_compressed_part(const at::Tensor& tensor, const F& f) {
  const auto* impl = static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
  f(impl->compressed_indices());
  f(impl->plain_indices());
  f(impl->values());
}

inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

inline c10::StorageImpl* storage_in(const c10::IValue& value) {
  return value.isStorage() ? value.toStorage().unsafeGetStorageImpl() : nullptr;
}

template <class F>
void each_element(const c10::IValue& value, const F& f) {
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      f(item);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) {
      f(item);
    }
  }
}

}  // namespace torch::lms
