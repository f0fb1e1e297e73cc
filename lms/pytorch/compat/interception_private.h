// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private members of the dispatcher, before PyTorch 1.6: an explicit instantiation may name them.

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch::lms {

template <class Tag, auto Member>
struct Grant {
  friend auto member(Tag) { return Member; }
};

struct Entry {
  friend auto member(Entry);
};
template struct Grant<Entry, &c10::OperatorHandle::operatorIterator_>;

}  // namespace torch::lms
