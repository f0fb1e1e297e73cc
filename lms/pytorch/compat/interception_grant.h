// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private members, before PyTorch 1.6: an explicit instantiation may name them.
namespace torch::lms {

template <class Tag, auto Member>
struct Grant {
  friend auto member(Tag) { return Member; }
};

}  // namespace torch::lms
