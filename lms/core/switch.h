// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#include "engine.h"

namespace lms {

// Turns Large Model Support on and off while ops run.
//
//   off --enable--> enabling --no op runs without pins--> on --disable--> disabling
//    ^                 ^ |                                                 |     |
//    |                 | +---------- too many did for too long ----------->+     |
//    |                 +------------------------ enable ---------------------<---+
//    +-------------------------- nothing is out any more ---------------------<--+
//
// Invariant: nothing is evicted while an op runs that has no pins. So ops pin in every state but
// off, those that found it off are counted, and enabling waits for them; and off is reached only
// when nothing is out, because an op without pins would not bring it in.
//
// A constant-initialised object of static storage duration, so that ops find it at any time.
class Switch {
 public:
  enum class State : std::uint8_t { kOff, kEnabling, kOn, kDisabling };

  // What the adaptor does at a transition.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Storages in host memory. Under the engine's lock.
    virtual std::size_t out() = 0;
    // Waits for what ops that had no pins may have left running on a device. `first`: ops may be
    // running that were not counted, because there was no op boundary. Under no lock. May throw:
    // then it stays off.
    virtual void settle(bool first) = 0;
    // Brings in what fits. Under no lock.
    virtual void bring_in() = 0;
    // Makes accesses outside of ops fail from the next page-out on. Under the engine's lock.
    virtual void set_poison(bool) {}
  };

  constexpr Switch() noexcept = default;
  // Before anything else but the questions below.
  void attach(Engine& engine, Owner& owner);

  State state() const noexcept { return state_.load(); }
  // Whether ops must pin. To be asked again under an UnpinnedOp before one runs without.
  bool active() const noexcept { return pinning_.load() > 0; }
  bool enabled() const noexcept { return state_.load(std::memory_order_relaxed) == State::kOn; }
  // Whether storages may be evicted. False while enabling, unless it never came to be off.
  bool reclaiming() const noexcept { return reclaiming_.load(std::memory_order_relaxed); }
  // Whether it was ever more than off.
  bool ever_active() const noexcept { return ever_active_.load(); }

  // Returns false, and is disabled, when ops without pins still run after `patience`.
  bool enable(std::chrono::milliseconds patience);
  // What does not fit stays out and comes in when an op wants it, which may still evict others.
  void disable();
  // To be called when an op is over or a storage has died: turns off what is disabled, when nothing
  // is out any more.
  void retire() {
    if (LMS_UNLIKELY(state_.load(std::memory_order_relaxed) == State::kDisabling)) retire_();
  }

  // From one to the other ops must pin, whatever the state is. They are counted.
  void begin_pinning() noexcept { ++pinning_; }
  void end_pinning() noexcept { --pinning_; }

  // While it lives, it is neither turned on nor off.
  std::unique_lock<std::mutex> hold() { return std::unique_lock<std::mutex>(switching_); }

  // Off at once, in the child of a fork: it has no device, nor the thread that may be switching.
  void forked() noexcept {
    new (&switching_) std::mutex;
    reclaiming_ = false;
    state_ = State::kOff;
    pinning_ = 0;
  }

  // Chaos mode, from the next time on that it is on. False, and as it was, while storages are out.
  bool set_chaos(bool chaos);
  bool chaos() const noexcept { return chaos_.load(); }

 private:
  void to_(State state) noexcept;
  void retire_();
  void disable_();

  Engine* engine_ = nullptr;
  Owner* owner_ = nullptr;
  std::mutex switching_;  // one transition at a time; before the engine's lock
  bool settled_ = false;  // once, with `first`; under `switching_`
  // Changed under the engine's lock.
  std::atomic<State> state_{State::kOff};
  std::atomic<int> pinning_{0};  // reasons why ops must pin: that it is not off is one
  std::atomic<bool> reclaiming_{false};
  std::atomic<bool> ever_active_{false};
  std::atomic<bool> chaos_{false};
};

// Around an op that runs without pins because the switch is off. In one thread from begin to end.
// Counts for the process, which has one switch.
class UnpinnedOp {
 public:
  UnpinnedOp() noexcept;
  ~UnpinnedOp();
  UnpinnedOp(const UnpinnedOp&) = delete;
  UnpinnedOp& operator=(const UnpinnedOp&) = delete;

  struct Mine;  // of a thread

 private:
  Mine& mine_;
};

// Waits until no other thread has an UnpinnedOp. False when some still do after `patience`.
bool wait_for_unpinned_ops(std::chrono::milliseconds patience);

}  // namespace lms
