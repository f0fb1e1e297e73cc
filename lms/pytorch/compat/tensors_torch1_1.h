// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tensors and values hold in PyTorch 1.1, where a tensor for autograd is around another one;
// included by tensors.h.

#include <ATen/ATen.h>
#include <ATen/SparseTensorImpl.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/lms/compat/tensors_lists.h>
#include <torch/csrc/lms/compat/tensors_strided.h>

namespace torch::lms {

// Not of one whose dimensions lie in another order: that is not asked there.
inline bool is_dense(const at::Tensor& tensor) { return tensor.is_contiguous(); }

inline const at::SparseTensorImpl& sparse(const at::Tensor& tensor) {
  const at::Tensor& inner =
      tensor.is_variable() ? torch::autograd::as_variable_ref(tensor).data() : tensor;
  return *static_cast<const at::SparseTensorImpl*>(inner.unsafeGetTensorImpl());
}

}  // namespace torch::lms
