// SPDX-License-Identifier: Apache-2.0
// The races that were found: told once each, counted, and left out where that has a reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace simcuda::order {

struct Party {
  std::string name;   // of the operation
  std::string actor;  // where it ran
  bool write;
  bool host;
  uint64_t number;
};

struct Race {
  Party first, second;
  std::string memory;  // its kind
  uintptr_t base;      // of the allocation
  size_t offset, bytes;
  uint64_t count = 1;
  std::string stack = {};  // Python's, of the second

  bool same(const Race& other) const;  // told as one
  std::string text() const;
  std::string missing() const;
};

// Why a pair of operations is left out. The names are patterns as of a shell; 0 bytes: any.
struct Suppression {
  std::string first, second;
  size_t bytes;
  uint64_t count = 0;
};

class Races {
 public:
  struct Added {
    Race* race;  // as it is kept; null: it is suppressed
    bool fresh;  // not one of those that were told before
  };
  Added add(Race race);
  void suppress(Suppression suppression) { suppressions_.push_back(std::move(suppression)); }
  void clear() { found_.clear(); }

  const std::vector<Race>& found() const { return found_; }
  const std::vector<Suppression>& suppressions() const { return suppressions_; }

 private:
  std::vector<Race> found_;
  std::vector<Suppression> suppressions_;
};

}  // namespace simcuda::order
