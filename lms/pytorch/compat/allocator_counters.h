// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the caching allocator counts since PyTorch 1.4. Included by the implementations of
// allocator.h.

namespace c10::cuda::lms {

inline size_t reserved_bytes(DeviceIndex device) {
  const auto stats = CUDACachingAllocator::getDeviceStats(device);
  return static_cast<size_t>(stats.reserved_bytes[0].current);
}

inline size_t allocated_bytes(DeviceIndex device, Pool pool) {
  const auto stats = CUDACachingAllocator::getDeviceStats(device);
  return static_cast<size_t>(stats.allocated_bytes[static_cast<size_t>(pool)].current);
}

}  // namespace c10::cuda::lms
