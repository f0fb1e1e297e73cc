// SPDX-License-Identifier: Apache-2.0
#pragma once

// What values hold up to PyTorch 1.4, where a list of tensors is none of values; included by the
// implementations of tensors.h.

namespace torch::lms {

template <class F>
void each_element(const c10::IValue& value, const F& f) {
  if (value.isTensorList()) {
    for (const at::Tensor& item : value.toTensorListRef()) {
      f(item);
    }
  } else if (value.isGenericList()) {
    for (const c10::IValue& item : value.toGenericListRef()) {
      f(item);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTuple()->elements()) {
      f(item);
    }
  }
}

}  // namespace torch::lms
