// SPDX-License-Identifier: Apache-2.0
// Options: threads, steps, seed.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine.h"
#include "fake.h"
#include "harness.h"
#include "host_pool.h"
#include "late_stores.h"
#include "switch.h"

namespace {

using fake::StorageRef;
using fake::stream;
using lms::Place;
using lms::Switch;
using lms::UnpinnedOp;
using std::chrono::milliseconds;
using State = Switch::State;

constexpr std::size_t kBytes = 512;
constexpr milliseconds kNow{0};
constexpr milliseconds kLong = std::chrono::hours(1);

struct Rig final : Switch::Owner {
  explicit Rig(std::size_t streams = 1, std::size_t storages = 2)
      : device(1, fake::Backend::streams_needed(streams)),
        memory(64 * kBytes),
        pool(memory, 8 * kBytes),
        backend(device, streams, storages * kBytes),
        engine(backend, pool) {
    backend.attach(&engine, &pool);
    engine.set_min_bytes(0);
    lms_switch.attach(engine, *this);
  }
  ~Rig() override {
    made.clear();
    engine.purge();
  }

  std::size_t out() override {
    std::size_t count = 0;
    for (const StorageRef& storage : made) count += storage->place == Place::kHost ? 1 : 0;
    return count;
  }
  void settle(bool is_first) override {
    first = is_first;
    if (on_settle) on_settle();
  }
  void bring_in() override {
    fake::Scope scope;
    engine.page_in_all([](int) { return stream(0); });
  }
  void set_poison(bool on) override { poison = on; }

  void make(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      made.push_back(backend.create(kBytes, stream(0)));
      fake::Scope scope;
      engine.note(nullptr, made.back().get(), stream(0));
    }
  }
  bool enable(milliseconds patience) {
    fake::Scope scope;
    return lms_switch.enable(patience);
  }
  void disable() {
    fake::Scope scope;
    lms_switch.disable();
  }
  bool evict(std::size_t index) {
    fake::Scope scope;
    return engine.evict(made[index].get());
  }

  fake::Device device;
  fake::HostMemory memory;
  lms::HostPool pool;
  fake::Backend backend;
  lms::Engine engine;
  Switch lms_switch;
  std::vector<StorageRef> made;
  std::function<void()> on_settle;
  bool first = false, poison = false;
};

// An op of another thread that runs without pins until `end`.
class Running {
 public:
  Running() : thread_([this] { run_(); }) {
    while (!begun_) std::this_thread::yield();
  }
  ~Running() { end(); }
  void end() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run_() {
    const UnpinnedOp op;
    begun_ = true;
    while (!ended_) std::this_thread::yield();
  }
  std::atomic<bool> begun_{false}, ended_{false};
  std::thread thread_;
};

}  // namespace

TEST(switch_turns_on_and_off) {
  Rig rig;
  rig.make(1);
  Switch& lms_switch = rig.lms_switch;
  CHECK(!lms_switch.active() && !lms_switch.ever_active());
  CHECK(rig.enable(kNow));
  CHECK(lms_switch.active() && lms_switch.enabled() && lms_switch.reclaiming() && rig.first);
  CHECK(rig.evict(0));
  rig.disable();
  CHECK(rig.made[0]->place == Place::kDevice);
  CHECK(!lms_switch.active() && !lms_switch.reclaiming() && lms_switch.ever_active());
  CHECK(rig.enable(kNow));
  CHECK(!rig.first);
  rig.disable();
}

// Ops pin from the moment on that enabling begins, and nothing is evicted before it is over.
TEST(switch_waits_for_ops_without_pins) {
  Rig rig;
  Running running;
  std::atomic<bool> enabled{false};
  std::thread enabling([&] { enabled = rig.enable(kLong); });
  while (!rig.lms_switch.active()) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(20));
  CHECK(rig.lms_switch.state() == State::kEnabling);
  CHECK(!rig.lms_switch.reclaiming() && !rig.lms_switch.enabled());
  running.end();
  enabling.join();
  CHECK(enabled && rig.lms_switch.reclaiming());
  rig.disable();
}

TEST(switch_gives_up_waiting) {
  Rig rig;
  Running running;
  CHECK(!rig.enable(milliseconds(5)));
  CHECK(rig.lms_switch.state() == State::kOff);
  running.end();
  CHECK(rig.enable(milliseconds(5)));
  CHECK(rig.first);  // nobody waited for what was not counted before
  rig.disable();
}

// As while a graph is captured, which may be while it is off, or turned on or off meanwhile.
TEST(switch_has_ops_pin_for_others) {
  Rig rig;
  Switch& lms_switch = rig.lms_switch;
  lms_switch.begin_pinning();
  CHECK(lms_switch.active() && lms_switch.state() == State::kOff);
  CHECK(rig.enable(kNow));
  lms_switch.begin_pinning();
  lms_switch.end_pinning();
  CHECK(lms_switch.active());
  rig.disable();
  CHECK(lms_switch.active() && lms_switch.state() == State::kOff);
  lms_switch.end_pinning();
  CHECK(!lms_switch.active());
  CHECK(rig.enable(kNow));
  rig.disable();
  CHECK(!lms_switch.active());
  lms_switch.begin_pinning();
  lms_switch.forked();
  CHECK(!lms_switch.active());
}

// A program may turn it on from within an op of its own.
TEST(switch_does_not_wait_for_its_own_thread) {
  Rig rig;
  const UnpinnedOp outer, inner;
  CHECK(rig.enable(kNow));
  rig.disable();
}

// An op that ends while it is being turned on must not turn it off.
TEST(switch_is_not_undone_while_enabling) {
  Rig rig;
  rig.on_settle = [&] {
    rig.lms_switch.retire();
    CHECK(rig.lms_switch.active());
  };
  CHECK(rig.enable(kNow));
  CHECK(rig.lms_switch.active());
  rig.disable();
}

TEST(switch_stays_off_when_settling_fails) {
  Rig rig;
  rig.on_settle = [] { throw std::runtime_error("a device is lost"); };
  CHECK_THROWS(rig.enable(kNow), std::runtime_error);
  CHECK(rig.lms_switch.state() == State::kOff);
  rig.on_settle = nullptr;
  CHECK(rig.enable(kNow));
  rig.disable();
}

// What does not fit keeps ops pinning until one has brought it in.
TEST(switch_turns_off_when_nothing_is_out) {
  Rig rig;
  Switch& lms_switch = rig.lms_switch;
  rig.make(2);
  CHECK(rig.enable(kNow));
  CHECK(rig.evict(0));
  rig.made.push_back(rig.backend.create(kBytes, stream(0)));  // in its place, unknown to the engine
  rig.disable();
  CHECK(lms_switch.state() == State::kDisabling);
  CHECK(lms_switch.active() && lms_switch.reclaiming() && !lms_switch.enabled());
  // On again before it was off: there is nobody to wait for, and what is out may come in at once.
  bool reclaiming = false;
  rig.on_settle = [&] { reclaiming = lms_switch.reclaiming(); };
  CHECK(rig.enable(kNow));
  CHECK(reclaiming);
  rig.disable();
  rig.made.pop_back();
  {
    fake::Scope scope;
    lms::Engine::Frame frame;
    const lms::Use use{rig.made[0].get(), lms::Access::kRead, stream(0)};
    rig.engine.enter(frame, &use, 1);
    rig.engine.leave(frame);
    lms_switch.retire();
  }
  CHECK(lms_switch.state() == State::kOff);
  CHECK(!lms_switch.reclaiming());
}

TEST(switch_keeps_chaos_for_when_it_is_on) {
  Rig rig;
  rig.make(1);
  Switch& lms_switch = rig.lms_switch;
  CHECK(lms_switch.set_chaos(true) && rig.poison);
  CHECK(!rig.engine.chaos());
  CHECK(rig.enable(kNow));
  CHECK(rig.engine.chaos());
  CHECK(rig.evict(0));
  CHECK(!lms_switch.set_chaos(false));
  CHECK(rig.poison && lms_switch.chaos());
  rig.disable();
  CHECK(!rig.engine.chaos());
  CHECK(lms_switch.set_chaos(false) && !rig.poison);
}

// Once it is enabled no op runs without pins, though its count may come late to others.
TEST(switch_sees_an_op_that_has_just_begun) {
  Rig rig;
  std::atomic<bool> over{false}, runs{false}, on{false};
  long missed = 0, ops = 0;
  const auto look = [&on] {
    int seen = 0;
    for (int i = 0; i < 3000; ++i) seen += on.load(std::memory_order_relaxed) ? 1 : 0;
    return seen > 0;
  };
  std::thread thread([&] {
    LateStores stores;
    while (!over.load(std::memory_order_relaxed)) {
      stores();
      const UnpinnedOp op;
      if (rig.lms_switch.active()) continue;
      ++ops;
      missed += look() ? 1 : 0;
      runs.store(true, std::memory_order_relaxed);
    }
  });
  while (!runs) std::this_thread::yield();
  const long rounds = harness::option("rounds", 50'000);
  for (long i = 0; i < rounds; ++i) {
    CHECK(rig.lms_switch.enable(kLong));
    on = true;
    look();
    on = false;
    rig.lms_switch.disable();
    for (int pause = 0; pause < 3; ++pause) look();
  }
  over = true;
  thread.join();
  CHECK(ops > 0);
  CHECK_EQ(missed, 0);
}

// Of more threads than there are counters.
TEST(switch_counts_the_ops_of_many_threads) {
  Rig rig;
  for (int i = 0; i < 50; ++i) {
    std::atomic<bool> begun{false}, over{false};
    std::thread longer([&] {
      const UnpinnedOp outer, inner;
      begun = true;
      while (!over) std::this_thread::yield();
    });
    while (!begun) std::this_thread::yield();
    std::thread([] { const UnpinnedOp op; }).join();
    CHECK(!rig.lms_switch.enable(kNow));
    over = true;
    longer.join();
    const UnpinnedOp mine;  // does not count for this thread itself
    CHECK(rig.lms_switch.enable(kNow));
    rig.lms_switch.disable();
  }
}

// Ops of several threads, with pins and without, while one thread turns it on and off and another
// evicts. Evicting what an op relies on fails in the fake backend.
TEST(switch_while_threads_run_ops) {
  const long threads = harness::option("threads", 3), steps = harness::option("steps", 2000);
  Rig rig(1, 8);
  rig.make(8);
  std::atomic<long> running{threads}, with_pins{0}, without_pins{0};
  const auto run = [&](std::uint64_t seed) {
    fake::Random random(seed);
    // Until it was seen both on and off: who switches may get no turn for long.
    for (long i = 0; i < steps || with_pins == 0 || without_pins == 0; ++i) {
      fake::Storage* storage = rig.made[random.below(8)].get();
      const auto use_it = [&] {
        if (storage->place != Place::kDevice) rig.device.fail("an op found its storage out");
        ++storage->held;
        std::this_thread::yield();
        --storage->held;
      };
      if (!rig.lms_switch.active()) {
        const UnpinnedOp op;
        if (!rig.lms_switch.active()) {
          use_it();
          ++without_pins;
          continue;
        }
      }
      fake::Scope scope;
      lms::Engine::Frame frame;
      const lms::Use use{storage, lms::Access::kRead, stream(0)};
      rig.engine.enter(frame, &use, 1, nullptr, "", 0);
      use_it();
      rig.engine.leave(frame);
      rig.lms_switch.retire();
      ++with_pins;
    }
    --running;
  };
  std::vector<std::thread> workers;
  for (long i = 0; i < threads; ++i) {
    workers.emplace_back(run, static_cast<std::uint64_t>(harness::option("seed", 1) + i));
  }
  std::thread evictor([&] {
    while (running > 0) {
      fake::Scope scope;
      const lms::EngineLock lock(rig.engine.mutex());
      if (rig.lms_switch.reclaiming()) rig.engine.evict_all(0, lms::Sizes::kAny);
      rig.device.run(16);
    }
  });
  while (running > 0) {
    CHECK(rig.enable(kLong));
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    rig.disable();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  for (std::thread& worker : workers) worker.join();
  evictor.join();
  rig.device.drain();
  CHECK_EQ(rig.device.failure(), "");
}

TEST(switch_is_off_in_the_child_of_a_fork) {
  Rig rig;
  rig.make(1);
  CHECK(rig.enable(kNow));
  const lms::EngineLock lock(rig.engine.mutex());
  const pid_t child = fork();
  if (child == 0) {
    rig.engine.forked();
    rig.lms_switch.forked();
    const bool off = !rig.lms_switch.active() && !rig.lms_switch.reclaiming();
    alarm(10);
    rig.engine.census(0);  // its lock is free
    const lms::Use use{rig.made[0].get(), lms::Access::kRead, stream(0)};
    const fake::Scope scope;
    lms::Engine::Frame frame;
    rig.engine.enter(frame, &use, 1, nullptr, "", 0);  // and each part of it
    rig.engine.leave(frame);
    _exit(off ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(rig.lms_switch.active());
}
