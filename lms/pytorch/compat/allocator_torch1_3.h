// SPDX-License-Identifier: Apache-2.0
#pragma once

// The caching allocator of PyTorch 1.3 and before, which may take all of the device; included by
// allocator.h. It counts two sums without its lock, so what it holds is the hook's to tell.

namespace c10::cuda::lms {

constexpr bool kRefusesLate = false;

inline double memory_fraction(DeviceIndex) { return 1; }

inline size_t requested_bytes(DeviceIndex) { return SIZE_MAX; }  // it does not count them

inline bool lacks_expandable_segments() { return false; }  // there is no such thing

}  // namespace c10::cuda::lms
