// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/State.h>
#include <c10/cuda/lms/compat/allocator.h>
#include <c10/cuda/lms/core/report.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <utility>

namespace c10::cuda::lms {
namespace {

// IBM's names of the routes, in the order of ::lms::Route.
constexpr std::array<const char*, ::lms::kRoutes> kRouteNames = {
    "freelist",          "cudamalloc",  "cudamalloc_over_limit", "reclaim_one",
    "reclaim_fragments", "reclaim_all", "cudamalloc_retry"};

constexpr ::lms::Words kWords = {
    "storages",
    "operators",
    "raise it with torch.cuda.lms.enable(host_limit=...)",
    "use smaller inputs for the operator that failed: everything it uses at once must fit",
    "torch.cuda.lms.release_pointer",
    "torch.cuda.lms.pin() or collectives",
    "not of tensors that it knows (made by this operator so far, or workspaces, or made before it "
    "was first turned on and not used since: torch.cuda.lms.pin() makes these known)",
    "use smaller inputs",
    "let go of what the operator does not use and cannot move, as named above",
    ": it would fit alone"};

constexpr std::array<const char*, kWaits> kWaitNames = {"operands", "memory", "copies_in",
                                                        "copies_out"};

// Instead of the last but two, where that would help.
constexpr char kExpand[] = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";

// Of the allocator: up to State::kSmallBytes requests are in segments of their own, of one granule.
constexpr size_t kGranule = size_t{2} << 20;

// Bytes that the allocator holds on the device or, within all limits, could.
size_t attainable(DeviceIndex device, size_t reserved) {
  const CUDAGuard guard(device);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const double fraction = memory_fraction(device);
  const auto allowed = static_cast<size_t>(fraction * static_cast<double>(total));
  const size_t limit = device_limit();
  return std::min({reserved + free, allowed, limit == 0 ? SIZE_MAX : limit});
}

::lms::RouteCounts& routes_of(DeviceIndex device) {
  return detail::routes[static_cast<size_t>(device)];
}

}  // namespace

void count_allocations() noexcept { detail::counting = true; }

std::vector<std::pair<std::string, int64_t>> stats(DeviceIndex device) {
  State& s = state();
  EngineScope scope;
  ::lms::Report report = ::lms::report(s.engine, s.host, device);
  report.pool_in_use = allocated_bytes(device, Pool::kAll);
  report.pool_requested = requested_bytes(device);
  const ::lms::EngineStats& e = report.stats;
  std::vector<std::pair<std::string, int64_t>> result;
  const auto put = [&](std::string name, auto value) {
    result.emplace_back(std::move(name), static_cast<int64_t>(value));
  };
  for (const auto& [pool, pinned] :
       {std::pair<const char*, const ::lms::Pinned&>{"all", e.pinned},
        std::pair<const char*, const ::lms::Pinned&>{"large_pool", e.by_size[1]},
        std::pair<const char*, const ::lms::Pinned&>{"small_pool", e.by_size[0]}}) {
    for (const auto& [name, counter] :
         {std::pair<const char*, const ::lms::Counter&>{"pinned", pinned.count},
          std::pair<const char*, const ::lms::Counter&>{"pinned_bytes", pinned.bytes}}) {
      const std::string prefix = std::string(name) + "." + pool + ".";
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
        routes_of(device).of(static_cast<Route>(route)));
  }
  put("lms.enabled", enabled());
  put("lms.device_limit", device_limit());
  put("lms.soft_limit", soft_limit());
  put("lms.min_size", report.min_bytes);
  for (const auto& [name, value] : ::lms::fields(report)) {
    put(std::string("lms.") + name, value);
  }
  put("lms.unknown_bytes", ::lms::unknown_bytes(report));
  const auto microseconds = waited(device);
  for (size_t wait = 0; wait < kWaits; ++wait) {
    put(std::string("lms.waited.") + kWaitNames[wait] + "_us", microseconds[wait]);
  }
  put("lms.host.limit", report.host.limit);
  put("lms.host.reserved_bytes", report.host.reserved);
  put("lms.host.reserved_bytes_peak", report.host.reserved_peak);
  put("lms.host.used_bytes", report.host.used);
  put("lms.host.used_bytes_peak", report.host.used_peak);
  return result;
}

void reset_peak_stats(DeviceIndex device) {
  state().engine.reset_peaks(device);
  state().host.reset_peaks();
}

void reset_accumulated_stats(DeviceIndex device) {
  state().engine.reset_accumulated(device);
  routes_of(device).reset();
  reset_waited(device);
}

void warn_of_thrashing() {
  int device = 0;
  ::lms::Traffic traffic;
  while (state().engine.tell_thrashing(&device, &traffic)) {
    TORCH_WARN(::lms::thrashing("GPU " + std::to_string(device), traffic, kWords));
  }
}

std::string describe(DeviceIndex device, size_t wanted) {
  if (!reclaiming()) {
    return "";
  }
  const bool comes_in = in_engine();  // one of the op's own operands
  EngineScope scope;
  const ::lms::EngineLock lock(state().engine.mutex());
  ::lms::Report report = ::lms::report(state().engine, state().host, device);
  report.device_limit = device_limit();
  if (wanted > 0) {
    report.wanted = wanted;
    report.pool = "GPU " + std::to_string(device);
    report.pool_in_use = allocated_bytes(device, Pool::kAll);
    report.pool_requested = requested_bytes(device);
    report.pool_elsewhere =
        allocated_bytes(device, wanted > State::kSmallBytes ? Pool::kSmall : Pool::kLarge);
    report.pool_granule = kGranule;
    report.pool_bytes = attainable(device, reserved_bytes(device));
    report.own_known = true;
    const size_t own = state().engine.bytes_of(current_frame());
    report.own_bytes = comes_in ? own - std::min(own, wanted) : own;
    report.own_complete = false;
  }
  ::lms::Words words = kWords;
  if (wanted > 0 && lacks_expandable_segments()) {
    words.join = kExpand;
  }
  if (capture_underway()) {
    words.immovable = "cannot move while a CUDA graph is captured";
    words.others =
        "move out what the graph does not use before the capture: torch.cuda.lms.reclaim()";
  } else if (stands_still()) {
    words.immovable = "cannot move while a torch.cuda.MemPool is in use";
    words.others = "move out what the pool is not for before its use: torch.cuda.lms.reclaim()";
  }
  return ::lms::shortage(report, words);
}

}  // namespace c10::cuda::lms
