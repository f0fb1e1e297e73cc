// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tables of operators in PyTorch 1.3 and 1.4, of which there are two copies each, for one to be
// read while the other is written. Included by the versions' headers.

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

// The copies of an operator's table.
inline const auto& copies_of(const c10::OperatorHandle& op) {
  const auto& copies = (op.*member(Entry{}))->op.*member(Copies{});
  return copies.*member(BothCopies{});
}

inline bool falls_through(const c10::KernelFunction&) { return false; }

}  // namespace torch::lms
