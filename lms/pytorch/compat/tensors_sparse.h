// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a sparse tensor is, where one for autograd is no object of its own: since PyTorch 1.2.
// Included by the implementations of tensors.h.

#include <ATen/ATen.h>
#include <ATen/SparseTensorImpl.h>

namespace torch::lms {

inline const at::SparseTensorImpl& sparse(const at::Tensor& tensor) {
  return *static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

}  // namespace torch::lms
