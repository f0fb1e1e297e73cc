// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/bfc.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace tensorflow {
namespace lms {
namespace {

// What is not worth a chunk of its own: less makes more chunks to look through, more leaves as much
// unused behind a buffer.
constexpr size_t kLeastTrimmed = 64 << 10;

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
  if (rest < kLeastTrimmed) return;
  const auto id = chunk->allocation_id;
  chunk->allocation_id = -1;  // SplitChunk wants a free one
  allocator->SplitChunk(handle, rounded);
  allocator->ChunkFromHandle(handle)->allocation_id = id;  // the chunk itself may have moved
  allocator->stats_.bytes_in_use -= static_cast<int64_t>(rest);
}

std::vector<::lms::Segment> BfcAccess::Segments(BfcAllocator* allocator,
                                                const ::lms::IdleMap& idle) {
  mutex_lock lock(allocator->lock_);
  std::vector<::lms::Segment> segments;
  for (const auto& region : allocator->region_manager_.regions()) {
    ::lms::Segment segment;
    segment.can_hold = true;
    segment.releasable = true;
    for (auto handle = allocator->region_manager_.get_handle(region.ptr());
         handle != BfcAllocator::kInvalidChunkHandle;) {
      const auto* chunk = allocator->ChunkFromHandle(handle);
      segment.blocks.push_back(chunk->in_use() ? ::lms::used_block(chunk->ptr, chunk->size, idle)
                                               : ::lms::free_block(chunk->size));
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

size_t BfcAccess::RoundedBytes(size_t bytes) { return BfcAllocator::RoundedBytes(bytes); }

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

std::vector<::lms::Segment> BfcLists::segments(const ::lms::IdleMap& idle) {
  regions_ = BfcAccess::Regions(allocator_);
  return BfcAccess::Segments(allocator_, idle);
}

void BfcLists::release_segments(const std::vector<size_t>& indices) {
  std::vector<void*> chosen;
  for (const size_t i : indices) {
    if (i < regions_.size()) chosen.push_back(regions_[i]);
  }
  BfcAccess::Release(allocator_, chosen);
}

void BfcLists::settle_and_release() {
  BfcAccess::Release(allocator_, BfcAccess::Regions(allocator_));
}

}  // namespace lms
}  // namespace tensorflow
