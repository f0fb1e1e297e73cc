// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tensors and values hold in PyTorch 1.5; included by tensors.h.

#include <torch/csrc/lms/compat/tensors_sparse.h>
#include <torch/csrc/lms/compat/tensors_strided.h>

namespace torch::lms {

inline bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

template <class F>
void each_element(const c10::IValue& value, const F& f) {
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      f(item);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTuple()->elements()) {
      f(item);
    }
  }
}

}  // namespace torch::lms
