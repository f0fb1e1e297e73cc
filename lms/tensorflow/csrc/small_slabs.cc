// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "tensorflow/core/common_runtime/lms/bfc.h"

namespace tensorflow {
namespace lms {
namespace {

// A slab's slots, and what keeps them apart: as small as the allocator's chunks can be.
constexpr size_t kSlot = 4096;
constexpr size_t kDivider = 256;

}  // namespace

// Marks a chunk that is free, and in no bin, as in use.
void* BfcAccess::Claim(BfcAllocator* allocator, size_t handle, size_t requested) {
  auto* chunk = allocator->ChunkFromHandle(handle);
  chunk->requested_size = static_cast<int64_t>(requested);
  chunk->allocation_id = allocator->next_allocation_id_++;
  const int64_t bytes = static_cast<int64_t>(chunk->size);
  auto& stats = allocator->stats_;
  ++stats.num_allocs;
  stats.bytes_in_use += bytes;
  stats.peak_bytes_in_use = std::max<int64_t>(stats.peak_bytes_in_use, stats.bytes_in_use);
  stats.largest_alloc_size = std::max<int64_t>(stats.largest_alloc_size, bytes);
  return chunk->ptr;
}

// Splits a chunk that is free, and in no bin. Returns its rest, in no bin either.
size_t BfcAccess::Split(BfcAllocator* allocator, size_t handle, size_t bytes) {
  allocator->SplitChunk(handle, bytes);
  const size_t rest = allocator->ChunkFromHandle(handle)->next;
  allocator->RemoveFreeChunkFromBin(rest);
  return rest;
}

// The last free chunk that is large enough.
size_t BfcAccess::LastFree(BfcAllocator* allocator, size_t bytes) {
  size_t last = BfcAllocator::kInvalidChunkHandle;
  for (const auto& region : allocator->region_manager_.regions()) {
    for (auto handle = allocator->region_manager_.get_handle(region.ptr());
         handle != BfcAllocator::kInvalidChunkHandle;) {
      const auto* chunk = allocator->ChunkFromHandle(handle);
      if (!chunk->in_use() && chunk->size >= bytes) last = handle;
      handle = chunk->next;
    }
  }
  return last;
}

size_t BfcAccess::SlabBytes(BfcAllocator* allocator, const Slabs& slabs) {
  mutex_lock lock(allocator->lock_);
  size_t bytes = 0;
  for (const auto& slab : slabs) bytes += slab.second.bytes;
  return bytes;
}

bool BfcAccess::AddSlab(BfcAllocator* allocator, Slabs* slabs, size_t bytes) {
  const size_t size = BfcAllocator::RoundedBytes(bytes);
  if (!HasFree(allocator, size)) {
    // Makes the allocator ask the device for more.
    void* room = AllocateOnce(allocator, size, /*freed_before=*/0);
    if (room == nullptr) return false;
    allocator->DeallocateRaw(room);
  }
  mutex_lock lock(allocator->lock_);
  size_t handle = LastFree(allocator, size);
  if (handle == BfcAllocator::kInvalidChunkHandle) return false;  // another thread was faster
  // The slab is the end of it, and in no bin.
  allocator->RemoveFreeChunkFromBin(handle);
  const size_t before = allocator->ChunkFromHandle(handle)->size - size;
  if (before > 0) {
    const size_t end = Split(allocator, handle, before);
    allocator->InsertFreeChunkIntoBin(handle);
    handle = end;
  }
  Slab& slab = (*slabs)[static_cast<const char*>(allocator->ChunkFromHandle(handle)->ptr)];
  slab.bytes = size;
  // A divider at either end, and between any two slots: free slots do not grow together.
  for (size_t left = size; left >= 2 * kDivider + kSlot; left -= kDivider + kSlot) {
    const size_t slot = Split(allocator, handle, kDivider);
    Claim(allocator, handle, kDivider);
    handle = Split(allocator, slot, kSlot);
    allocator->InsertFreeChunkIntoBin(slot);
    ++slab.slots;
  }
  Claim(allocator, handle, kDivider);
  return true;
}

void* BfcAccess::AllocateSmall(BfcAllocator* allocator, const Slabs& slabs, size_t bytes,
                               uint64_t freed_before) {
  const size_t rounded = BfcAllocator::RoundedBytes(bytes);
  mutex_lock lock(allocator->lock_);
  const auto in_slab = [&](const void* ptr) {
    const auto next = slabs.upper_bound(static_cast<const char*>(ptr));
    if (next == slabs.begin()) return false;
    const auto slab = std::prev(next);
    return ptr < slab->first + slab->second.bytes;
  };
  for (int bin = allocator->BinNumForSize(rounded); bin <= allocator->BinNumForSize(kSlot); ++bin) {
    for (const auto handle : allocator->BinFromIndex(bin)->free_chunks) {
      const auto* chunk = allocator->ChunkFromHandle(handle);
      if (chunk->size < rounded || !in_slab(chunk->ptr)) continue;
      if (freed_before > 0 && freed_before < chunk->freed_at_count) continue;
      allocator->RemoveFreeChunkFromBin(handle);
      if (chunk->size > rounded) allocator->SplitChunk(handle, rounded);
      return Claim(allocator, handle, bytes);
    }
  }
  return nullptr;
}

void BfcAccess::ReleaseSlabs(BfcAllocator* allocator, Slabs* slabs) {
  std::vector<void*> dividers;
  {
    mutex_lock lock(allocator->lock_);
    for (auto slab = slabs->begin(); slab != slabs->end();) {
      bool empty = true;
      std::vector<void*> own;
      auto* chunk = allocator->ChunkFromHandle(allocator->region_manager_.get_handle(slab->first));
      for (size_t i = 0; empty; ++i) {
        own.push_back(chunk->ptr);
        if (i == slab->second.slots) break;
        chunk = allocator->ChunkFromHandle(chunk->next);
        empty = !chunk->in_use() && chunk->size == kSlot;
        if (empty) chunk = allocator->ChunkFromHandle(chunk->next);
      }
      if (empty) dividers.insert(dividers.end(), own.begin(), own.end());
      slab = empty ? slabs->erase(slab) : std::next(slab);
    }
  }
  for (void* divider : dividers) allocator->DeallocateRaw(divider);
}

}  // namespace lms
}  // namespace tensorflow
