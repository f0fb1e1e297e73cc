// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tables of operators in PyTorch 1.5; included by interception_typed.cpp.

#include <torch/csrc/lms/compat/interception_private.h>

namespace torch::lms {

using c10::DispatchKey;

// f(table) for each copy of an operator's table.
template <class F>
void each_table(const c10::OperatorHandle& op, const F& f) {
  f((op.*member(Entry{}))->op.dispatch_table());
}

inline bool falls_through(const c10::KernelFunction& kernel) { return kernel.isFallthrough(); }

inline size_t hook_more() { return 0; }

}  // namespace torch::lms

#include <torch/csrc/lms/compat/interception_kernels.h>
