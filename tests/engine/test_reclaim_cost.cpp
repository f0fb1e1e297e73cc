// SPDX-License-Identifier: Apache-2.0
// What it costs to make room for an op that finds none: the same with many storages that are too
// small to be victims, because they are not looked at, and with many victims, because several leave
// at once. `bench.py` prints what the cases do.
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "engine.h"
#include "fake.h"
#include "harness.h"
#include "host_pool.h"
#include "reclaim.h"

namespace {

constexpr std::size_t kLarge = std::size_t{8} << 20, kSmall = 4096, kMinimum = std::size_t{1} << 20;

// A device with so many places for large storages, and as many for small ones as there are. There
// are no bytes and no streams, so the time is the engine's and the core's.
class Device final : public lms::Backend {
 public:
  struct Storage {
    std::size_t bytes;
    void* block;  // null: it is out
    lms::HostRange host;
  };

  explicit Device(std::size_t places) : places_(places) {
    for (char& place : places_) free_.push_back(&place);
  }

  void retain(lms::Key) override {}
  void release(lms::Key) override {}
  bool acquire(lms::Key) override { return true; }
  bool dead(lms::Key) override { return false; }
  lms::Extent locate(lms::Key key) override {
    ++located;
    const auto* storage = static_cast<Storage*>(key);
    return {storage->block != nullptr ? lms::Place::kDevice : lms::Place::kHost,
            storage->block != nullptr ? storage->block : storage->host.ptr, storage->bytes, 0};
  }
  std::size_t bytes_of(lms::Key key) override { return static_cast<Storage*>(key)->bytes; }
  void guard(lms::Key) override {}
  bool unguard(lms::Key) override { return true; }
  bool movable(const lms::Extent&, const lms::StreamSet&) override { return true; }
  void page_out(lms::Key key, const lms::Extent& from, lms::HostRange host, bool,
                const lms::StreamSet&) override {
    auto* storage = static_cast<Storage*>(key);
    free_.push_back(from.ptr);
    storage->block = nullptr;
    storage->host = host;
  }
  lms::HostRange page_in(lms::Key key, bool, lms::Stream, lms::Reclaim,
                         lms::FencePtr* arrival) override {
    auto* storage = static_cast<Storage*>(key);
    storage->block = take();
    if (storage->block == nullptr) throw fake::OutOfMemory();
    *arrival = nullptr;
    return storage->host;
  }
  void refill(lms::Key, lms::HostRange, lms::Stream, lms::FencePtr*) override {}
  void join(lms::Stream, const lms::FencePtr&) override {}

  void* take() {
    Lists lists(*this);
    lms::RoomRequest request;
    request.bytes = kLarge;
    if (!lists.take_free_block() && make_room(*engine, lists, request) == lms::Route::kNone) {
      return nullptr;
    }
    return lists.taken;
  }

  lms::Engine* engine = nullptr;
  std::size_t located = 0;

 private:
  class Lists final : public lms::BlockLists {
   public:
    explicit Lists(Device& device) : device_(device) {}
    bool take_free_block() override {
      if (device_.free_.empty()) return false;
      taken = device_.free_.back();
      device_.free_.pop_back();
      return true;
    }
    bool take_new_segment() override { return false; }
    std::vector<lms::Segment> segments(const lms::IdleMap& idle) override {
      std::vector<lms::Segment> all(1);
      all[0].can_hold = true;
      all[0].releasable = false;
      for (char& place : device_.places_) {
        all[0].blocks.push_back(lms::used_block(&place, kLarge, idle));
      }
      return all;
    }
    void release_segments(const std::vector<std::size_t>&) override {}
    void settle_and_release() override {}
    std::size_t shortfall() override { return 0; }
    void* taken = nullptr;

   private:
    Device& device_;
  };

  std::vector<char> places_;
  std::vector<void*> free_;
};

// Large storages, twice as many as the device has room for. Each op uses one that is out, in no
// order that could be foreseen. Returns nanoseconds and storages located, an op.
struct Costs {
  double nanoseconds;
  std::size_t located;
};
Costs costs_of(std::size_t places, std::size_t small, std::size_t ops) {
  class Memory final : public lms::MappedMemory {
  } memory;
  const std::size_t count = 2 * places;
  lms::HostPool pool(memory);
  Device device(places);
  lms::Engine engine(device, pool);
  device.engine = &engine;
  engine.set_min_bytes(kMinimum);

  std::vector<char> small_blocks(small);
  std::vector<Device::Storage> storages;
  storages.reserve(count + small);
  for (std::size_t i = 0; i < small; ++i) storages.push_back({kSmall, &small_blocks[i], {}});
  for (std::size_t i = 0; i < count; ++i) storages.push_back({kLarge, nullptr, {}});
  const auto large = [&](std::size_t i) { return &storages[small + i % count]; };
  for (std::size_t i = 0; i < small; ++i) engine.note(nullptr, &storages[i], nullptr);
  for (std::size_t i = 0; i < count; ++i) {
    large(i)->block = device.take();
    engine.note(nullptr, large(i), nullptr);
  }

  fake::Random random(1);
  const auto missing_ops = [&](std::size_t more) {
    for (; more > 0; --more) {
      std::size_t out = random.below(count);
      while (large(out)->block != nullptr) ++out;
      lms::Engine::Frame frame;
      const lms::Use use = {large(out), lms::Access::kWrite, nullptr};
      engine.enter(frame, &use, 1);
      engine.leave(frame);
    }
  };
  missing_ops(2 * count);
  device.located = 0;
  const auto paged_in = engine.stats(0).paged_in;
  const auto begin = std::chrono::steady_clock::now();
  missing_ops(ops);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  CHECK_EQ(engine.stats(0).paged_in - paged_in, static_cast<std::int64_t>(ops));
  return {took.count() / static_cast<double>(ops), device.located / ops};
}

}  // namespace

TEST(reclaim_cost) {
  const auto small = static_cast<std::size_t>(harness::option("small", 1000));
  const auto ops = static_cast<std::size_t>(harness::option("ops", 2000));
  constexpr std::size_t kPlaces = 32;
  const Costs costs = costs_of(kPlaces, small, ops);
  std::printf("%zu | %.0f | %zu\n", small, costs.nanoseconds, costs.located);
  CHECK(costs.located < 3 * kPlaces);  // at the large ones alone
}

TEST(reclaim_cost_of_many) {
  const auto large = static_cast<std::size_t>(harness::option("large", 2000));
  const auto ops = static_cast<std::size_t>(harness::option("ops", 2000));
  const Costs costs = costs_of(large, /*small=*/0, ops);
  std::printf("%zu | %.0f | %zu\n", large, costs.nanoseconds, costs.located);
  CHECK(costs.located < 3 * lms::policy().candidates_per_victim());
}
