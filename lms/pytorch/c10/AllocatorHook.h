// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/lms/Fences.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <c10/cuda/lms/core/ready.h>
#include <c10/cuda/lms/core/reclaim.h>
#include <c10/cuda/lms/core/switch.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

// Where CUDACachingAllocator and the engine meet. Lock order: engine, then allocator.
namespace c10::cuda::lms {

using ::lms::BlockLists;
using ::lms::IdleMap;
using ::lms::Owed;
using ::lms::Ready;
using ::lms::Route;
using ::lms::Spot;

namespace detail {
extern std::atomic<bool> forked;
extern std::atomic<bool> counting;
extern std::atomic<size_t> device_limit;
extern std::atomic<size_t> soft_limit;
extern std::array<::lms::RouteCounts, C10_COMPILE_TIME_MAX_GPUS> routes;  // by device
}  // namespace detail

inline bool reclaiming() noexcept { return detail::lms_switch.reclaiming(); }

// Counts from `count_allocations` on. Always true, so that it can end a condition.
inline bool count(DeviceIndex device, Route route) {
  if (C10_UNLIKELY(detail::counting.load(std::memory_order_relaxed))) {
    detail::routes[static_cast<size_t>(device)].count(route);
  }
  return true;
}

inline bool over_limit(size_t reserved) noexcept {
  const size_t limit = detail::device_limit.load(std::memory_order_relaxed);
  return C10_UNLIKELY(limit != 0) && reclaiming() && reserved > limit;
}

// While one lives, this thread takes no segment that is larger than its first block needs.
class LeastSegments {
 public:
  enum class Small : uint8_t {
    kBorrowLast,   // of a large segment, so that none is split while there are others
    kBorrowFirst,  // so that segments are left for a stream whose pool has none to borrow of
  };
  explicit LeastSegments(Small small) noexcept;
  ~LeastSegments();
  LeastSegments(const LeastSegments&) = delete;
  LeastSegments& operator=(const LeastSegments&) = delete;

  static bool active() noexcept;
};

// While one lives, an allocation of this thread takes no block that went idle after the mark of
// this number. Where all that is free is such, others make way, or it ends by NoFreeRoom. Where
// nothing is free it is like any other, and the scope is over.
class EarlyRoomOnly {
 public:
  explicit EarlyRoomOnly(uint64_t latest) noexcept;
  ~EarlyRoomOnly();
  EarlyRoomOnly(const EarlyRoomOnly&) = delete;
  EarlyRoomOnly& operator=(const EarlyRoomOnly&) = delete;

  static bool active() noexcept;
  // Whether something was.
  static bool refused() noexcept;
  static void end() noexcept;
};

// Whether an EarlyRoomOnly refuses what was found to suit a page-in best.
bool too_late(const Spot& first) noexcept;
// Whether any of a free block is such that it would.
bool too_late(const Owed& owed, size_t size);

// Whether a hole is looked for before a segment is taken.
inline bool over_soft_limit(size_t reserved) noexcept {
  const size_t limit = detail::soft_limit.load(std::memory_order_relaxed);
  return reclaiming() && ((C10_UNLIKELY(limit != 0) && reserved > limit) ||
                          LeastSegments::active() || EarlyRoomOnly::refused());
}

// Bytes that may still be reserved under the device limit.
size_t limit_headroom(size_t reserved) noexcept;

// With no lock held: a storage may die and run any deleter.
void release_acquired();

inline void release_if_outermost(const detail::Thread& mine) {
  if (C10_UNLIKELY(mine.holds != nullptr && mine.release_scopes == 0 && mine.engine_scopes == 0)) {
    release_acquired();
  }
}

// Storages kept alive by the engine while it looked at them are let go when the outermost scope of
// the thread ends: their destructors may want the allocator's lock or the GIL. The allocator opens
// one before it takes its lock.
class ReleaseScope {
 public:
  explicit ReleaseScope(detail::Thread& mine = detail::this_thread()) noexcept : mine_(mine) {
    ++mine_.release_scopes;
  }
  ~ReleaseScope() {
    --mine_.release_scopes;
    release_if_outermost(mine_);
  }
  ReleaseScope(const ReleaseScope&) = delete;
  ReleaseScope& operator=(const ReleaseScope&) = delete;

 private:
  detail::Thread& mine_;
};

// Around everything that takes the engine's lock: a ReleaseScope, too.
class EngineScope {
 public:
  explicit EngineScope(detail::Thread& mine = detail::this_thread()) noexcept : mine_(mine) {
    ++mine_.engine_scopes;
  }
  ~EngineScope() {
    --mine_.engine_scopes;
    release_if_outermost(mine_);
  }
  EngineScope(const EngineScope&) = delete;
  EngineScope& operator=(const EngineScope&) = delete;

 private:
  detail::Thread& mine_;
};

// Whether this thread may hold the engine's lock: then the allocator must not run Python.
inline bool in_engine(const detail::Thread& mine = detail::this_thread()) noexcept {
  return mine.engine_scopes > 0;
}

// Whether this is the child of a fork. What it has of the engine is its parent's, which has the
// device: nothing moves there, and what is out stays out.
inline bool in_child() noexcept { return detail::forked.load(std::memory_order_relaxed); }

// While one lives, allocations of this thread evict nothing, nor give anything back to the device:
// they end by NoFreeRoom where they otherwise would.
class FreeRoomOnly {
 public:
  FreeRoomOnly() noexcept;
  ~FreeRoomOnly();
  FreeRoomOnly(const FreeRoomOnly&) = delete;
  FreeRoomOnly& operator=(const FreeRoomOnly&) = delete;
};
struct NoFreeRoom {};

// What may be done to make room.
enum class Effort : uint8_t {
  kHole,        // idle storages leave one hole in a segment
  kEverything,  // or whole segments, which go back to the device; at last all that is idle leaves
};

// Takes the engine's lock for one reclaim. To be made while the allocator's lock is not held, and
// before the allocator has changed anything: it may throw NoFreeRoom.
class ReclaimScope {
 public:
  explicit ReclaimScope(DeviceIndex device);
  ~ReclaimScope();
  ReclaimScope(const ReclaimScope&) = delete;
  ReclaimScope& operator=(const ReclaimScope&) = delete;

  // Evicts idle storages until a block for `bytes` was taken from `lists`, whose allocator's lock
  // the caller may hold by now. False when nothing helps.
  bool make_room(BlockLists& lists, size_t bytes, Effort effort);

 private:
  EngineScope scope_;
  DeviceIndex device_;
};

// Runs `attempt`, which makes room, or says that there is none, under the locks that it takes. It
// runs again when host memory has come that it lacked; and for the kernel of an op that cannot run
// again, whenever another op has ended. In between no lock is held: to be called with none.
bool reclaim(DeviceIndex device, Effort effort, const std::function<bool(ReclaimScope&)>& attempt);

// The engine's lock while Large Model Support is on, else nothing. To be taken while the
// allocator's lock is not held.
class EngineLock {
 public:
  EngineLock();
  ~EngineLock();
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

 private:
  EngineScope scope_;
  const bool locked_;
};

// Remembers the stream for a storage in host memory, whose next block will be told. False when
// `pointer` is on the device. Under an EngineLock.
bool record_stream_on_host(const DataPtr& pointer, CUDAStream stream);
// The same where the allocator is told of no more than an address, as before PyTorch 1.5.
bool record_stream_on_host(const void* pointer, CUDAStream stream);

// Whether this thread lets go of storages that it held: their owners may have dropped them before.
inline bool letting_go() noexcept { return detail::this_thread().lets_go; }
// Waits for what a stream of the program's own was given, so that nobody needs to ask it. False
// where it is this thread's current one, and a graph is captured.
bool finish_external(const CUDAStream& stream) noexcept;

// To be called with the streams that recordStream told of, of each block that is freed. Where it
// dies late, its owner may have destroyed streams of his own since: those are not to be asked.
template <class Streams>
void settle_external(Streams* streams) {
  if (C10_LIKELY(!letting_go())) {
    return;
  }
  for (auto stream = streams->begin(); stream != streams->end();) {
    const bool over = is_external(*stream) && finish_external(*stream);
    stream = over ? streams->erase(stream) : std::next(stream);
  }
}

// While one lives, what this thread allocates is for a page-in, which waits itself for what the
// block owes.
class PageInScope {
 public:
  PageInScope() noexcept;
  ~PageInScope();
  PageInScope(const PageInScope&) = delete;
  PageInScope& operator=(const PageInScope&) = delete;

  static bool active() noexcept;
};

// Makes the stream of the block's pool wait for copies.
void settle_copies(DeviceIndex device, cudaStream_t home, const Ready& ready) noexcept;

// To be called with each block that an allocation takes.
inline void settle(DeviceIndex device, cudaStream_t home, Owed* owed) {
  if (PageInScope::active()) {
    return;
  }
  know_stream(getCurrentCUDAStream(device));
  if (C10_UNLIKELY(owed->owes_streams())) {
    settle_copies(device, home, owed->whole());
  }
  owed->take();
}

// Whether a free block, or a place in one, is chosen by when it is ready for what this thread
// allocates.
bool has_choice(size_t bytes) noexcept;
inline ::lms::Taker taker() noexcept {
  return PageInScope::active() ? ::lms::Taker::kPageIn : ::lms::Taker::kOp;
}
inline size_t largest_choice(size_t best_fit) noexcept {
  return ::lms::largest_choice(best_fit, taker());
}
inline Spot first_ready(const Owed& owed, size_t size, size_t bytes) {
  return ::lms::first_ready(owed, size, bytes, taker());
}

// What a block owes that its user frees, beside what it owed before.
void free_by_user(DeviceIndex device, cudaStream_t home, size_t bytes, Owed* owed);

// Around the capture of a graph, and around the use of a pool of the user's: nothing moves, and an
// op of another thread that lacks room waits for the end as for that of an op. To be called with no
// lock held.
// `abandon`: ends it, as whoever began it should have done.
void begin_standstill(std::function<void()> abandon = nullptr);
void end_standstill();
bool stands_still() noexcept;  // in any thread

// Gives back to the device what is cached. While a graph is captured, or allocations go to a pool
// of the user's, the allocator refuses, and it stays.
void release_cached();
// Before the segments of all devices are given back. What unmaps one waits for its stream, which it
// names by the handle, and that of a default stream means the current device's.
void finish_default_streams();

// Implemented by the allocator.
struct BlockInfo {
  cudaStream_t stream = nullptr;    // the stream whose pool it belongs to
  std::vector<CUDAStream> used_on;  // as told by recordStream
  bool evictable = false;           // not of a graph's or the user's own pool
  Ready ready;                      // what it owes, if a page-in has taken it
};
BlockInfo block_info(void* ptr);
void set_ready(void* ptr, const Ready& ready);
// Frees a block that owes this, and nothing to the streams that recordStream told of.
void free_settled(void* ptr, const Ready& ready);
// Why LMS cannot work with the allocator in use; empty when it can.
std::string allocator_obstacle();

#ifdef LMS_PLUGIN
// Whether a DataPtr with this deleter owns a block.
bool is_block_deleter(DeleterFnPtr deleter) noexcept;
// That of the blocks that page-ins take.
DeleterFnPtr block_deleter() noexcept;
// Lets the plug-in's allocator see the storage's frees and reallocations. Under the engine's lock.
void adopt(StorageImpl* storage);
// Asks for what there is, before anything moves for the first time. Not when this library is
// loaded: who has the allocator's lock may want the loader's.
void learn_allocator();
#else
// First called when there was no obstacle, so while the allocator caches.
inline DeleterFnPtr block_deleter() noexcept {
  static const DeleterFnPtr own = CUDACachingAllocator::get()->raw_deleter();
  return own;
}
inline bool is_block_deleter(DeleterFnPtr deleter) noexcept { return deleter == block_deleter(); }
inline void adopt(StorageImpl*) {}
inline void learn_allocator() {}
#endif

}  // namespace c10::cuda::lms
