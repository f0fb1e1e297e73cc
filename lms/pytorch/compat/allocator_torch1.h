// SPDX-License-Identifier: Apache-2.0
#pragma once

// The caching allocator of PyTorch 1.13; included by allocator.h. It tells nobody its fraction, so
// `memory_fraction` is the hook's.

namespace c10::cuda::lms {

inline bool lacks_expandable_segments() { return false; }  // there is no such thing

inline bool expands(const CUDACachingAllocator::SegmentInfo&) { return false; }

}  // namespace c10::cuda::lms
