// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Fences.h>
#include <c10/cuda/lms/State.h>
#include <c10/cuda/lms/compat/allocator.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <c10/cuda/lms/compat/storage.h>

#include <atomic>
#include <cstdint>
#include <utility>

// What the allocator's hook calls.
namespace c10::cuda::lms {
namespace detail {
std::atomic<bool> counting{false};
std::array<::lms::RouteCounts, C10_COMPILE_TIME_MAX_GPUS> routes;
}  // namespace detail

size_t limit_headroom(size_t reserved) noexcept {
  const size_t limit = detail::device_limit;
  if (limit == 0) {
    return SIZE_MAX;
  }
  return limit > reserved ? limit - reserved : 0;
}

namespace {

thread_local bool free_room_only = false;
thread_local bool for_page_in = false;
thread_local uint64_t latest_mark = UINT64_MAX;
thread_local bool refused_late = false;
thread_local bool least_segments = false;
thread_local bool borrow_first = false;
thread_local DeviceIndex short_device = 0;
thread_local bool spared = false;  // something, in the last shortage
std::atomic<bool> pressure{false};

}  // namespace

bool reclaim(DeviceIndex device, Effort effort, const std::function<bool(ReclaimScope&)>& attempt) {
  const auto once = [&] {
    return !capture_underway() && with_host_memory([&] {  // else nothing may move
      ReclaimScope scope(device);
      return attempt(scope);
    });
  };
  return once() || (effort == Effort::kEverything && wait_for_room(once));
}

bool under_pressure() noexcept { return pressure.load(std::memory_order_relaxed); }

void evict_for_shortage() {
  reclaim_inactive(short_device);
  release_cached();
}

void release_cached() {
  try {
    finish_default_streams();
    CUDACachingAllocator::emptyCache();
  } catch (const c10::Error&) {  // it refuses, before it has changed anything
  }
}

void finish_default_streams() {
  const DeviceIndex devices = device_count();
  if (devices == 1 || capture_underway()) {
    return;
  }
  for (DeviceIndex device = 0; device < devices; ++device) {
    if (reserved_bytes(device) > 0) {
      const CUDAGuard guard(device);
      C10_CUDA_CHECK(cudaStreamSynchronize(nullptr));
    }
  }
}

bool was_spared() noexcept { return std::exchange(spared, false); }

LeastSegments::LeastSegments(Small small) noexcept {
  least_segments = true;
  borrow_first = small == Small::kBorrowFirst;
}

LeastSegments::~LeastSegments() { least_segments = borrow_first = false; }

bool LeastSegments::active() noexcept { return least_segments; }

EarlyRoomOnly::EarlyRoomOnly(uint64_t latest) noexcept { latest_mark = latest; }

EarlyRoomOnly::~EarlyRoomOnly() { end(); }

bool EarlyRoomOnly::active() noexcept { return latest_mark != UINT64_MAX; }

bool EarlyRoomOnly::refused() noexcept { return refused_late; }

void EarlyRoomOnly::end() noexcept {
  latest_mark = UINT64_MAX;
  refused_late = false;
}

bool too_late(const Spot& first) noexcept {
  const bool late = first.idle_since > latest_mark;
  refused_late = refused_late || late;
  return late;
}

bool too_late(const Owed& owed, size_t size) {
  return EarlyRoomOnly::active() && owed.idle_since(0, size) > latest_mark;
}

FreeRoomOnly::FreeRoomOnly() noexcept { free_room_only = true; }

FreeRoomOnly::~FreeRoomOnly() { free_room_only = false; }

ReclaimScope::ReclaimScope(DeviceIndex device) : device_(device) {
  if (free_room_only) {
    throw NoFreeRoom();
  }
  state().engine.mutex().lock();
}

ReclaimScope::~ReclaimScope() { state().engine.mutex().unlock(); }

bool ReclaimScope::make_room(BlockLists& lists, size_t bytes, Effort effort) {
  if (!reclaiming()) {  // switched off while no lock was held
    return false;
  }
  if (EarlyRoomOnly::refused()) {
    const Route early = ::lms::make_room_early(state().engine, lists, device_, bytes, latest_mark);
    if (early == Route::kNone) {
      throw NoFreeRoom();
    }
    return count(device_, early);
  }
  EarlyRoomOnly::end();
  ::lms::RoomRequest request;
  request.device = device_;
  request.bytes = bytes;
  request.whole_segments = effort == Effort::kEverything;
  // To give everything back stops the device, and drains it of what the host has queued ahead.
  const bool spare = detail::this_thread().sparing_scopes > 0 && request.whole_segments;
  request.everything = request.whole_segments && !spare;
  if (!under_pressure()) {
    pressure = true;
  }
  const Route route = ::lms::make_room(state().engine, lists, request);
  if (route != Route::kNone) {
    return count(device_, route);
  }
  if (C10_UNLIKELY(borrow_first) && lists.borrow()) {
    return count(device_, Route::kFreeBlock);
  }
  if (C10_UNLIKELY(LeastSegments::active()) && lists.shrink_segment() && lists.take_new_segment()) {
    return count(device_, Route::kNewSegment);
  }
  if (request.whole_segments) {
    short_device = device_;
    spared = spare;
    if (ShortageScope::active()) {
      C10_THROW_ERROR(OutOfMemoryError, "Large Model Support has found no room yet.");
    }
    // At last, as a small block may split the room of large ones: what must stay lies in a large
    // segment, and nothing is left for a small one.
    if (lists.borrow()) {
      return count(device_, Route::kFreeBlock);
    }
  }
  return false;
}

EngineLock::EngineLock() : locked_(reclaiming()) {
  if (locked_) {
    state().engine.mutex().lock();
  }
}

EngineLock::~EngineLock() {
  if (locked_) {
    state().engine.mutex().unlock();
  }
}

bool record_stream_on_host(const DataPtr& pointer, CUDAStream stream) {
  know_stream(stream);
  return Backend::record_stream(pointer, stream);
}

bool record_stream_on_host(const void* pointer, CUDAStream stream) {
  bool found = false;
  for (const ::lms::Key key : state().engine.all_out()) {
    const DataPtr& its = pointer_of(*static_cast<StorageImpl*>(key));
    found = (its.get() == pointer && record_stream_on_host(its, stream)) || found;
  }
  return found;
}

bool finish_external(const CUDAStream& stream) noexcept {
  const DeviceIndex device = stream.device_index();
  try {
    const CUDAGuard guard(device);
    const OutsideCapture outside;  // breaks no capture
    // c10's own may run Python, and the allocator is locked.
    if (!capture_underway() && C10_CUDA_ERROR_HANDLED(cudaDeviceSynchronize()) == cudaSuccess) {
      return true;
    }
    (void)cudaGetLastError();  // a device is not waited for while a graph is captured there
    know_stream(stream);
    if (usable(device, stream.stream())) {
      return false;
    }
    set_mark(device, stream.stream())->wait();
  } catch (const c10::Error&) {  // of the context: nothing runs any more
    (void)cudaGetLastError();
  }
  return true;
}

// ---- what blocks owe

PageInScope::PageInScope() noexcept { for_page_in = true; }

PageInScope::~PageInScope() { for_page_in = false; }

bool PageInScope::active() noexcept { return for_page_in; }

// The block is out of its pool by now: where the stream cannot wait, this thread does.
void settle_copies(DeviceIndex device, cudaStream_t home, const Ready& ready) noexcept {
  for (const MarkPtr& copy : ready.copies()) {
    try {
      if (usable(device, home) && !capturing(home)) {  // a graph depends on nothing outside it
        const MeasuredWait wait(device, home, Wait::kMemory);
        wait_fence_at(device, home, copy);
        continue;
      }
    } catch (const c10::Error&) {
      (void)cudaGetLastError();
    }
    copy->wait();
  }
}

// Nothing is told of blocks below the least that moves by itself, which are freed far more often
// than they move: a copy into one waits for all that is queued, and holds up those behind it.
void free_by_user(DeviceIndex device, cudaStream_t home, size_t bytes, Owed* owed) {
  Ready ready = owed->whole();
  ready.freed = true;
  ready.home = nullptr;
  ready.all =
      bytes < State::kSmallBytes || detail::lms_switch.state() == ::lms::Switch::State::kOff;
  ready.idle_since = UINT64_MAX;
  if (!ready.all) {
    ready.home = next_mark(device, home);
    ready.idle_since = ready.home ? ready.home->number() : 0;
  }
  *owed = std::move(ready);
}

bool has_choice(size_t bytes) noexcept {
  return reclaiming() && under_pressure() && bytes >= State::kSmallBytes;
}

}  // namespace c10::cuda::lms
