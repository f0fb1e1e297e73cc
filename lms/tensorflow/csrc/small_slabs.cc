// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/small_slabs.h"

#include <algorithm>
#include <iterator>

#include "tensorflow/core/common_runtime/lms/bfc.h"

namespace tensorflow {
namespace lms {
namespace {

// A slab's slots take what is too small to move: a larger one wastes more behind a small buffer, a
// smaller one leaves buffers between the large ones. What keeps them apart is as small as the
// allocator's chunks can be, and lost for each.
constexpr size_t kSlot = 4096;
constexpr size_t kDivider = 256;

}  // namespace

// Marks a chunk that is free, and in no bin, as in use.
void* SmallSlabs::Claim(size_t handle, size_t requested) {
  auto* chunk = allocator_->ChunkFromHandle(handle);
  chunk->requested_size = static_cast<int64_t>(requested);
  chunk->allocation_id = allocator_->next_allocation_id_++;
  const int64_t bytes = static_cast<int64_t>(chunk->size);
  auto& stats = allocator_->stats_;
  ++stats.num_allocs;
  stats.bytes_in_use += bytes;
  stats.peak_bytes_in_use = std::max<int64_t>(stats.peak_bytes_in_use, stats.bytes_in_use);
  stats.largest_alloc_size = std::max<int64_t>(stats.largest_alloc_size, bytes);
  return chunk->ptr;
}

// Splits a chunk that is free, and in no bin. Returns its rest, in no bin either.
size_t SmallSlabs::Split(size_t handle, size_t bytes) {
  allocator_->SplitChunk(handle, bytes);
  const size_t rest = allocator_->ChunkFromHandle(handle)->next;
  allocator_->RemoveFreeChunkFromBin(rest);
  return rest;
}

// The last free chunk that is large enough.
size_t SmallSlabs::LastFree(size_t bytes) const {
  size_t last = BfcAllocator::kInvalidChunkHandle;
  for (const auto& region : allocator_->region_manager_.regions()) {
    for (auto handle = allocator_->region_manager_.get_handle(region.ptr());
         handle != BfcAllocator::kInvalidChunkHandle;) {
      const auto* chunk = allocator_->ChunkFromHandle(handle);
      if (!chunk->in_use() && chunk->size >= bytes) last = handle;
      handle = chunk->next;
    }
  }
  return last;
}

size_t SmallSlabs::Bytes() const {
  mutex_lock lock(allocator_->lock_);
  size_t bytes = 0;
  for (const auto& slab : slabs_) bytes += slab.second.bytes;
  return bytes;
}

// The end of a free chunk, in no bin.
size_t SmallSlabs::TakeEnd(size_t handle, size_t bytes) {
  allocator_->RemoveFreeChunkFromBin(handle);
  const size_t before = allocator_->ChunkFromHandle(handle)->size - bytes;
  if (before == 0) return handle;
  const size_t end = Split(handle, before);
  allocator_->InsertFreeChunkIntoBin(handle);
  return end;
}

// A divider at either end, and between any two slots: free slots do not grow together. Returns how
// many slots there are.
size_t SmallSlabs::CutSlots(size_t handle, size_t bytes) {
  size_t slots = 0;
  for (size_t left = bytes; left >= 2 * kDivider + kSlot; left -= kDivider + kSlot) {
    const size_t slot = Split(handle, kDivider);
    Claim(handle, kDivider);
    handle = Split(slot, kSlot);
    allocator_->InsertFreeChunkIntoBin(slot);
    ++slots;
  }
  Claim(handle, kDivider);
  return slots;
}

bool SmallSlabs::Add(size_t bytes) {
  const size_t size = BfcAccess::RoundedBytes(bytes);
  if (!BfcAccess::HasFree(allocator_, size)) {
    // Makes the allocator ask the device for more.
    void* room = BfcAccess::AllocateOnce(allocator_, size, /*freed_before=*/0);
    if (room == nullptr) return false;
    allocator_->DeallocateRaw(room);
  }
  mutex_lock lock(allocator_->lock_);
  const size_t free = LastFree(size);
  if (free == BfcAllocator::kInvalidChunkHandle) return false;  // another thread was faster
  const size_t end = TakeEnd(free, size);
  Slab& slab = slabs_[static_cast<const char*>(allocator_->ChunkFromHandle(end)->ptr)];
  slab.bytes = size;
  slab.slots = CutSlots(end, size);
  return true;
}

bool SmallSlabs::Holds(const void* ptr) const {
  const auto next = slabs_.upper_bound(static_cast<const char*>(ptr));
  if (next == slabs_.begin()) return false;
  const auto slab = std::prev(next);
  return ptr < slab->first + slab->second.bytes;
}

void* SmallSlabs::Allocate(size_t bytes, uint64_t freed_before) {
  const size_t rounded = BfcAccess::RoundedBytes(bytes);
  mutex_lock lock(allocator_->lock_);
  const int last = allocator_->BinNumForSize(kSlot);
  for (int bin = allocator_->BinNumForSize(rounded); bin <= last; ++bin) {
    for (const auto handle : allocator_->BinFromIndex(bin)->free_chunks) {
      const auto* chunk = allocator_->ChunkFromHandle(handle);
      if (chunk->size < rounded || !Holds(chunk->ptr)) continue;
      if (freed_before > 0 && freed_before < chunk->freed_at_count) continue;
      allocator_->RemoveFreeChunkFromBin(handle);
      if (chunk->size > rounded) allocator_->SplitChunk(handle, rounded);
      return Claim(handle, bytes);
    }
  }
  return nullptr;
}

// Whether no slot is used; then all dividers are in `dividers`.
bool SmallSlabs::IsUnused(ByAddress::const_iterator slab, std::vector<void*>* dividers) const {
  auto* chunk = allocator_->ChunkFromHandle(allocator_->region_manager_.get_handle(slab->first));
  for (size_t i = 0;; ++i) {
    dividers->push_back(chunk->ptr);
    if (i == slab->second.slots) return true;
    chunk = allocator_->ChunkFromHandle(chunk->next);
    if (chunk->in_use() || chunk->size != kSlot) return false;
    chunk = allocator_->ChunkFromHandle(chunk->next);
  }
}

void SmallSlabs::ReleaseUnused() {
  std::vector<void*> all;
  {
    mutex_lock lock(allocator_->lock_);
    for (auto slab = slabs_.begin(); slab != slabs_.end();) {
      std::vector<void*> dividers;
      const bool unused = IsUnused(slab, &dividers);
      if (unused) all.insert(all.end(), dividers.begin(), dividers.end());
      slab = unused ? slabs_.erase(slab) : std::next(slab);
    }
  }
  for (void* divider : all) allocator_->DeallocateRaw(divider);
}

}  // namespace lms
}  // namespace tensorflow
