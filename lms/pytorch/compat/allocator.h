// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/lms/compat/implementations.h>

// Seam: the settings of the caching allocator, and its segments. Its functions have the same names
// in all versions.
namespace c10::cuda::lms {

// The share of the device that it may take, as set by the user.
double memory_fraction(DeviceIndex device);
// Whether it could have segments that grow, which waste less, and has none.
bool lacks_expandable_segments();
// Whether memory is mapped and unmapped within the segment.
bool expands(const CUDACachingAllocator::SegmentInfo& segment);

}  // namespace c10::cuda::lms

#include LMS_ALLOCATOR
