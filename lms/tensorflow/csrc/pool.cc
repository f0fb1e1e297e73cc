// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/pool.h"

#include <utility>

#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/frame.h"
#include "tensorflow/core/common_runtime/lms/options.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/statistics.h"
#include "tensorflow/core/common_runtime/lms/switch.h"
#include "tensorflow/core/platform/logging.h"

namespace tensorflow {
namespace lms {
namespace {

// More bury the log of a program that goes on after each; fewer hide what it lacked room for.
constexpr int kMostShortagesLogged = 10;

}  // namespace

Pool::Pool(int index, std::string name, BfcAllocator* allocator,
           std::unique_ptr<Transport> transport)
    : index(index),
      name(std::move(name)),
      allocator(allocator),
      transport(std::move(transport)),
      on_cpu(this->transport->stream() == nullptr),
      bytes_(BfcAccess::Stats(allocator).limit),
      slabs_(allocator) {
  slabs_.Add(::lms::first_slab_bytes(static_cast<size_t>(bytes_)));
}

// What a request that found no room may take.
class Pool::Request final : public BfcLists {
 public:
  Request(Pool* pool, size_t bytes, uint64_t freed_before)
      : BfcLists(pool->allocator, BfcAccess::RoundedBytes(bytes)),
        pool_(*pool),
        bytes_(bytes),
        freed_before_(freed_before) {}
  bool take_free_block() override {
    if (over_limit() > 0) return false;
    ptr_ = anywhere_ ? BfcAccess::AllocateOnce(allocator_, bytes_, freed_before_)
                     : pool_.Take(bytes_, freed_before_, ::lms::Resort::kLast);
    return ptr_ != nullptr;
  }
  // What is too small to move comes to lie between others rather than nowhere.
  bool shrink_segment() override {
    const bool may = bytes_ < kSmallestMovable && !anywhere_;
    anywhere_ = anywhere_ || may;
    return may;
  }
  size_t over_limit() override { return pool_.OverLimit(rounded_); }
  void* ptr() const { return ptr_; }

 private:
  Pool& pool_;
  const size_t bytes_;
  const uint64_t freed_before_;
  bool anywhere_ = false;
  void* ptr_ = nullptr;
};

// A hole that is to be there, and not taken yet.
class Pool::Hole final : public BfcLists {
 public:
  Hole(Pool* pool, size_t rounded) : BfcLists(pool->allocator, rounded), pool_(*pool) {}
  bool take_free_block() override { return BfcAccess::CanTake(allocator_, rounded_); }
  size_t over_limit() override { return pool_.OverLimit(rounded_); }

 private:
  const Pool& pool_;
};

// ---- requests

void* Pool::Allocate(size_t bytes, uint64_t freed_before) {
  if (!Active()) {
    void* ptr = BfcAccess::AllocateOnce(allocator, bytes, freed_before);
    NotePeaks(this);
    return ptr;
  }
  // No need for the engine's lock as long as there is room. Below a limit it keeps requests of
  // several threads from exceeding that together.
  void* ptr = DeviceLimit() == 0 ? TakeFree(bytes, freed_before) : nullptr;
  if (ptr == nullptr) ptr = TakeOrMakeRoom(bytes, freed_before);
  if (ptr != nullptr) {
    OpFrame::CountTaken(this, bytes);
    NotePeaks(this);
  } else {
    OpFrame::NoteShortage(this, bytes);
  }
  return ptr;
}

void* Pool::TakeOrMakeRoom(size_t bytes, uint64_t freed_before) {
  ::lms::Engine& engine = Runtime::Get().engine;
  EngineLock lock(engine.mutex());
  void* ptr = TakeFree(bytes, freed_before);
  if (ptr != nullptr || !Reclaiming()) return ptr;
  admission.set_under_pressure();
  slabs_.ReleaseUnused();
  const bool small = bytes < kSmallestMovable;
  if (small) GrowSlabs();
  Request request(this, bytes, freed_before);
  ::lms::RoomRequest room;
  room.device = index;
  room.bytes = small ? ::lms::kLeastSlab : BfcAccess::RoundedBytes(bytes);
  const ::lms::Route route = ::lms::make_room(engine, request, room);
  CountReclaim(route);
  if (route == ::lms::Route::kNone) NoteShortage(bytes);
  return request.ptr();
}

void* Pool::TakeFree(size_t bytes, uint64_t freed_before) {
  if (OverLimit(BfcAccess::RoundedBytes(bytes)) > 0) return nullptr;
  return Take(bytes, freed_before, ::lms::Resort::kFirst);
}

void* Pool::Take(size_t bytes, uint64_t freed_before, ::lms::Resort resort) {
  if (bytes < kSmallestMovable) return TakeSmall(bytes, freed_before, resort);
  void* ptr = BfcAccess::AllocateOnce(allocator, bytes, freed_before);
  if (ptr != nullptr && admission.cuts_blocks()) {
    BfcAccess::Trim(allocator, ptr, BfcAccess::RoundedBytes(bytes));
  }
  return ptr;
}

void* Pool::TakeSmall(size_t bytes, uint64_t freed_before, ::lms::Resort resort) {
  void* ptr = slabs_.Allocate(bytes, freed_before);
  if (ptr != nullptr) return ptr;
  ::lms::SlabRequest slab;
  slab.over_limit = OverLimit(::lms::kLeastSlab) > 0;
  slab.under_pressure = admission.under_pressure();
  slab.evicting = Enabled();
  slab.resort = resort;
  if (::lms::place_of_slab(slab) == ::lms::SlabPlace::kNowhere) return nullptr;
  return slabs_.Add(::lms::kLeastSlab) ? slabs_.Allocate(bytes, freed_before) : nullptr;
}

// Sets aside more for small tensors, for which what is idle near the end of the pool makes way.
void Pool::GrowSlabs() {
  if (OverLimit(::lms::kLeastSlab) > 0) return;
  const size_t bytes = ::lms::next_slab_bytes(slabs_.Bytes());
  Hole hole(this, bytes);
  if (::lms::make_hole_at_end(Runtime::Get().engine, hole, index, bytes)) slabs_.Add(bytes);
}

size_t Pool::OverLimit(size_t rounded) const {
  const size_t limit = DeviceLimit();
  if (limit == 0) return 0;
  const size_t wanted = BfcAccess::Stats(allocator).in_use + rounded;
  return wanted > limit ? wanted - limit : 0;
}

void Pool::CountReclaim(::lms::Route route) {
  if (route == ::lms::Route::kFreeBlock) return;
  const bool full = route == ::lms::Route::kEvictAll || route == ::lms::Route::kNone;
  ++(full ? full_reclaims : single_reclaims);
}

void Pool::NoteShortage(size_t bytes) {
  static int logged = 0;  // under the engine's lock
  if (logged++ < kMostShortagesLogged) LOG(WARNING) << Shortage(this, bytes);
}

// ---- admission and placement

int64_t Pool::limit() const {
  const size_t limit = DeviceLimit();
  return limit != 0 ? static_cast<int64_t>(limit) : bytes_;
}

bool Pool::has(int64_t bytes) const {
  return BfcAccess::CanTake(allocator, BfcAccess::RoundedBytes(static_cast<size_t>(bytes)));
}

// Whether it is enabled is asked under the engine's lock: from the moment on that it is off, ops
// run that have no pins.
bool Pool::make(int64_t bytes) {
  ::lms::Engine& engine = Runtime::Get().engine;
  EngineLock lock(engine.mutex());
  if (!Enabled()) return true;
  const size_t rounded = BfcAccess::RoundedBytes(static_cast<size_t>(bytes));
  Hole hole(this, rounded);
  return ::lms::make_hole(engine, hole, index, rounded);
}

void Pool::evict_idle() {
  ::lms::Engine& engine = Runtime::Get().engine;
  EngineLock lock(engine.mutex());
  if (Enabled() && ::lms::evict_idle(engine, index)) ++full_reclaims;
}

void* Pool::set_aside(int64_t bytes) {
  const size_t wanted = static_cast<size_t>(bytes);
  void* hole = BfcAccess::AllocateOnce(allocator, wanted, /*freed_before=*/0);
  if (hole != nullptr) BfcAccess::Trim(allocator, hole, BfcAccess::RoundedBytes(wanted));
  return hole;
}

void Pool::give_back(void* hole) { allocator->DeallocateRaw(hole); }

}  // namespace lms
}  // namespace tensorflow
