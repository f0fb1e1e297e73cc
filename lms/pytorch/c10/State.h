// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Backend.h>
#include <c10/cuda/lms/Fences.h>
#include <c10/cuda/lms/compat/storage.h>
#include <c10/cuda/lms/core/engine.h>
#include <c10/cuda/lms/core/host_pool.h>
#include <c10/cuda/lms/core/host_share.h>
#include <c10/cuda/lms/core/switch.h>

#include <cstddef>
#include <functional>

// What the files of this folder share.
namespace c10::cuda::lms {

// The one engine of the process. Leaked: storages may be freed after static destructors ran.
struct State {
  // Up to here storages are in the allocator's small pool, and beyond in its large one.
  static constexpr size_t kSmallBytes = size_t{1} << 20;

  PinnedMemory memory;
  ::lms::HostPool host{memory, ::lms::HostPool::kSegmentBytes, ::lms::HostPool::Tended::kByThread};
  const ::lms::HostShare host_share = ::lms::host_share();  // the limit unless one is set
  Backend backend;
  ::lms::Engine engine{backend, host, {kSmallBytes}};
};
State& state();

::lms::Switch::Owner& switch_owner();

inline ::lms::Stream current_stream(int device) {
  return know_stream(getCurrentCUDAStream(static_cast<DeviceIndex>(device)));
}

inline ::lms::Stream stream_for(const StorageImpl* storage) {
  return current_stream(glance_at_device(*storage).index());
}

// Thrown, in a GrowthScope, where an eviction lacks host memory that may come from the machine.
struct HostMemoryLacking {
  size_t bytes;
  int device;
};

class GrowthScope {
 public:
  explicit GrowthScope(detail::Thread& mine) noexcept : mine_(mine) { ++mine_.growth_scopes; }
  ~GrowthScope() { --mine_.growth_scopes; }
  GrowthScope(const GrowthScope&) = delete;
  GrowthScope& operator=(const GrowthScope&) = delete;

  static bool active() noexcept { return detail::this_thread().growth_scopes > 0; }

 private:
  detail::Thread& mine_;
};

// So often host memory comes for one `act`: more than all of a device needs. Then it does so under
// the engine's lock, as it would if other threads took what has come again and again.
constexpr int kGrowths = 4096;

// Runs `act`, which takes the engine's lock, and runs it again when host memory has come that it
// lacked: while that comes no lock is held, and other threads' ops go on. Within the engine the
// outermost one does so.
template <class Act>
auto with_host_memory(const Act& act, detail::Thread& mine = detail::this_thread()) {
  for (int growths = 0; growths < kGrowths && !in_engine(mine); ++growths) {
    HostMemoryLacking lacking{0, 0};
    try {
      const GrowthScope scope(mine);
      return act();
    } catch (const HostMemoryLacking& thrown) {
      lacking = thrown;
    }
    if (!state().host.prepare(lacking.bytes, lacking.device)) {
      break;
    }
  }
  return act();
}

// For the kernel of an op that lacks room, and cannot run again: tries until `attempt` returns
// true, whenever another op has ended. False when none can help.
bool wait_for_room(const std::function<bool()>& attempt);

// The pins of the op that this thread runs.
const ::lms::Engine::Frame& current_frame();

// On the device where this thread was last short: all that is idle leaves, and free segments go
// back.
void evict_for_shortage();
// Whether that shortage was within a sparing scope. It says so once.
bool was_spared() noexcept;

// Warns the user of a device that thrashes.
void warn_of_thrashing();

// Makes known what ops have made while it was off. While none runs without pins.
void note_made_while_off();

// Frees what libraries keep between ops, and get anew when they need it. No op may be running.
void release_workspaces() noexcept;

// Whether a thread is about to capture a stream that is not known yet.
bool capture_begins() noexcept;

// A graph keeps the pointers that it captured, for all its replays.
void expose_to_capture(::lms::Key key, ::lms::Stream stream);

}  // namespace c10::cuda::lms
