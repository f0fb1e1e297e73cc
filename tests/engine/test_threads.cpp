// SPDX-License-Identifier: Apache-2.0
// Threads that run ops, evict and let storages die at the same time. Worth most under TSan.
// Options: threads, steps, seed.
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine.h"
#include "fake.h"
#include "harness.h"
#include "host_pool.h"

namespace {

using fake::Random;
using fake::StorageRef;
using fake::stream;
using lms::Access;
using lms::Engine;
using lms::Use;

constexpr std::size_t kBytes = 512;
constexpr std::size_t kShared = 8;

struct Tensor {
  StorageRef storage;
  std::uint64_t tag;
  fake::EventPtr written;
};

struct Common {
  Common(std::uint64_t seed, std::size_t threads)
      : device(seed, fake::Backend::streams_needed(threads + 1)),
        memory(1024 * kBytes),
        pool(memory, 8 * kBytes),
        backend(device, threads + 1, 12 * kBytes),
        engine(backend, pool) {
    backend.attach(&engine, &pool);
    engine.set_min_bytes(0);
  }
  fake::Device device;
  fake::HostMemory memory;
  lms::HostPool pool;
  fake::Backend backend;
  Engine engine;
  std::mutex mutex;  // of the list only: readers keep what they took from it
  std::vector<Tensor> shared;
  std::atomic<std::uint64_t> tags{1};
  std::atomic<long> ops{0};
};

class Worker {
 public:
  Worker(Common* common, std::size_t index, std::uint64_t seed)
      : c_(*common), random_(seed), stream_(stream(index + 1)) {}
  ~Worker() { c_.engine.close_lane(frame_); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run(long steps) {
    for (long i = 0; i < steps && c_.device.failure().empty(); ++i) {
      try {
        step_();
      } catch (const fake::OutOfMemory&) {
      }
      c_.device.run(random_.below(8));
    }
    while (!own_.empty()) drop_();
  }
  // Nothing but ops on one device, so that it comes to own that part of the lock.
  void run_ops(long count) {
    const Tensor tensor = any_shared_();
    const Use use{tensor.storage.get(), Access::kRead, stream_};
    for (long i = 0; i < count && c_.device.failure().empty(); ++i) {
      fake::Scope scope;
      c_.engine.enter(frame_, &use, 1, nullptr, "", tensor.storage->device);
      ++tensor.storage->held;
      launch_(tensor, Access::kRead, 0);
      --tensor.storage->held;
      c_.engine.leave(frame_);
      c_.device.run(2);
    }
  }

 private:
  void step_() {
    switch (random_.below(16)) {
      case 0:
      case 1:
        return create_();
      case 2:
        if (own_.size() > 2) drop_();
        return;
      case 3: {
        fake::Scope scope;
        c_.engine.evict_all(random_.one_in(2), lms::Sizes::kAny);
        return;
      }
      case 4: {
        const Tensor tensor = any_shared_();
        fake::Scope scope;
        c_.engine.evict(tensor.storage.get());
        return;
      }
      case 5:
        return pin_();
      case 6:
        return expose_();
      case 7:
        return renew_shared_();
      case 8: {
        fake::Scope scope;
        c_.engine.census(random_.one_in(2));
        c_.engine.stats(0);
        c_.pool.stats();
        return;
      }
      case 9: {
        fake::Scope scope;
        if (random_.one_in(2)) c_.engine.purge();
        c_.engine.set_chaos(random_.one_in(8));
        c_.pool.set_limit(random_.one_in(2) ? 0 : kBytes * (16 + random_.below(64)));
        c_.pool.trim();
        return;
      }
      case 10: {
        fake::Scope scope;
        if (random_.one_in(4)) c_.engine.page_in_all([](int) { return stream(0); });
        return;
      }
      default:
        return op_();
    }
  }

  void launch_(const Tensor& tensor, Access access, std::uint64_t tag) {
    void* ptr = tensor.storage->ptr;
    fake::Device* device = &c_.device;
    const std::uint64_t expected = tensor.tag;
    c_.device.launch(stream_, [=] {
      if (access != Access::kOverwrite && !fake::holds(ptr, kBytes, expected)) {
        device->fail("a kernel read wrong bytes");
      }
      if (access != Access::kRead) fake::fill(ptr, kBytes, tag);
    });
  }

  void write_(Tensor* tensor, Access access) {
    const std::uint64_t tag = c_.tags++;
    launch_(*tensor, access, tag);
    tensor->tag = tag;
  }

  void create_() {
    if (own_.size() > 8) return;
    const int device = random_.one_in(2);
    Tensor tensor{c_.backend.create(kBytes, stream_, device), 0, nullptr};
    tensor.storage->held = 1;
    write_(&tensor, Access::kOverwrite);
    tensor.storage->held = 0;
    fake::Scope scope;
    c_.engine.note(nullptr, tensor.storage.get(), stream_, 0, device);
    own_.push_back(std::move(tensor));
  }

  void drop_() { own_.pop_back(); }

  Tensor any_shared_() {
    std::lock_guard<std::mutex> lock(c_.mutex);
    return c_.shared[random_.below(c_.shared.size())];
  }

  // Another storage takes the place of a shared one, which dies in the last thread that reads it.
  void renew_shared_() {
    if (own_.empty()) return;
    Tensor tensor = std::move(own_.back());
    own_.pop_back();
    tensor.written = c_.device.record(stream_);
    std::lock_guard<std::mutex> lock(c_.mutex);
    std::swap(c_.shared[random_.below(c_.shared.size())], tensor);
  }

  // Not all who call it know it.
  int told_device_(const Tensor& tensor) { return random_.one_in(4) ? -1 : tensor.storage->device; }

  void op_() {
    ++c_.ops;
    fake::Scope scope;
    std::vector<Use> uses;
    const Tensor input = any_shared_();
    uses.push_back({input.storage.get(), Access::kRead, stream_});
    Tensor* mine = own_.empty() ? nullptr : &own_[random_.below(own_.size())];
    const auto access = static_cast<Access>(random_.below(3));
    if (mine != nullptr && mine->storage->device != input.storage->device && !random_.one_in(4)) {
      mine = nullptr;  // mostly of one device
    }
    if (mine != nullptr) uses.push_back({mine->storage.get(), access, stream_});
    const bool one = mine == nullptr || mine->storage->device == input.storage->device;
    Engine::Frame& frame = frame_;
    try {
      c_.engine.enter(frame, uses.data(), uses.size(), nullptr, "", one ? told_device_(input) : -1);
    } catch (const fake::OutOfMemory&) {
      c_.engine.leave(frame);
      return;
    }
    for (const Use& use : uses) ++static_cast<fake::Storage*>(use.key)->held;
    if (random_.one_in(3)) std::this_thread::yield();
    c_.device.wait(stream_, input.written);
    launch_(input, Access::kRead, 0);
    // Whoever lets it die frees it on its home stream.
    c_.device.order(input.storage->home, stream_);
    if (mine != nullptr && access == Access::kRead) launch_(*mine, access, 0);
    if (mine != nullptr && access != Access::kRead) write_(mine, access);
    for (const Use& use : uses) --static_cast<fake::Storage*>(use.key)->held;
    c_.engine.leave(frame);
  }

  void pin_() {
    if (own_.empty()) return;
    Tensor& tensor = own_.back();
    lms::Key key = tensor.storage.get();
    {
      fake::Scope scope;
      c_.engine.pin(key, stream_);
    }
    ++tensor.storage->held;
    if (random_.one_in(2)) std::this_thread::yield();
    write_(&tensor, Access::kWrite);
    --tensor.storage->held;
    if (random_.one_in(2)) drop_();  // dies while it is pinned
    fake::Scope scope;
    c_.engine.unpin(key);
  }

  void expose_() {
    if (own_.empty()) return;
    Tensor& tensor = own_.back();
    fake::Scope scope;
    c_.engine.expose(tensor.storage.get(), stream_);
    ++tensor.storage->held;
    write_(&tensor, Access::kWrite);
    if (random_.one_in(2)) std::this_thread::yield();
    --tensor.storage->held;
    c_.engine.unexpose(tensor.storage.get());
  }

  Common& c_;
  Random random_;
  lms::Stream stream_;
  Engine::Frame frame_{c_.engine.open_lane()};
  std::vector<Tensor> own_;
};

void make_shared_tensors(Common* common) {
  for (std::size_t i = 0; i < kShared; ++i) {
    Tensor tensor{common->backend.create(kBytes, stream(0), static_cast<int>(i % 2)),
                  common->tags++, nullptr};
    void* ptr = tensor.storage->ptr;
    const std::uint64_t tag = tensor.tag;
    common->device.launch(stream(0), [ptr, tag] { fake::fill(ptr, kBytes, tag); });
    tensor.written = common->device.record(stream(0));
    common->shared.push_back(std::move(tensor));
  }
}

}  // namespace

TEST(threads_share_one_engine) {
  const auto threads = static_cast<std::size_t>(harness::option("threads", 8));
  const long steps = harness::option("steps", 1000), seed = harness::option("seed", 1);
  Common common(static_cast<std::uint64_t>(seed), threads);
  make_shared_tensors(&common);
  std::vector<std::thread> running;
  for (std::size_t i = 0; i < threads; ++i) {
    running.emplace_back([&common, i, seed, steps] {
      Worker(&common, i, static_cast<std::uint64_t>(seed) * 1000 + i).run(steps);
    });
  }
  for (std::thread& thread : running) thread.join();
  common.device.drain();
  CHECK_EQ(common.device.failure(), "");
  common.pool.check();
  for (const Tensor& tensor : common.shared) {
    CHECK(fake::holds(tensor.storage->ptr, kBytes, tensor.tag));
  }
  CHECK(common.ops > steps);
  CHECK(common.backend.counts.outs > 0 && common.backend.counts.ins > 0);
  common.shared.clear();
  common.engine.purge();
  CHECK_EQ(common.backend.retained.size(), 0u);
  for (const int device : {0, 1}) {
    const lms::EngineStats stats = common.engine.stats(device);
    CHECK(stats.used > 0);
    CHECK_EQ(stats.pinned.count.current, 0);
    CHECK_EQ(stats.pinned.bytes.current, 0);
  }
  common.device.drain();
  common.pool.trim();
  CHECK_EQ(common.pool.stats().reserved, 0u);
}

// Each owns the part of a device for as long as no other, nor one that takes the whole, comes by.
TEST(threads_take_what_another_owns) {
  constexpr long kOps = 5000;
  Common common(1, 2);
  make_shared_tensors(&common);
  common.device.drain();
  std::atomic<int> running{2};
  std::vector<std::thread> workers;
  for (std::size_t i = 0; i < 2; ++i) {
    workers.emplace_back([&common, &running, i] {
      Worker(&common, i, i).run_ops(kOps);
      --running;
    });
  }
  for (int i = 0; running > 0; ++i) {
    {
      fake::Scope scope;
      common.engine.evict_all(i % 2, lms::Sizes::kAny);
      common.engine.census(i % 2);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (std::thread& worker : workers) worker.join();
  common.device.drain();
  CHECK_EQ(common.device.failure(), "");
  CHECK_EQ(common.engine.stats(0).used + common.engine.stats(1).used, 2 * kOps);
  CHECK(common.backend.counts.outs > 0);
}

// What the thread sanitizer holds all cases here to: no two locks in both orders. With reversed=1
// the engine's lock is taken under another one, too.
TEST(threads_lock_in_one_order) {
  Common common(1, 1);
  std::mutex leaf;
  std::thread([&common, &leaf] {
    const lms::EngineLock engine(common.engine.mutex());
    const std::lock_guard<std::mutex> lock(leaf);
  }).join();
  if (harness::option("reversed", 0) == 0) return;
  std::thread([&common, &leaf] {
    const std::lock_guard<std::mutex> lock(leaf);
    common.engine.census(0);
  }).join();
}
