// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/State.h>
#include <c10/cuda/lms/compat/allocator.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

namespace c10::cuda::lms {
namespace detail {
::lms::Switch lms_switch;
std::atomic<bool> forked{false};
}  // namespace detail

namespace {

std::atomic<int> captures{0};
std::atomic<int> beginning{0};  // of these
std::atomic<bool> any_capture{false};

// Ops that were already past the op boundary when it was first installed hold no pins and were not
// counted. Nothing is evicted until they had this long to launch. Longer makes the first enable
// take as much longer; shorter evicts under one whose thread the machine keeps waiting.
constexpr std::chrono::milliseconds kFirstGrace{100};

// Waits for the devices that hold memory of the allocator.
void synchronize_devices() {
  for (DeviceIndex device = 0; device < device_count(); ++device) {
    if (reserved_bytes(device) > 0) {
      CUDAGuard guard(device);
      device_synchronize();
    }
  }
}

// The child, as a data loader's worker, finds the engine whole and its lock free, and is off.
void before_fork() { state().engine.mutex().lock(); }

void forked_parent() { state().engine.mutex().unlock(); }

void forked_child() {
  detail::forked = true;
  state().engine.forked();
  detail::lms_switch.forked();
  captures = beginning = 0;
}

class Owner final : public ::lms::Switch::Owner {
 public:
  size_t out() override { return state().backend.on_host(); }
  void settle(bool first) override {
    // To wait for a device ends a capture on it by an error.
    TORCH_CHECK(!capture_underway(),
                "Large Model Support cannot be enabled while a CUDA graph is captured; enable it "
                "before or after");
    if (first) {
      std::this_thread::sleep_for(kFirstGrace);
      learn_allocator();
    }
    synchronize_devices();
    note_made_while_off();
  }
  void bring_in() override { state().engine.page_in_all(&current_stream); }
  void set_poison(bool poison) override { state().backend.set_poison(poison); }
};

}  // namespace

::lms::Switch::Owner& switch_owner() {
  static auto* owner = new Owner;
  return *owner;
}

State& state() {
  static auto* state = [] {
    auto* made = new State;
    made->host.set_limit(made->host_share.limit());
    made->backend.set_host(&made->host);
    detail::lms_switch.attach(made->engine, switch_owner());
    pthread_atfork(&before_fork, &forked_parent, &forked_child);
    return made;
  }();
  return *state;
}

bool capture_underway() noexcept { return captures.load() > 0; }

bool capture_begins() noexcept { return beginning.load() > 0; }

bool captured() noexcept { return any_capture; }

void begin_capture() {
  begin_standstill();
  any_capture = true;
  {
    const auto settled = detail::lms_switch.hold();
    ++captures;
    ++beginning;
    detail::lms_switch.begin_pinning();
  }
  // Who moves something by now may still make its streams wait for the one that is to be captured.
  const ::lms::EngineLock moved(state().engine.mutex());
  hold_for_graph(true);  // its random numbers' seed, which PyTorch fills before the first operator
}

void capture_begun() {
  if (!in_child()) {
    hold_for_graph(false);
    --beginning;
  }
}

void end_capture() {
  if (!in_child()) {
    detail::lms_switch.end_pinning();
    --captures;
    end_standstill();
  }
}

bool enabled() noexcept { return detail::lms_switch.enabled(); }

void set_enabled(bool enable, std::chrono::milliseconds patience) {
  state();  // the switch is its
  EngineScope scope;
  if (!enable) {
    detail::lms_switch.disable();
  } else if (!enabled()) {
    const std::string obstacle = allocator_obstacle();
    TORCH_CHECK(obstacle.empty(), "Large Model Support cannot be enabled: ", obstacle);
    TORCH_CHECK(detail::lms_switch.enable(patience),
                "Large Model Support cannot be enabled because operators that began while it was "
                "off still run in other threads after ",
                patience.count() / 1000,
                " seconds; enable it before they begin, or when they have ended");
  }
}

void set_chaos(bool chaos) {
  state();
  TORCH_CHECK(
      detail::lms_switch.set_chaos(chaos),
      "Chaos mode cannot be switched while storages are in host memory: disable Large Model "
      "Support first.");
}

void set_refusing(bool refusing) {
  EngineScope scope;
  const ::lms::EngineLock lock(state().engine.mutex());
  state().backend.set_refusing(refusing);
  for (const ::lms::Key key : state().engine.all_out()) {
    state().backend.refuse(key);
  }
}

bool chaos() noexcept { return detail::lms_switch.chaos(); }

}  // namespace c10::cuda::lms
