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
// The same for room that is made while there is some: what the last ops used is not to leave for
// that, and costs an infinite amount.
const Cost& early_cost();

}  // namespace lms
