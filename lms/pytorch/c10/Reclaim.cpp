// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/State.h>

#include <atomic>
#include <cstdint>

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
thread_local int shortage_scopes = 0;
thread_local DeviceIndex short_device = 0;
std::atomic<bool> pressure{false};

}  // namespace

ShortageScope::ShortageScope() noexcept { ++shortage_scopes; }

ShortageScope::~ShortageScope() { --shortage_scopes; }

bool ShortageScope::active() noexcept { return shortage_scopes > 0; }

bool under_pressure() noexcept { return pressure.load(std::memory_order_relaxed); }

DeviceIndex evict_for_shortage() {
  reclaim_inactive(short_device);
  CUDACachingAllocator::emptyCache();
  return short_device;
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
  ::lms::RoomRequest request;
  request.device = device_;
  request.bytes = bytes;
  request.whole_segments = request.everything = effort == Effort::kEverything;
  if (!under_pressure()) {
    pressure = true;
  }
  const Route route = ::lms::make_room(state().engine, lists, request);
  if (route != Route::kNone) {
    return count(device_, route);
  }
  if (request.everything) {
    short_device = device_;
    if (ShortageScope::active()) {
      C10_THROW_ERROR(OutOfMemoryError, "Large Model Support has found no room yet.");
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
  return Backend::record_stream(pointer, stream);
}

}  // namespace c10::cuda::lms
