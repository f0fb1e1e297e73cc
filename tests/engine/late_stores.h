// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Stores that take long to reach memory. What the thread stores after them waits for them, while
// what it loads does not: another processor sees the two in the other order, if nothing prevents
// it.
class LateStores {
 public:
  void operator()() {
    for (int i = 0; i < kStores; ++i) {
      seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
      memory_[seed_ >> 32 & (kBytes - 1)] = 1;
    }
  }

 private:
  static constexpr int kStores = 12;                           // fewer than a processor keeps
  static constexpr std::size_t kBytes = std::size_t{1} << 26;  // more than its cache holds
  std::vector<char> memory_ = std::vector<char>(kBytes);
  std::uint64_t seed_ = 1;
};
