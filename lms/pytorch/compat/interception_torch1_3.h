// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tables of operators in PyTorch 1.3: of some in the dispatcher, of the others of aten in
// ATenDispatch. Included by interception_typed.cpp.

#include <torch/csrc/lms/compat/interception_copies.h>

#include <array>

namespace torch::lms {

struct ByKey {
  friend auto member(ByKey);
};
template struct Grant<ByKey, &c10::DispatchTable::kernels_>;

struct ForAll {
  friend auto member(ForAll);
};
template struct Grant<ForAll, &c10::DispatchTable::catchall_kernel_>;

// Null where there is none.
struct Table {
  const c10::KernelFunction* lookup(DispatchKey key) const {
    return (table.*member(ByKey{})).lookup(key);
  }
  const c10::KernelFunction* lookupCatchallKernel() const {
    const auto& kernel = table.*member(ForAll{});
    return kernel ? &*kernel : nullptr;
  }

  const c10::DispatchTable& table;
};

// f(table) for each copy of an operator's table.
template <class F>
void each_table(const c10::OperatorHandle& op, const F& f) {
  for (const c10::DispatchTable& table : copies_of(op)) {
    f(Table{table});
  }
}

// Where a table of ATenDispatch has the kernels for CUDA, for sparse tensors there, and for all.
constexpr std::array<DispatchKey, 3> kPlaces = {
    DispatchKey::CUDATensorId, DispatchKey::SparseCUDATensorId, DispatchKey::UndefinedTensorId};

// An operator without a kernel for autograd only calls others.
template <class Functions>
bool only_calls_others(const Functions& functions) {
  return functions[static_cast<size_t>(DispatchKey::VariableTensorId)] == nullptr;
}

}  // namespace torch::lms

#include <torch/csrc/lms/compat/interception_kernels.h>
#include <torch/csrc/lms/compat/interception_tables.h>
