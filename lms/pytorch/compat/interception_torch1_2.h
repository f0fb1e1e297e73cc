// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tables of operators in PyTorch 1.2: of those of aten in ATenDispatch; the dispatcher has
// those of other libraries, whose kernels are called boxed and have no object but one that is made
// for each call. Included by interception_typed.cpp.

#include <torch/csrc/lms/compat/interception_call.h>
#include <torch/csrc/lms/compat/interception_private.h>
#include <torch/csrc/lms/compat/interception_through.h>

#include <array>
#include <memory>

namespace torch::lms {

struct Copies {
  friend auto member(Copies);
};
template struct Grant<Copies, &c10::impl::OperatorEntry::dispatchTable_>;

struct Kernels {
  friend auto member(Kernels);
};
template struct Grant<Kernels, &c10::DispatchTable::kernels_>;

struct ByKey {
  friend auto member(ByKey);
};
template struct Grant<ByKey, &c10::detail::KernelTable_::map_>;

inline bool hook_op(const c10::OperatorHandle& op) {
  const auto hook = std::make_shared<const Hook>(hook_for(op.schema()));
  if (hook->facts.touches_nothing()) {
    return false;
  }
  bool any = false;
  auto& copies = (op.*member(Entry{}))->op.*member(Copies{});
  copies.write([&](c10::DispatchTable& table) {  // of the two, the one that nobody reads
    auto& kernels = table.*member(Kernels{});
    if (kernels.is_right()) {
      hook_kernel(kernels.right(), hook);
      any = true;
      return;
    }
    for (auto& entry : kernels.left().*member(ByKey{})) {
      hook_kernel(entry.second, hook);
      any = true;
    }
  });
  return any;
}

// Where a table of ATenDispatch has the kernels for CUDA, for sparse tensors there, and for all.
constexpr std::array<at::Backend, 3> kPlaces = {at::Backend::CUDA, at::Backend::SparseCUDA,
                                                at::Backend::Undefined};

// What autograd calls directly is in no table, so that what is there has a kernel.
template <class Functions>
bool only_calls_others(const Functions&) {
  return false;
}

}  // namespace torch::lms

#include <torch/csrc/lms/compat/interception_tables.h>
