// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/lms/Backend.h>
#include <c10/cuda/lms/Fences.h>
#include <c10/cuda/lms/core/engine.h>
#include <c10/cuda/lms/core/host_pool.h>
#include <c10/cuda/lms/core/host_share.h>
#include <c10/cuda/lms/core/switch.h>

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
  const CUDAStream stream = getCurrentCUDAStream(static_cast<DeviceIndex>(device));
  know_stream(stream);
  return stream.stream();
}

inline ::lms::Stream stream_for(const StorageImpl* storage) {
  return current_stream(storage->device().index());
}

// The pins of the op that this thread runs.
const ::lms::Engine::Frame& current_frame();

// On the device where this thread was last short, which it returns: all that is idle leaves, and
// free segments go back.
DeviceIndex evict_for_shortage();

// Frees what libraries keep between ops, and get anew when they need it. No op may be running.
void release_workspaces() noexcept;

// A graph keeps the pointers that it captured, for all its replays.
void expose_to_capture(::lms::Key key, ::lms::Stream stream);

}  // namespace c10::cuda::lms
