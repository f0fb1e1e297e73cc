// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Backend.h>
#include <c10/cuda/lms/Fences.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/core/engine.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <sstream>
#include <thread>

namespace c10::cuda::lms {
namespace detail {
std::atomic<bool> reclaiming{false};
std::atomic<bool> counting{false};
std::atomic<size_t> device_limit{0};
std::atomic<size_t> soft_limit{0};
}  // namespace detail

namespace {

// IBM's names of the routes, in the order of ::lms::Route.
constexpr std::array<const char*, ::lms::kRoutes> kRouteNames = {"freelist",    "cudamalloc",
                                                                 "reclaim_one", "reclaim_fragments",
                                                                 "reclaim_all", "cudamalloc_retry"};

// Ops that were already past the op boundary when it was first installed hold no pins and were not
// counted. Nothing is evicted until they had this long to launch.
constexpr std::chrono::milliseconds kFirstGrace{100};

// One thread's count of ops that run without pins.
struct ThreadRecord {
  std::atomic<int> unpinned{0};
};

// Leaked: storages may be freed after static destructors ran.
struct State {
  PinnedMemory memory;
  ::lms::HostPool host{memory};
  Backend backend;
  ::lms::Engine engine{backend, host};

  std::atomic<bool> active{false};
  std::atomic<bool> wanted{false};  // enabled, or about to be: changes under the engine's lock
  std::atomic<bool> enabled{false};
  std::mutex switching;  // one set_enabled at a time
  bool was_enabled = false;
  std::atomic<bool> chaos{false};

  std::mutex threads_mutex;
  std::vector<ThreadRecord*> threads;

  std::array<::lms::RouteCounts, C10_COMPILE_TIME_MAX_GPUS> routes;

  State() { backend.set_host(&host); }
};

State& state() {
  static auto* state = new State;
  return *state;
}

struct RegisteredRecord : ThreadRecord {
  RegisteredRecord() {
    std::lock_guard<std::mutex> lock(state().threads_mutex);
    state().threads.push_back(this);
  }
  ~RegisteredRecord() {
    std::lock_guard<std::mutex> lock(state().threads_mutex);
    auto& threads = state().threads;
    threads.erase(std::remove(threads.begin(), threads.end(), this), threads.end());
  }
};

ThreadRecord& this_thread() {
  thread_local RegisteredRecord record;
  return record;
}

struct ThreadFrame {
  ::lms::Engine::Frame frame;
  int depth = 0;
};

ThreadFrame& this_frame() {
  thread_local ThreadFrame frame;
  return frame;
}

thread_local int release_depth = 0;
thread_local int engine_depth = 0;

::lms::Stream current_stream(int device) {
  return getCurrentCUDAStream(static_cast<DeviceIndex>(device)).stream();
}

::lms::Stream stream_for(const StorageImpl* storage) {
  return current_stream(storage->device().index());
}

::lms::Access core_access(Access access) {
  switch (access) {
    case Access::kRead:
      return ::lms::Access::kRead;
    case Access::kWrite:
      return ::lms::Access::kWrite;
    case Access::kOverwrite:
      return ::lms::Access::kOverwrite;
  }
  return ::lms::Access::kWrite;
}

void wait_for_unpinned_ops() {
  const ThreadRecord* mine = &this_thread();
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(state().threads_mutex);
      const auto& threads = state().threads;
      if (std::none_of(threads.begin(), threads.end(), [&](const ThreadRecord* record) {
            return record != mine && record->unpinned.load() > 0;
          })) {
        return;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// Waits for the devices that hold memory of the allocator.
void synchronize_devices() {
  for (DeviceIndex device = 0; device < device_count(); ++device) {
    const auto stats = CUDACachingAllocator::get()->getDeviceStats(device);
    if (stats.reserved_bytes[0].current > 0) {
      CUDAGuard guard(device);
      device_synchronize();
    }
  }
}

// Once disabled and with nothing left on the host, ops need no pins any more. Under the engine's
// lock, so that no eviction is under way.
void become_inactive() {
  State& s = state();
  std::lock_guard<std::recursive_mutex> lock(s.engine.mutex());
  if (!s.wanted.load() && s.backend.on_host() == 0) {
    s.engine.drop_copies();  // nothing looks after a write barrier from now on
    detail::reclaiming = false;
    s.engine.set_chaos(false);
    s.active = false;
  }
}

// A graph keeps the pointers that it captured, for all its replays.
void expose_to_capture(::lms::Key key, ::lms::Stream stream) {
  if (C10_UNLIKELY(capturing(static_cast<cudaStream_t>(stream)))) {
    state().engine.expose(key, stream);
  }
}

std::string mib(size_t bytes) {
  std::ostringstream out;
  out.precision(2);
  out << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return out.str();
}

}  // namespace

// ---- scopes

ReleaseScope::ReleaseScope() noexcept { ++release_depth; }

ReleaseScope::~ReleaseScope() {
  if (--release_depth > 0 || acquired().empty()) {
    return;
  }
  Acquired storages = std::move(acquired());
  acquired().clear();
  // Destroyed here, with no lock held: a storage may die and run any deleter.
}

EngineScope::EngineScope() noexcept { ++engine_depth; }

EngineScope::~EngineScope() { --engine_depth; }

bool in_engine() noexcept { return engine_depth > 0; }

OpGuard::OpGuard() { ++this_frame().depth; }

OpGuard::~OpGuard() {
  ThreadFrame& mine = this_frame();
  if (--mine.depth > 0 || mine.frame.empty()) {
    return;
  }
  EngineScope scope;
  try {
    state().engine.leave(mine.frame);
    if (C10_UNLIKELY(!state().wanted.load(std::memory_order_relaxed))) {
      become_inactive();
    }
  } catch (const std::exception& error) {  // chaos mode could not evict: the op itself succeeded
    TORCH_WARN("Large Model Support: ", error.what());
  }
}

void OpGuard::enter(const Use* uses, size_t count) {
  EngineScope scope;
  SmallVector<::lms::Engine::Use, 8> translated;
  for (size_t i = 0; i < count; ++i) {
    StorageImpl* storage = uses[i].storage;
    const int device = storage->device().index();
    translated.push_back({storage, core_access(uses[i].access), device, current_stream(device)});
  }
  state().engine.enter(this_frame().frame, translated.data(), translated.size());
  for (const auto& use : translated) {
    expose_to_capture(use.key, use.stream);
  }
}

void OpGuard::results(StorageImpl* const* storages, size_t count) {
  EngineScope scope;
  ThreadFrame& mine = this_frame();
  for (size_t i = 0; i < count; ++i) {
    state().engine.note(mine.depth > 1 ? &mine.frame : nullptr, storages[i],
                        stream_for(storages[i]));
  }
}

UnpinnedOp::UnpinnedOp() { this_thread().unpinned.fetch_add(1); }

UnpinnedOp::~UnpinnedOp() { this_thread().unpinned.fetch_sub(1); }

// ---- switching

bool active() noexcept { return state().active.load(); }

bool enabled() noexcept { return state().enabled.load(std::memory_order_relaxed); }

bool manageable(const StorageImpl* storage) noexcept { return Backend::may_manage(*storage); }

void set_enabled(bool enable) {
  State& s = state();
  std::lock_guard<std::mutex> switching(s.switching);
  if (enable == s.enabled.load()) {
    return;
  }
  if (enable) {
    const std::string obstacle = allocator_obstacle();
    TORCH_CHECK(obstacle.empty(), "Large Model Support cannot be enabled: ", obstacle);
    {
      std::lock_guard<std::recursive_mutex> lock(s.engine.mutex());
      s.wanted = true;
      s.active = true;
    }
    // Ops that found it inactive run without pins: none of them may be running when the first
    // storage is evicted, nor their kernels, on streams that nobody noted.
    wait_for_unpinned_ops();
    if (!s.was_enabled) {
      s.was_enabled = true;
      std::this_thread::sleep_for(kFirstGrace);
    }
    synchronize_devices();
    s.enabled = true;
    detail::reclaiming = true;
    s.engine.set_chaos(s.chaos);
    return;
  }
  s.enabled = false;
  s.wanted = false;
  // What does not fit stays out and comes in when an op wants it, which may still evict others.
  EngineScope scope;
  s.engine.page_in_all(&current_stream);
  become_inactive();
}

// ---- settings

void set_device_limit(size_t bytes) { detail::device_limit = bytes; }
size_t device_limit() noexcept { return detail::device_limit; }
void set_soft_limit(size_t bytes) { detail::soft_limit = bytes; }
size_t soft_limit() noexcept { return detail::soft_limit; }
void set_host_limit(size_t bytes) { state().host.set_limit(bytes); }
size_t host_limit() { return state().host.stats().limit; }
void set_min_size(size_t bytes) { state().engine.set_min_bytes(bytes); }
size_t min_size() { return state().engine.min_bytes(); }

void set_chaos(bool chaos) {
  State& s = state();
  std::lock_guard<std::mutex> switching(s.switching);
  if (chaos == s.chaos) {
    return;
  }
  TORCH_CHECK(
      s.backend.on_host() == 0,
      "Chaos mode cannot be switched while storages are in host memory: disable Large Model "
      "Support first.");
  s.backend.set_poison(chaos);
  s.chaos = chaos;
  s.engine.set_chaos(chaos && reclaiming());  // not before all running ops hold pins
}

bool chaos() noexcept { return state().chaos; }

// ---- single storages

void pin(StorageImpl* storage) {
  EngineScope scope;
  state().engine.pin(storage, stream_for(storage));
  expose_to_capture(storage, stream_for(storage));
}
void unpin(StorageImpl* storage) {
  EngineScope scope;
  state().engine.unpin(storage);
}
void expose(StorageImpl* storage) {
  EngineScope scope;
  state().engine.expose(storage, stream_for(storage));
}
void unexpose(StorageImpl* storage) {
  EngineScope scope;
  state().engine.unexpose(storage);
}
bool exposed(StorageImpl* storage) { return state().engine.exposed(storage); }
void set_excluded(StorageImpl* storage, bool excluded) {
  EngineScope scope;
  state().engine.set_excluded(storage, excluded, stream_for(storage));
}
bool excluded(StorageImpl* storage) { return state().engine.excluded(storage); }
bool on_host(StorageImpl* storage) {
  EngineScope scope;
  std::lock_guard<std::recursive_mutex> lock(state().engine.mutex());
  return state().backend.locate(storage).place == ::lms::Place::kHost;
}
bool evict(StorageImpl* storage) {
  EngineScope scope;
  std::lock_guard<std::recursive_mutex> lock(state().engine.mutex());
  return reclaiming() && state().engine.evict(storage);
}
size_t reclaim_inactive(DeviceIndex device) {
  EngineScope scope;
  std::lock_guard<std::recursive_mutex> lock(state().engine.mutex());
  return reclaiming() ? state().engine.evict_all(device, /*everything=*/true) : 0;
}

void trim_host() { state().host.trim(); }

// ---- reclaim, called by the allocator

size_t limit_headroom(size_t reserved) noexcept {
  const size_t limit = detail::device_limit;
  if (limit == 0) {
    return SIZE_MAX;
  }
  return limit > reserved ? limit - reserved : 0;
}

void detail::count_route(DeviceIndex device, Route route) {
  state().routes[static_cast<size_t>(device)].count(route);
}

ReclaimScope::ReclaimScope(DeviceIndex device) : device_(device) { state().engine.mutex().lock(); }

ReclaimScope::~ReclaimScope() { state().engine.mutex().unlock(); }

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

bool ReclaimScope::make_room(BlockLists& lists, size_t bytes, bool last_resort) {
  if (!reclaiming()) {  // switched off while no lock was held
    return false;
  }
  ::lms::RoomRequest request;
  request.device = device_;
  request.bytes = bytes;
  request.whole_segments = request.everything = last_resort;
  const Route route = ::lms::make_room(state().engine, lists, request);
  return route != Route::kNone && count(device_, route);
}

// ---- statistics

void count_allocations() noexcept { detail::counting = true; }

std::vector<std::pair<std::string, int64_t>> stats(DeviceIndex device) {
  State& s = state();
  EngineScope scope;
  s.engine.purge();
  const ::lms::EngineStats e = s.engine.stats(device);
  const ::lms::Census c = s.engine.census(device);
  const ::lms::HostStats h = s.host.stats();
  std::vector<std::pair<std::string, int64_t>> result;
  const auto put = [&](std::string name, auto value) {
    result.emplace_back(std::move(name), static_cast<int64_t>(value));
  };
  static constexpr std::array<const char*, ::lms::EngineStats::kPools> kPools = {
      "all", "large_pool", "small_pool"};
  for (int pool = 0; pool < ::lms::EngineStats::kPools; ++pool) {
    for (const auto& [name, counter] :
         {std::pair<const char*, const ::lms::Counter&>{"pinned", e.pinned[pool]},
          std::pair<const char*, const ::lms::Counter&>{"pinned_bytes", e.pinned_bytes[pool]}}) {
      const std::string prefix = std::string(name) + "." + kPools[pool] + ".";
      put(prefix + "current", counter.current);
      put(prefix + "peak", counter.peak);
      put(prefix + "allocated", counter.allocated);
      put(prefix + "freed", counter.freed);
    }
  }
  put("reclaimed", e.reclaimed);
  put("reclaimed_bytes", e.reclaimed_bytes);
  for (size_t route = 0; route < ::lms::kRoutes; ++route) {
    put(std::string("alloc_distribution.") + kRouteNames[route],
        s.routes[static_cast<size_t>(device)].of(static_cast<Route>(route)));
  }
  put("lms.enabled", enabled());
  put("lms.device_limit", device_limit());
  put("lms.soft_limit", soft_limit());
  put("lms.min_size", min_size());
  put("lms.paged_out", e.paged_out);
  put("lms.paged_out_bytes", e.paged_out_bytes);
  put("lms.paged_in", e.paged_in);
  put("lms.paged_in_bytes", e.paged_in_bytes);
  put("lms.clean_evictions", e.clean_evictions);
  put("lms.clean_bytes", e.clean_bytes);
  put("lms.overwrites", e.overwrites);
  put("lms.overwrite_bytes", e.overwrite_bytes);
  put("lms.silent_writes", e.silent_writes);
  put("lms.host_refused", e.host_refused);
  put("lms.tracked", c.tracked);
  put("lms.idle", c.idle);
  put("lms.idle_bytes", c.idle_bytes);
  put("lms.on_host", c.on_host);
  put("lms.on_host_bytes", c.on_host_bytes);
  put("lms.exposed", c.exposed);
  put("lms.exposed_bytes", c.exposed_bytes);
  put("lms.excluded", c.excluded);
  put("lms.excluded_bytes", c.excluded_bytes);
  put("lms.host.limit", h.limit);
  put("lms.host.reserved_bytes", h.reserved);
  put("lms.host.reserved_bytes_peak", h.reserved_peak);
  put("lms.host.used_bytes", h.used);
  put("lms.host.used_bytes_peak", h.used_peak);
  return result;
}

void reset_peak_stats(DeviceIndex device) {
  state().engine.reset_peaks(device);
  state().host.reset_peaks();
}

void reset_accumulated_stats(DeviceIndex device) {
  state().engine.reset_accumulated(device);
  state().routes[static_cast<size_t>(device)].reset();
}

std::string describe(DeviceIndex device) {
  if (!reclaiming()) {
    return "";
  }
  State& s = state();
  EngineScope scope;
  const ::lms::Census c = s.engine.census(device);
  const ::lms::HostStats h = s.host.stats();
  const ::lms::EngineStats e = s.engine.stats(device);
  std::ostringstream out;
  out << "Large Model Support is on: " << mib(c.pinned_bytes) << " in " << c.pinned
      << " storages are pinned by running operators (largest " << mib(c.largest_pinned) << "), "
      << mib(c.on_host_bytes) << " are in host memory";
  if (c.exposed > 0) {
    out << ", " << mib(c.exposed_bytes) << " cannot move because their pointers were handed out";
  }
  if (c.excluded > 0) {
    out << ", " << mib(c.excluded_bytes) << " are excluded";
  }
  if (c.small > 0) {
    out << ", " << mib(c.small_bytes) << " are below the minimum size";
  }
  if (c.idle > 0) {
    out << ", " << mib(c.idle_bytes) << " are idle but did not move";
  }
  out << ". Device limit: " << (device_limit() == 0 ? "none" : mib(device_limit()))
      << ", host limit: " << (h.limit == 0 ? "none" : mib(h.limit)) << " (" << mib(h.used)
      << " in use), minimum size: " << mib(min_size()) << ". ";
  if (c.idle + c.small > 0 && e.host_refused > 0) {
    out << "Host memory is at its limit: raise it with torch.cuda.lms.enable(host_limit=...). ";
  } else if (device_limit() != 0) {
    out << "Raise the device limit, or ";
  }
  out << "Use smaller inputs for the operator that failed: everything it uses at once must fit. ";
  return out.str();
}

}  // namespace c10::cuda::lms
