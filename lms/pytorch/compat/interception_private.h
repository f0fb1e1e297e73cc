// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private members of the dispatcher, from PyTorch 1.2 to 1.5.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/lms/compat/interception_grant.h>

namespace torch::lms {

struct Entry {
  friend auto member(Entry);
};
template struct Grant<Entry, &c10::OperatorHandle::operatorIterator_>;

inline auto find_op(const c10::OperatorName& name) {
  return c10::Dispatcher::singleton().findSchema(name);
}

}  // namespace torch::lms
