// SPDX-License-Identifier: Apache-2.0
// The bytes that a view touches, and whether two views touch a byte in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simcuda::order {

// `run` bytes, repeated along each dimension: outermost first, no dimension of one or of step 0.
class Region {
 public:
  struct Dimension {
    int64_t count, step;
    bool operator==(const Dimension&) const = default;
  };

  Region(uintptr_t begin, size_t bytes) : begin_(begin), run_(bytes), extent_(bytes) {}
  // A strided view: sizes and strides in elements of `element` bytes.
  Region(uintptr_t begin, size_t element, int dimensions, const int64_t* sizes,
         const int64_t* strides);

  uintptr_t begin() const { return begin_; }
  uintptr_t end() const { return begin_ + extent_; }  // behind the last byte
  bool empty() const { return extent_ == 0; }
  bool solid() const { return dimensions_.empty(); }  // touches every byte between the two
  bool operator==(const Region&) const = default;

  // Exact, but for a pair so intertwined that an answer would take too long: that is said to be
  // apart, because a report must never be wrong.
  bool meets(const Region& other) const;

 private:
  uintptr_t begin_;
  size_t run_, extent_;
  std::vector<Dimension> dimensions_;
};

}  // namespace simcuda::order
