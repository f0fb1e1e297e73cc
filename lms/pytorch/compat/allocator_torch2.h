// SPDX-License-Identifier: Apache-2.0
#pragma once

// The caching allocator of PyTorch 2.6 and later; included by allocator.h.

#include <c10/cuda/lms/compat/allocator_counters.h>

#include <algorithm>

namespace c10::cuda::lms {

constexpr bool kRefusesLate = true;

inline double memory_fraction(DeviceIndex device) {
  return CUDACachingAllocator::getMemoryFraction(device);
}

inline size_t requested_bytes(DeviceIndex device) {
  const auto stats = CUDACachingAllocator::getDeviceStats(device);
  return static_cast<size_t>(stats.requested_bytes[0].current);
}

// Whether memory is mapped and unmapped within the segment.
inline bool expands(const CUDACachingAllocator::SegmentInfo& segment) {
  return segment.is_expandable;
}

inline bool lacks_expandable_segments() {
  const auto snapshot = CUDACachingAllocator::snapshot();
  return std::none_of(snapshot.segments.begin(), snapshot.segments.end(), &expands);
}

}  // namespace c10::cuda::lms
