// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/bfc.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace tensorflow {
namespace lms {
namespace {

// What is not worth a chunk of its own: the rest of a small block, and an eighth of a large one.
constexpr size_t kLeastTrimmed = 64 << 10;
constexpr size_t kKeptPart = 8;

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
      ::lms::Cell cell;
      cell.state = chunk->in_use() ? ::lms::Cell::State::kBusy : ::lms::Cell::State::kFree;
      cell.bytes = chunk->size;
      cell.cost = 0;
      cell.victim = 0;
      const auto found = chunk->in_use() ? idle.find(chunk->ptr) : idle.end();
      if (found != idle.end()) {
        cell.state = ::lms::Cell::State::kIdle;
        cell.cost = found->second.cost;
        cell.victim = found->second.index;
      }
      segment.cells.push_back(cell);
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

size_t BfcAccess::Shortfall(BfcAllocator* allocator, size_t rounded) {
  mutex_lock lock(allocator->lock_);
  if (rounded > allocator->memory_limit_) return 0;
  size_t reserved = 0;
  for (const auto& region : allocator->region_manager_.regions()) reserved += region.memory_size();
  const size_t room = allocator->memory_limit_ > reserved ? allocator->memory_limit_ - reserved : 0;
  return rounded > room ? rounded - room : 1;
}

void BfcAccess::GrowAtOnce(BfcAllocator* allocator) {
  mutex_lock lock(allocator->lock_);
  allocator->curr_region_allocation_bytes_ = BfcAllocator::RoundedBytes(allocator->memory_limit_);
}

void BfcAccess::SetSmallApart(BfcAllocator* allocator) {
  constexpr size_t kChunk = 16 << 10, kFence = 256, kMost = 512;
  const size_t count = std::min(allocator->memory_limit_ / 64 / kChunk, kMost);
  std::vector<void*> chunks;
  for (size_t i = 0; i < count; ++i) {
    void* chunk = AllocateOnce(allocator, kChunk, 0);
    // Never freed: keeps the chunk from growing together with its neighbour.
    void* fence = AllocateOnce(allocator, kFence, 0);
    if (chunk != nullptr) chunks.push_back(chunk);
    if (fence == nullptr) break;
  }
  for (void* chunk : chunks) allocator->DeallocateRaw(chunk);
}

size_t BfcAccess::RoundedBytes(size_t bytes) { return BfcAllocator::RoundedBytes(bytes); }

void BfcAccess::Notify(BfcAllocator* allocator) { allocator->retry_helper_.NotifyDealloc(); }

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
          reserved,
          reserved};
}

}  // namespace lms
}  // namespace tensorflow
