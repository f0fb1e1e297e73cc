// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_SMALL_SLABS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_SMALL_SLABS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "tensorflow/core/common_runtime/lms/compat.h"

namespace tensorflow {
namespace lms {

// Parts of an allocator's memory set aside for what is too small to move: anywhere else it would
// keep apart the holes that large requests need. A slab is equal slots with a divider between any
// two, so that no larger request fits. Slots are chunks of the allocator like any other, which
// frees them by itself.
//
// Takes the allocator's lock in each call; callers hold the engine's, or no lock.
class SmallSlabs {
 public:
  explicit SmallSlabs(BfcAllocator* allocator) : allocator_(allocator) {}

  // Of all of them.
  size_t Bytes() const;
  // Sets aside one of `bytes`, near the end of the pool. False when there is no room for it.
  bool Add(size_t bytes);
  // A free part of a slot; null when there is none of this size.
  void* Allocate(size_t bytes, uint64_t freed_before);
  // Gives back those without a used slot.
  void ReleaseUnused();

 private:
  struct Slab {
    size_t bytes = 0;
    size_t slots = 0;
  };
  using ByAddress = std::map<const char*, Slab>;

  // Under the allocator's lock. A handle is of a chunk.
  size_t LastFree(size_t bytes) const;
  size_t Split(size_t handle, size_t bytes);
  void* Claim(size_t handle, size_t requested);
  size_t TakeEnd(size_t handle, size_t bytes);
  size_t CutSlots(size_t handle, size_t bytes);
  bool Holds(const void* ptr) const;
  bool IsUnused(ByAddress::const_iterator slab, std::vector<void*>* dividers) const;

  BfcAllocator* const allocator_;
  ByAddress slabs_;  // under the allocator's lock
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_SMALL_SLABS_H_
