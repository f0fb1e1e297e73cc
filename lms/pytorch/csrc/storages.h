// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/cuda/lms/Lms.h>

namespace torch::lms {

inline bool is_sparse_compressed(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr ||
         layout == at::kSparseBsc;
}

// What is not of the device. Before PyTorch 2 the key of a compressed sparse tensor names no
// backend, so what it holds is asked instead.
inline bool elsewhere(const at::Tensor& tensor) {
  return !tensor.key_set().has_backend(c10::BackendComponent::CUDABit) &&
         !is_sparse_compressed(tensor.layout());
}

// Calls f(tensor, storage) for every CUDA storage behind `tensor` that the engine can manage; the
// tensor is undefined when the value is a bare storage. A
// sparse tensor has several: its kernels take their pointers without another operator call.
template <class F>
void each_storage(const at::Tensor& tensor, const F& f) {
  if (!tensor.defined() || elsewhere(tensor)) {
    return;
  }
  if (tensor.layout() == at::kSparse) {
    const auto* impl = static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    each_storage(impl->indices(), f);
    each_storage(impl->values(), f);
  } else if (is_sparse_compressed(tensor.layout())) {
    const auto* impl = static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
    each_storage(impl->compressed_indices(), f);
    each_storage(impl->plain_indices(), f);
    each_storage(impl->values(), f);
  } else if (tensor.has_storage()) {
    auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (c10::cuda::lms::manageable(storage)) {
      f(tensor, storage);
    }
  }
}

template <class F>
void each_storage(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    each_storage(value.toTensor(), f);
  } else if (value.isStorage()) {
    auto* storage = value.toStorage().unsafeGetStorageImpl();
    if (c10::cuda::lms::manageable(storage)) {
      f(at::Tensor(), storage);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      each_storage(item, f);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) {
      each_storage(item, f);
    }
  }
}

}  // namespace torch::lms
