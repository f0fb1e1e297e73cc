// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/lms/compat/implementations.h>

#include <cstddef>
#include <cstdint>

// Seam: what the caching allocator may do, and holds.
namespace c10::cuda::lms {

// The share of the device that it may take, as set by the user.
double memory_fraction(DeviceIndex device);
// Whether it could have segments that grow, which waste less, and has none.
bool lacks_expandable_segments();
// Bytes that it holds of the device.
size_t reserved_bytes(DeviceIndex device);
// Those of them that are allocated: all, or those of one of its pools.
enum class Pool : uint8_t { kAll, kSmall, kLarge };
size_t allocated_bytes(DeviceIndex device, Pool pool);
// What its users have asked for, with what they have freed and other streams still use. SIZE_MAX
// where it does not count them.
size_t requested_bytes(DeviceIndex device);
// constexpr bool kRefusesLate: whether it takes nothing that is too late for an EarlyRoomOnly.

}  // namespace c10::cuda::lms

#include LMS_ALLOCATOR
