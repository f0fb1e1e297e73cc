// SPDX-License-Identifier: Apache-2.0
#include "switch.h"

#include <algorithm>
#include <iterator>
#include <thread>

namespace lms {
namespace {

// How often to look whether ops without pins are over: short beside most ops, and long beside the
// cost of looking.
constexpr std::chrono::microseconds kLookAgain{20};

// Threads count in counters of their own, as far as there are enough, so that an op that runs with
// Large Model Support off writes no memory that other threads write. With more of them enabling
// reads more; with fewer more threads share one.
constexpr int kStripes = 64;
struct alignas(64) Stripe {
  std::atomic<int> count{0};
};
Stripe stripes[kStripes];

}  // namespace

struct UnpinnedOp::Mine {
  std::atomic<int>* stripe = nullptr;
  int count = 0;  // of this thread's own: ops nest
};

namespace {

thread_local UnpinnedOp::Mine thread_of_its_own;

UnpinnedOp::Mine& this_thread() {
  static std::atomic<unsigned> next{0};
  UnpinnedOp::Mine& mine = thread_of_its_own;
  if (LMS_UNLIKELY(mine.stripe == nullptr)) {
    mine.stripe = &stripes[next.fetch_add(1) % kStripes].count;
  }
  return mine;
}

bool others_run() {
  const UnpinnedOp::Mine& mine = this_thread();
  return std::any_of(std::begin(stripes), std::end(stripes), [&mine](const Stripe& stripe) {
    return stripe.count.load() > (&stripe.count == mine.stripe ? mine.count : 0);
  });
}

}  // namespace

// The count is seen before the switch is asked again, and the other way round in `enable`: one of
// the two sees the other (both are sequentially consistent).
UnpinnedOp::UnpinnedOp() noexcept : mine_(this_thread()) {
  ++mine_.count;
  mine_.stripe->fetch_add(1);
}

UnpinnedOp::~UnpinnedOp() {
  mine_.stripe->fetch_sub(1);
  --mine_.count;
}

bool wait_for_unpinned_ops(std::chrono::milliseconds patience) {
  const auto start = std::chrono::steady_clock::now();
  while (others_run()) {
    if (std::chrono::steady_clock::now() - start >= patience) return false;
    std::this_thread::sleep_for(kLookAgain);
  }
  return true;
}

void Switch::attach(Engine& engine, Owner& owner) {
  engine_ = &engine;
  owner_ = &owner;
}

void Switch::to_(State state) noexcept {
  const State before = state_.exchange(state);
  if (before == State::kOff && state != State::kOff) begin_pinning();
  if (before != State::kOff && state == State::kOff) end_pinning();
}

bool Switch::enable(std::chrono::milliseconds patience) {
  const std::lock_guard<std::mutex> switching(switching_);
  if (enabled()) return true;
  ever_active_ = true;
  {
    const EngineLock lock(engine_->mutex());
    to_(State::kEnabling);
  }
  try {
    // What ops without pins use must not be evicted, nor what their kernels use, on streams that
    // nobody noted.
    if (!wait_for_unpinned_ops(patience)) {
      disable_();
      return false;
    }
    owner_->settle(!settled_);
    settled_ = true;
  } catch (...) {
    disable_();
    throw;
  }
  const EngineLock lock(engine_->mutex());
  to_(State::kOn);
  reclaiming_ = true;
  engine_->set_chaos(chaos_);
  return true;
}

void Switch::disable() {
  const std::lock_guard<std::mutex> switching(switching_);
  if (!enabled()) return;
  disable_();
}

void Switch::disable_() {
  {
    const EngineLock lock(engine_->mutex());
    to_(State::kDisabling);
    engine_->set_chaos(false);
  }
  owner_->bring_in();
  retire_();
}

void Switch::retire_() {
  const EngineLock lock(engine_->mutex());
  if (state_ != State::kDisabling || owner_->out() > 0) return;
  engine_->wait_for_copies();  // no op joins them from now on
  engine_->drop_copies();      // nothing looks after a write barrier from now on
  reclaiming_ = false;
  to_(State::kOff);
}

bool Switch::set_chaos(bool chaos) {
  const std::lock_guard<std::mutex> switching(switching_);
  const EngineLock lock(engine_->mutex());
  if (chaos == chaos_) return true;
  if (owner_->out() > 0) return false;
  owner_->set_poison(chaos);
  chaos_ = chaos;
  engine_->set_chaos(chaos && enabled());  // not before all running ops hold pins
  return true;
}

}  // namespace lms
