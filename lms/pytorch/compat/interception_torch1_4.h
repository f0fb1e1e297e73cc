// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tables of operators in PyTorch 1.4; included by interception_typed.cpp.

#include <torch/csrc/lms/compat/interception_copies.h>

namespace torch::lms {

// f(table) for each copy of an operator's table.
template <class F>
void each_table(const c10::OperatorHandle& op, const F& f) {
  for (const c10::DispatchTable& table : copies_of(op)) {
    f(table);
  }
}

inline size_t hook_more() { return 0; }

}  // namespace torch::lms

#include <torch/csrc/lms/compat/interception_kernels.h>
