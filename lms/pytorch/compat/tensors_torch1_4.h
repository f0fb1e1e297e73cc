// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tensors and values hold in PyTorch 1.4; included by tensors.h.

#include <torch/csrc/lms/compat/tensors_lists.h>
#include <torch/csrc/lms/compat/tensors_sparse.h>
#include <torch/csrc/lms/compat/tensors_strided.h>

namespace torch::lms {

inline bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

}  // namespace torch::lms
