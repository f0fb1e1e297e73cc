// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>

namespace c10::cuda::lms {

// What the allocator counts of a device and its user is not to see: errors that were no errors, and
// blocks that were looked at and given back. It must be told of all that resets the statistics.
class Unseen {
  using DeviceStats = CachingDeviceAllocator::DeviceStats;
  static constexpr std::size_t kTypes = std::tuple_size<decltype(DeviceStats::allocation)>::value;
  static constexpr std::size_t kActive = 2 * kTypes;  // of them: where those of active blocks are
  static constexpr std::size_t kOfBlocks = 7 * kTypes + 1;
  static constexpr std::size_t kStats = kOfBlocks + 2 * kTypes + 1;

  // Those of blocks, then those of segments, which are what they are told to be.
  template <class Stats>
  static auto stats_of(Stats& stats) {
    std::array<decltype(&stats.oversize_segments), kStats> all{};
    auto* next = all.begin();
    const auto add = [&next](auto& array) {
      for (auto& stat : array) {
        *next++ = &stat;
      }
    };
    for (auto* array :
         {&stats.allocation, &stats.allocated_bytes, &stats.active, &stats.active_bytes,
          &stats.inactive_split, &stats.inactive_split_bytes, &stats.requested_bytes}) {
      add(*array);
    }
    *next++ = &stats.oversize_allocations;
    add(stats.segment);
    add(stats.reserved_bytes);
    *next++ = &stats.oversize_segments;
    return all;
  }

 public:
  // Errors that the user saw, less those that were counted.
  void add_ooms(std::int64_t seen) { ooms_ += seen; }

  // Between the two, so many blocks were taken and given back. Whether that has raised a peak: the
  // allocator's must be reset then, and those that were before are kept here. Where others have
  // taken or freed as well, what was whose cannot be told, and is counted. Blocks that streams have
  // used, which may have been freed meanwhile, are active until then: what was given back was as
  // long active as allocated.
  bool add_blocks(const DeviceStats& before, const DeviceStats& after, std::int64_t taken,
                  std::int64_t given_back) {
    const auto old = stats_of(before), now = stats_of(after);
    const auto& all = before.allocation[0];  // of all sizes
    const auto& all_now = after.allocation[0];
    if (all_now.allocated - all.allocated == taken && all_now.freed - all.freed == given_back) {
      for (std::size_t i = 0; i < kOfBlocks; ++i) {
        const std::size_t of = i >= kActive && i < 2 * kActive ? i - kActive : i;
        freed_[i] += now[of]->freed - old[of]->freed;
      }
    }
    bool raised = false;
    for (std::size_t i = 0; i < kStats; ++i) {
      raised = raised || now[i]->peak > old[i]->peak;
    }
    if (raised) {
      for (std::size_t i = 0; i < kStats; ++i) {
        peaks_[i] = std::max({peaks_[i], old[i]->peak, now[i]->current});
      }
    }
    return raised;
  }

  // As the user is to see them.
  DeviceStats correct(DeviceStats stats) const {
    stats.num_ooms += ooms_;
    const auto each = stats_of(stats);
    for (std::size_t i = 0; i < kOfBlocks; ++i) {
      each[i]->allocated -= freed_[i];
      each[i]->freed -= freed_[i];
    }
    for (std::size_t i = 0; i < kStats; ++i) {
      each[i]->peak = std::max(each[i]->peak, peaks_[i]);
    }
    return stats;
  }

  void reset_peaks() { peaks_ = {}; }

  void reset_accumulated() {
    ooms_ = 0;
    freed_ = {};
  }

 private:
  std::int64_t ooms_ = 0;
  std::array<std::int64_t, kOfBlocks> freed_{};  // of blocks that were given back
  std::array<std::int64_t, kStats> peaks_{};     // that were, at the last reset of the allocator's
};

}  // namespace c10::cuda::lms
