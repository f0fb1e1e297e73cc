// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

namespace lms {

// The most bytes that were in use, or held, at a time of late: in this period or the one before. A
// period ends when sixteen times its own peak was given out: a training step gives out about what
// is in use at its peak, so that it is of sixteen steps or more, however long they take.
class HighWater {
 public:
  void gave(std::size_t bytes, std::size_t in_use) {
    peak_ = std::max(peak_, in_use);
    given_ += bytes;
    if (given_ / 16 < peak_) return;
    before_ = peak_;
    peak_ = in_use;
    given_ = 0;
  }
  // As if it began now.
  void forget(std::size_t in_use) {
    *this = HighWater();
    peak_ = in_use;
  }
  std::size_t bytes() const { return std::max(peak_, before_); }

 private:
  std::size_t peak_ = 0;
  std::size_t before_ = 0;
  std::size_t given_ = 0;
};

}  // namespace lms
