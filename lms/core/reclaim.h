// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cost.h"
#include "engine.h"
#include "victims.h"

namespace lms {

// How an allocator came by a block.
enum class Route : std::uint8_t {
  kFreeBlock,        // one was free
  kNewSegment,       // the device had memory for a new segment
  kBeyondSoftLimit,  // the same, beyond the soft limit, where that is told apart
  kEvictOne,         // one storage made way, at most
  kEvictSome,        // several did
  kEvictAll,         // all that was idle did
  kReplaceSegments,  // segments were given back to the device for a new one
  kNone,             // there is no room
};
constexpr std::size_t kRoutes = static_cast<std::size_t>(Route::kNone);

// How often each route was taken. Thread-safe, without a lock.
class RouteCounts {
 public:
  void count(Route route) noexcept {
    if (route != Route::kNone) at(route).fetch_add(1, std::memory_order_relaxed);
  }
  std::int64_t of(Route route) const noexcept {
    return counts_[static_cast<std::size_t>(route)].load(std::memory_order_relaxed);
  }
  void reset() noexcept {
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::int64_t>& at(Route route) { return counts_[static_cast<std::size_t>(route)]; }
  std::atomic<std::int64_t> counts_[kRoutes]{};
};

// Idle storages by the address of their block.
struct Idle {
  double cost;         // for Block::cost
  std::size_t victim;  // for Block::victim
};
using IdleMap = std::unordered_map<const void*, Idle>;

inline Block free_block(std::size_t bytes) { return {Block::State::kFree, bytes, 0, 0}; }
// Of a block that cannot be taken, whoever has it.
inline Block busy_block(std::size_t bytes) { return {Block::State::kBusy, bytes, 0, 0}; }
// Of the block at `ptr`, which is in use: idle if its storage is.
inline Block used_block(const void* ptr, std::size_t bytes, const IdleMap& idle) {
  const auto found = idle.find(ptr);
  if (found == idle.end()) return busy_block(bytes);
  return {Block::State::kIdle, bytes, found->second.cost, found->second.victim};
}

// An allocator as `make_room` sees it: one object for each request that found no room, which keeps
// the block that it took. An adaptor implements it over its allocator's own lists.
//
// The engine's lock is held in every call. The allocator's may be held throughout or taken in each
// call, always after the engine's: what another thread takes in between is made up for.
//
// An allocator that cannot be told what to do (the plug-in's, BFC) answers `take_free_block` and
// `take_new_segment` by attempts to allocate, the same for both where it grows by itself. What else
// a request comes with (a time before which the block must have been free, a special place) is
// the attempt's, not the loop's. Where there is nothing to settle or to shrink, the call does
// nothing.
class BlockLists {
 public:
  virtual ~BlockLists() = default;
  // Takes a block that is free, within all limits.
  virtual bool take_free_block() = 0;
  // Asks the device for a segment, within all limits, and takes a block of it.
  virtual bool take_new_segment() = 0;
  // From now on asks for no more than the request needs, or for a place that it should rather not
  // have. False if it does so already.
  virtual bool shrink_segment() { return false; }
  // Takes what is free of the segments for large requests, for a small one. False for a large one,
  // and where nothing is.
  virtual bool borrow() { return false; }
  // All segments with a free or an idle block, with every block of them.
  virtual std::vector<Segment> segments(const IdleMap& idle) = 0;
  // Gives the last `segments()` of these indices, now without a live block, back to the device.
  virtual void release_segments(const std::vector<std::size_t>& indices) = 0;
  // Completes frees that wait for the device, and gives it back all segments that are wholly free.
  virtual void settle_and_release() = 0;
  // Bytes to give back to the device before a new segment for the request fits: 1 where it does; 0
  // if none ever will.
  virtual std::size_t shortfall() = 0;
  // Bytes by which blocks in use and the request exceed a limit on both: so many must leave,
  // wherever they are, before a block may be taken.
  virtual std::size_t over_limit() { return 0; }
};

struct RoomRequest {
  int device = 0;
  std::size_t bytes = 0;              // of the block, as the allocator rounds it
  bool whole_segments = true;         // segments may be emptied and given back to the device for it
  Sizes sizes = Sizes::kFromMinimum;  // of what may be chosen
  bool everything = true;             // when no choice makes room, all that is idle goes
  const Cost* cost = &default_cost();
};

// Evicts idle storages until a block was taken from `lists`, as the policy chooses them, at last
// all, and what is below the minimum size after the rest. kNone when nothing helps. Takes the
// engine's lock, so it is to be called with none that comes after it.
Route make_room(Engine& engine, BlockLists& lists, const RoomRequest& request);

// The same for a page-in for which there is room, but only such as went idle after the mark of this
// number: its copy would have to wait for that op's end. One choice of storages that went idle
// before and are not used again soon leaves for it, where the device has no more memory. kNone when
// none makes room.
Route make_room_early(Engine& engine, BlockLists& lists, int device, std::size_t bytes,
                      std::uint64_t mark);
// Whether that may be done at all: the policy does so, and it is worth it.
bool may_make_room_early(Engine& engine, int device);

// The same for a hole that is to be there and not taken yet: `lists` says that it took a block when
// there is one to be taken. Of what is idle only what a choice needs goes, and what is below the
// minimum size when the rest does not suffice. False when idle storages are not all that is in the
// way.
bool make_hole(Engine& engine, BlockLists& lists, int device, std::size_t bytes);

// Evicts the neighbours nearest to the end of the pool that make a hole there (last_run), whatever
// their cost. False when there are none, or the host has no room for them.
bool make_hole_at_end(Engine& engine, BlockLists& lists, int device, std::size_t bytes);

// Evicts everything idle, for as long as the host has room. Whether anything was.
bool evict_idle(Engine& engine, int device);

}  // namespace lms
