// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/lms/compat/implementations.h>

// Seam: the settings of the caching allocator. Its functions have the same names in all versions.
namespace c10::cuda::lms {

// The share of the device that it may take, as set by the user.
double memory_fraction(DeviceIndex device);
// Whether it could have segments that grow, which waste less, and has none.
bool lacks_expandable_segments();

}  // namespace c10::cuda::lms

#include LMS_ALLOCATOR
