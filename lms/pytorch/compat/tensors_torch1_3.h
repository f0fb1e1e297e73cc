// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tensors and values hold in PyTorch 1.2 and 1.3; included by tensors.h.

#include <torch/csrc/lms/compat/tensors_lists.h>
#include <torch/csrc/lms/compat/tensors_sparse.h>
#include <torch/csrc/lms/compat/tensors_strided.h>

namespace torch::lms {

// Not of one whose dimensions lie in another order: that is not asked there.
inline bool is_dense(const at::Tensor& tensor) { return tensor.is_contiguous(); }

}  // namespace torch::lms
