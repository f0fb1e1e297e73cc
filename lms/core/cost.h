// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace lms {

// An eviction that could be made now, as far as its price depends on it.
struct Eviction {
  std::size_t bytes;
  bool clean;  // its host copy is valid: the eviction copies nothing
  // In ops, since it was last used; where its next use is known, a later one makes it older.
  std::uint64_t age;
  std::uint64_t oldest;    // the greatest age of all
  std::size_t candidates;  // bytes of all that could be evicted
  // In ops, until its next use, as far as that is known; else as long as it was not used.
  std::uint64_t until = 0;
  // Number of the mark after its last use; UINT64_MAX where that is not known, or is on several
  // streams.
  std::uint64_t last_mark = UINT64_MAX;
};

// What it costs to make room, in bytes of copies: which victims are chosen depends on it, and
// nothing else does.
class Cost {
 public:
  virtual ~Cost() = default;
  virtual double evict(const Eviction& eviction) const = 0;
  // To give segments back to the device and ask it for another, of so many bytes in all.
  virtual double replace_segments(std::size_t memory) const = 0;
};

// By what is copied out now and back later, and the least recently used first.
const Cost& default_cost();
// The same for room that is made while there is some, but only such as went idle after a mark. What
// would leave no better, or is used again soon, costs an infinite amount.
class EarlyCost final : public Cost {
 public:
  explicit EarlyCost(std::uint64_t mark) : mark_(mark) {}
  double evict(const Eviction& eviction) const override;
  double replace_segments(std::size_t memory) const override {
    return default_cost().replace_segments(memory);
  }

 private:
  const std::uint64_t mark_;
};

}  // namespace lms
