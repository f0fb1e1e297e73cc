// SPDX-License-Identifier: Apache-2.0
#include "region.h"

#include <algorithm>

namespace simcuda::order {
namespace {

using Dimension = Region::Dimension;

// What is left of a region from one dimension on, moved to where it is looked at.
struct Part {
  int64_t begin, run;
  const Dimension* dimensions;
  size_t count;

  bool solid() const { return count == 0; }
  int64_t extent() const {
    int64_t bytes = run;
    for (size_t i = 0; i < count; i++) bytes += (dimensions[i].count - 1) * dimensions[i].step;
    return bytes;
  }
  Part inner(int64_t index) const {
    return {begin + index * dimensions->step, run, dimensions + 1, count - 1};
  }
};

// Rounded down, of a positive divisor.
int64_t floor_div(int64_t value, int64_t divisor) {
  return value >= 0 ? value / divisor : -((-value + divisor - 1) / divisor);
}

class Search {
 public:
  bool meet(const Part& a, const Part& b) {
    if (--steps_ < 0) return false;
    int64_t a_extent = a.extent(), b_extent = b.extent();
    if (a.begin + a_extent <= b.begin || b.begin + b_extent <= a.begin) return false;
    if (a.solid() && b.solid()) return true;
    // The first byte of each is touched.
    if (a.solid() && a.begin <= b.begin) return true;
    if (b.solid() && b.begin <= a.begin) return true;
    if (!a.solid() && !b.solid() && a.dimensions->step == b.dimensions->step) {
      return meet_in_step(a, b);
    }
    bool of_a = !a.solid() && (b.solid() || a.dimensions->step >= b.dimensions->step);
    return of_a ? meet_one_by_one(a, b, b_extent) : meet_one_by_one(b, a, a_extent);
  }

 private:
  // Both repeat at the same distance: only the difference of the two indices matters.
  bool meet_in_step(const Part& a, const Part& b) {
    int64_t step = a.dimensions->step;
    Part first = a.inner(0), second = b.inner(0);
    int64_t low = floor_div(b.begin - a.begin - first.extent(), step) + 1;
    int64_t high = floor_div(b.begin - a.begin + second.extent() - 1, step);
    low = std::max(low, -(b.dimensions->count - 1));
    high = std::min(high, a.dimensions->count - 1);
    for (int64_t difference = low; difference <= high; difference++) {
      Part moved = first;
      moved.begin += difference * step;
      if (meet(moved, second)) return true;
    }
    return false;
  }

  // Each repetition of `a` that reaches into the extent of `b`.
  bool meet_one_by_one(const Part& a, const Part& b, int64_t b_extent) {
    int64_t step = a.dimensions->step;
    int64_t low = floor_div(b.begin - a.begin - a.inner(0).extent(), step) + 1;
    int64_t high = floor_div(b.begin + b_extent - 1 - a.begin, step);
    low = std::max<int64_t>(low, 0);
    high = std::min(high, a.dimensions->count - 1);
    for (int64_t index = low; index <= high && steps_ >= 0; index++) {
      if (meet(a.inner(index), b)) return true;
    }
    return false;
  }

  int64_t steps_ = 1 << 20;
};

}  // namespace

Region::Region(uintptr_t begin, size_t element, int dimensions, const int64_t* sizes,
               const int64_t* strides)
    : begin_(begin), run_(element), extent_(element) {
  auto size = static_cast<int64_t>(element);
  int64_t elements = 1;
  int dense = dimensions - 1;
  for (; dense >= 0 && (sizes[dense] == 1 || strides[dense] == elements); dense--) {
    elements *= sizes[dense];
  }
  if (dense < 0) {  // contiguous, as most are
    run_ = extent_ = static_cast<size_t>(elements * size);
    return;
  }
  for (int i = 0; i < dimensions; i++) {
    if (sizes[i] == 0) {
      run_ = extent_ = 0;
      dimensions_.clear();
      return;
    }
    if (sizes[i] > 1 && strides[i] != 0) dimensions_.push_back({sizes[i], strides[i] * size});
  }
  std::sort(dimensions_.begin(), dimensions_.end(),
            [](const Dimension& a, const Dimension& b) { return a.step > b.step; });
  // From the inside: what follows without a gap is one run, or one dimension.
  std::vector<Dimension> outward;
  for (auto d = dimensions_.rbegin(); d != dimensions_.rend(); ++d) {
    if (outward.empty() && d->step <= static_cast<int64_t>(run_)) {
      run_ += static_cast<size_t>((d->count - 1) * d->step);
    } else if (!outward.empty() && d->step == outward.back().count * outward.back().step) {
      outward.back().count *= d->count;
    } else {
      outward.push_back(*d);
    }
  }
  dimensions_.assign(outward.rbegin(), outward.rend());
  extent_ = run_;
  for (const auto& d : dimensions_) extent_ += static_cast<size_t>((d.count - 1) * d.step);
}

bool Region::meets(const Region& other) const {
  if (empty() || other.empty()) return false;
  auto part = [](const Region& r) {
    return Part{static_cast<int64_t>(r.begin_), static_cast<int64_t>(r.run_), r.dimensions_.data(),
                r.dimensions_.size()};
  };
  return Search().meet(part(*this), part(other));
}

}  // namespace simcuda::order
