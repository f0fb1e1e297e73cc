// SPDX-License-Identifier: Apache-2.0
#include "cost.h"

#include <limits>

namespace lms {
namespace {

// What was used last is likely to be used first, and its room will be needed again by then. It
// costs as much as 1 + kRecency times its bytes of what was used least recently: enough for an old
// storage to go first that is a few times as large, not for any amount of old bytes, which all have
// to come back as well.
constexpr double kRecency = 7;

// Of the same bytes, fewer storages are better: each of many small ones may have been used late,
// and then holds up the copies behind it, and the holes that they leave are small. Each counts as
// so much of what could leave more than it is. Steps of 22 runs of four models on the dry device
// took 3.1% less time in the mean, and of 20 others 1.8%; with half of it the 22 took 2.1% less,
// with a quarter 0.9%.
constexpr double kOfCandidates = 1.0 / 1024;

// The device finishes all of its work before it takes memory back, and the host is no longer ahead
// of it. How much that is worth depends on how long ops take, which grows with the memory that they
// are made for: so it costs this part of it. With more, older storages stay longer than they are
// worth, with less the host waits more often. Against 1/32, the second to fourth step of 17 runs on
// the dry device took 1.6% less time in the mean, at best 9% and at worst 1% more; with 1/12 they
// took 1.2% less, with 1/2 0.3%.
constexpr double kOfMemory = 1.0 / 6;

// What is used again within so many ops does not leave early: it would have to come back at once.
// With more, less can leave early, with less what is used in a short cycle leaves for each other.
constexpr std::uint64_t kSoon = 128;

class CopyCost final : public Cost {
 public:
  double evict(const Eviction& eviction) const override {
    const double copies = eviction.clean ? 1 : 2;  // back, and out unless a copy is kept
    const double recency = static_cast<double>(eviction.oldest - eviction.age) /
                           (static_cast<double>(eviction.oldest) + 1);
    const double bytes = static_cast<double>(eviction.bytes) +
                         kOfCandidates * static_cast<double>(eviction.candidates);
    return bytes * copies * (1 + kRecency * recency);
  }
  double replace_segments(std::size_t memory) const override {
    return kOfMemory * static_cast<double>(memory);
  }
};

}  // namespace

const Cost& default_cost() {
  static const CopyCost cost;
  return cost;
}

double EarlyCost::evict(const Eviction& eviction) const {
  const bool leaves = eviction.last_mark <= mark_ && eviction.until >= kSoon;
  return leaves ? default_cost().evict(eviction) : std::numeric_limits<double>::infinity();
}

}  // namespace lms
