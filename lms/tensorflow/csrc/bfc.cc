// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/bfc.h"

#include <algorithm>
#include <iterator>

#include "absl/container/flat_hash_set.h"

namespace tensorflow {
namespace lms {
namespace {

// What is not worth a chunk of its own: the rest of a small block, and an eighth of a large one.
constexpr size_t kLeastTrimmed = 64 << 10;
constexpr size_t kKeptPart = 8;

// A slab's cells, and what keeps them apart: as small as the allocator's chunks can be.
constexpr size_t kCell = 4096;
constexpr size_t kFence = 256;

}  // namespace

void* BfcAccess::AllocateOnce(BfcAllocator* allocator, size_t bytes, uint64_t freed_before) {
  return allocator->AllocateRawOnce(Allocator::kAllocatorAlignment, bytes,
                                    /*dump_log_on_failure=*/false, freed_before);
}

void BfcAccess::Trim(BfcAllocator* allocator, void* ptr, size_t rounded) {
  mutex_lock lock(allocator->lock_);
  const auto handle = allocator->region_manager_.get_handle(ptr);
  auto* chunk = allocator->ChunkFromHandle(handle);
  const size_t rest = chunk->size - rounded;
  if (rounded < kLeastTrimmed || rest < rounded / kKeptPart) return;
  const auto id = chunk->allocation_id;
  chunk->allocation_id = -1;  // SplitChunk wants a free one
  allocator->SplitChunk(handle, rounded);
  allocator->ChunkFromHandle(handle)->allocation_id = id;  // the chunk itself may have moved
  allocator->stats_.bytes_in_use -= static_cast<int64_t>(rest);
}

std::vector<::lms::Segment> BfcAccess::Segments(BfcAllocator* allocator, const IdleMap& idle) {
  mutex_lock lock(allocator->lock_);
  std::vector<::lms::Segment> segments;
  for (const auto& region : allocator->region_manager_.regions()) {
    ::lms::Segment segment;
    segment.can_hold = true;
    segment.releasable = true;
    for (auto handle = allocator->region_manager_.get_handle(region.ptr());
         handle != BfcAllocator::kInvalidChunkHandle;) {
      const auto* chunk = allocator->ChunkFromHandle(handle);
      ::lms::Block block;
      block.state = chunk->in_use() ? ::lms::Block::State::kBusy : ::lms::Block::State::kFree;
      block.bytes = chunk->size;
      block.cost = 0;
      block.victim = 0;
      const auto found = chunk->in_use() ? idle.find(chunk->ptr) : idle.end();
      if (found != idle.end()) {
        block.state = ::lms::Block::State::kIdle;
        block.cost = found->second.cost;
        block.victim = found->second.index;
      }
      segment.blocks.push_back(block);
      handle = chunk->next;
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

std::vector<void*> BfcAccess::Regions(BfcAllocator* allocator) {
  mutex_lock lock(allocator->lock_);
  std::vector<void*> regions;
  for (const auto& region : allocator->region_manager_.regions()) regions.push_back(region.ptr());
  return regions;
}

bool BfcAccess::Release(BfcAllocator* allocator, const std::vector<void*>& regions) {
  mutex_lock lock(allocator->lock_);
  absl::flat_hash_set<void*> free;
  for (const auto& region : allocator->region_manager_.regions()) {
    if (std::find(regions.begin(), regions.end(), region.ptr()) == regions.end()) continue;
    const auto handle = allocator->region_manager_.get_handle(region.ptr());
    const auto* chunk = allocator->ChunkFromHandle(handle);
    if (!chunk->in_use() && chunk->size == region.memory_size()) free.insert(region.ptr());
  }
  if (!free.empty()) allocator->DeallocateRegions(free);
  return !free.empty();
}

size_t BfcAccess::Unreserved(BfcAllocator* allocator) {
  mutex_lock lock(allocator->lock_);
  size_t reserved = 0;
  for (const auto& region : allocator->region_manager_.regions()) reserved += region.memory_size();
  return allocator->memory_limit_ > reserved ? allocator->memory_limit_ - reserved : 0;
}

size_t BfcAccess::Shortfall(BfcAllocator* allocator, size_t rounded) {
  if (rounded > allocator->memory_limit_) return 0;
  const size_t room = Unreserved(allocator);
  return rounded > room ? rounded - room : 1;
}

bool BfcAccess::HasFree(BfcAllocator* allocator, size_t rounded) {
  mutex_lock lock(allocator->lock_);
  for (int bin = BfcAllocator::kNumBins - 1; bin >= 0; --bin) {
    const auto& chunks = allocator->BinFromIndex(bin)->free_chunks;  // by size
    if (!chunks.empty()) return allocator->ChunkFromHandle(*chunks.rbegin())->size >= rounded;
  }
  return false;
}

bool BfcAccess::CanTake(BfcAllocator* allocator, size_t rounded) {
  return HasFree(allocator, rounded) || Unreserved(allocator) >= rounded;
}

void BfcAccess::GrowAtOnce(BfcAllocator* allocator) {
  mutex_lock lock(allocator->lock_);
  allocator->curr_region_allocation_bytes_ = BfcAllocator::RoundedBytes(allocator->memory_limit_);
}

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
  // A fence at either end, and between any two cells: free cells do not grow together.
  for (size_t left = size; left >= 2 * kFence + kCell; left -= kFence + kCell) {
    const size_t cell = Split(allocator, handle, kFence);
    Claim(allocator, handle, kFence);
    handle = Split(allocator, cell, kCell);
    allocator->InsertFreeChunkIntoBin(cell);
    ++slab.cells;
  }
  Claim(allocator, handle, kFence);
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
  for (int bin = allocator->BinNumForSize(rounded); bin <= allocator->BinNumForSize(kCell); ++bin) {
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
  std::vector<void*> fences;
  {
    mutex_lock lock(allocator->lock_);
    for (auto slab = slabs->begin(); slab != slabs->end();) {
      bool empty = true;
      std::vector<void*> own;
      auto* chunk = allocator->ChunkFromHandle(allocator->region_manager_.get_handle(slab->first));
      for (size_t i = 0; empty; ++i) {
        own.push_back(chunk->ptr);
        if (i == slab->second.cells) break;
        chunk = allocator->ChunkFromHandle(chunk->next);
        empty = !chunk->in_use() && chunk->size == kCell;
        if (empty) chunk = allocator->ChunkFromHandle(chunk->next);
      }
      if (empty) fences.insert(fences.end(), own.begin(), own.end());
      slab = empty ? slabs->erase(slab) : std::next(slab);
    }
  }
  for (void* fence : fences) allocator->DeallocateRaw(fence);
}

size_t BfcAccess::RoundedBytes(size_t bytes) { return BfcAllocator::RoundedBytes(bytes); }

void BfcAccess::Notify(BfcAllocator* allocator) { allocator->retry_helper_.NotifyDealloc(); }

BfcAccess::Block BfcAccess::BlockAt(BfcAllocator* allocator, const void* data) {
  mutex_lock lock(allocator->lock_);
  const char* const byte = static_cast<const char*>(data);
  for (const auto& region : allocator->region_manager_.regions()) {
    const char* const begin = static_cast<const char*>(region.ptr());
    if (byte < begin || byte >= begin + region.memory_size()) continue;
    const auto* chunk = allocator->ChunkFromHandle(allocator->region_manager_.get_handle(begin));
    while (byte >= static_cast<const char*>(chunk->ptr) + chunk->size) {
      chunk = allocator->ChunkFromHandle(chunk->next);
    }
    if (chunk->in_use()) return {chunk->ptr, static_cast<int64_t>(chunk->allocation_id)};
  }
  return {nullptr, -1};
}

BfcAccess::Numbers BfcAccess::Stats(BfcAllocator* allocator) {
  mutex_lock lock(allocator->lock_);
  const auto& stats = allocator->stats_;
  int64_t reserved = 0;
  for (const auto& region : allocator->region_manager_.regions()) {
    reserved += static_cast<int64_t>(region.memory_size());
  }
  return {static_cast<int64_t>(stats.num_allocs),
          stats.bytes_in_use,
          stats.peak_bytes_in_use,
          stats.largest_alloc_size,
          static_cast<int64_t>(allocator->memory_limit_),
          reserved};
}

}  // namespace lms
}  // namespace tensorflow
