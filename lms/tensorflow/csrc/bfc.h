// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BFC_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BFC_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/core/reclaim.h"

namespace tensorflow {
namespace lms {

// The private parts of the allocator that reclaim needs. Takes the allocator's lock in each call;
// callers hold the engine's, or no lock.
class BfcAccess {
 public:
  // What the allocator does without Large Model Support: null when no free chunk serves.
  static void* AllocateOnce(BfcAllocator* allocator, size_t bytes, uint64_t freed_before);
  // Gives back what the block at `ptr` has beyond `rounded` bytes: the allocator gives a chunk away
  // whole that is less than twice the request.
  static void Trim(BfcAllocator* allocator, void* ptr, size_t rounded);
  // One segment for each region, in the order of Regions.
  static std::vector<::lms::Segment> Segments(BfcAllocator* allocator, const ::lms::IdleMap& idle);
  static std::vector<void*> Regions(BfcAllocator* allocator);
  // Gives those of the regions that are wholly free back to the device. Returns whether any was.
  static bool Release(BfcAllocator* allocator, const std::vector<void*>& regions);
  // What must be given back before a new region of this size can be had; 0 when it never can.
  static size_t Shortfall(BfcAllocator* allocator, size_t rounded);
  // Whether there is a free chunk of this size.
  static bool HasFree(BfcAllocator* allocator, size_t rounded);
  // The same, or the device may still be asked for one.
  static bool CanTake(BfcAllocator* allocator, size_t rounded);
  // Makes the next region all that is left: many small ones keep neighbours apart.
  static void GrowAtOnce(BfcAllocator* allocator);

  static size_t RoundedBytes(size_t bytes);

  // The block that holds the byte at `data`, and the number of its allocation, which no other has.
  struct Block {
    const void* begin;
    int64_t allocation;
  };
  // Begins nowhere when there is none, or it is free.
  static Block BlockAt(BfcAllocator* allocator, const void* data);

  struct Numbers {
    int64_t allocs, in_use, peak_in_use, largest, limit, reserved;
  };
  static Numbers Stats(BfcAllocator* allocator);

 private:
  // Bytes of the device that it may still ask for.
  static size_t Unreserved(BfcAllocator* allocator);
};

// An allocator as make_room sees it, for one request. BFC asks the device for a region by itself
// when no chunk serves.
class BfcLists : public ::lms::BlockLists {
 public:
  BfcLists(BfcAllocator* allocator, size_t rounded) : allocator_(allocator), rounded_(rounded) {}
  bool take_new_segment() override { return take_free_block(); }
  std::vector<::lms::Segment> segments(const ::lms::IdleMap& idle) override;
  void release_segments(const std::vector<size_t>& indices) override;
  void settle_and_release() override;
  size_t shortfall() override { return BfcAccess::Shortfall(allocator_, rounded_); }

 protected:
  BfcAllocator* const allocator_;
  const size_t rounded_;

 private:
  std::vector<void*> regions_;  // of the last segments()
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BFC_H_
