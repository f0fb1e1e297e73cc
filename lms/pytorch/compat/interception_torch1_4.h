// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tables of operators in PyTorch 1.4, of which there are two copies each, for one to be read
// while the other is written; included by interception_typed.cpp.

#include <torch/csrc/lms/compat/interception_private.h>

namespace torch::lms {

using DispatchKey = c10::TensorTypeId;

struct Copies {
  friend auto member(Copies);
};
template struct Grant<Copies, &c10::impl::OperatorEntry::dispatchTable_>;

struct BothCopies {
  friend auto member(BothCopies);
};
template struct Grant<BothCopies, &c10::LeftRight<c10::DispatchTable>::_data>;

// f(table) for each copy of an operator's table.
template <class F>
void each_table(const c10::OperatorHandle& op, const F& f) {
  const auto& copies = (op.*member(Entry{}))->op.*member(Copies{});
  for (const c10::DispatchTable& table : copies.*member(BothCopies{})) {
    f(table);
  }
}

inline bool falls_through(const c10::KernelFunction&) { return false; }

inline size_t hook_more() { return 0; }

}  // namespace torch::lms

#include <torch/csrc/lms/compat/interception_kernels.h>
