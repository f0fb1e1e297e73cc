// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BFC_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BFC_H_

#include <unordered_map>
#include <vector>

#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/core/victims.h"

namespace tensorflow {
namespace lms {

struct Idle {
  double cost;
  size_t index;
};
using IdleMap = std::unordered_map<const void*, Idle>;

// The private parts of the allocator that reclaim needs. Takes the allocator's lock in each call;
// callers hold the engine's, or no lock.
class BfcAccess {
 public:
  // What the allocator does without Large Model Support: null when no free chunk serves.
  static void* AllocateOnce(BfcAllocator* allocator, size_t bytes, uint64_t freed_before);
  // Gives back what the block at `ptr` has beyond `rounded` bytes: the allocator hands out a chunk
  // whole that is less than twice the request.
  static void Trim(BfcAllocator* allocator, void* ptr, size_t rounded);
  // One segment for each region, in the order of Regions.
  static std::vector<::lms::Segment> Segments(BfcAllocator* allocator, const IdleMap& idle);
  static std::vector<void*> Regions(BfcAllocator* allocator);
  // Gives those of the regions that are wholly free back to the device. Returns whether any was.
  static bool Release(BfcAllocator* allocator, const std::vector<void*>& regions);
  // What must be given back before a new region of this size can be had; 0 when it never can.
  static size_t Shortfall(BfcAllocator* allocator, size_t rounded);
  // Makes the next region all that is left: many small ones keep neighbours apart.
  static void GrowAtOnce(BfcAllocator* allocator);
  // Sets aside room for what is too small to move, so that it does not keep apart the holes that
  // large requests need: many free chunks which best fit takes for small requests only.
  static void SetSmallApart(BfcAllocator* allocator);
  static size_t RoundedBytes(size_t bytes);
  // Wakes those that wait for memory.
  static void Notify(BfcAllocator* allocator);

  struct Numbers {
    int64_t allocs, in_use, peak_in_use, largest, limit, reserved, peak_reserved;
  };
  static Numbers Stats(BfcAllocator* allocator);
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BFC_H_
