// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "engine.h"
#include "fake.h"
#include "harness.h"
#include "report.h"

namespace {

using fake::StorageRef;
using fake::stream;
using lms::Access;
using lms::Engine;
using lms::ThrashWatch;
using lms::Traffic;
using lms::Use;

constexpr std::size_t kBytes = 1024;

// So many uses of which a share had to come in, in ops of one use. How often it was told.
int told(ThrashWatch* watch, std::uint64_t uses, double share) {
  int count = 0;
  double due = 0;
  for (std::uint64_t i = 0; i < uses; ++i) {
    due += share;
    const bool brought = due >= 1;
    if (brought) due -= 1;
    watch->op(1, kBytes, brought ? kBytes : 0, "op");
    Traffic traffic;
    if (watch->tell(&traffic)) ++count;
  }
  return count;
}

// An engine on a device with room for `room` of as many storages as it has.
struct Rig {
  Rig(std::size_t room, std::size_t count)
      : device(1, fake::Backend::streams_needed(1)),
        memory(64 * kBytes),
        pool(memory, kBytes),
        backend(device, 1, room * kBytes),
        engine(backend, pool) {
    backend.attach(&engine, &pool);
    engine.set_min_bytes(0);
    const fake::Scope scope;
    for (std::size_t i = 0; i < count; ++i) {
      storages.push_back(backend.create(kBytes, stream(0)));
      engine.note(nullptr, storages.back().get(), stream(0));
    }
  }
  ~Rig() { device.drain(); }

  void use(std::size_t index, const char* op) {
    const fake::Scope scope;
    Engine::Frame frame;
    const Use use{storages[index].get(), Access::kRead, stream(0)};
    engine.enter(frame, &use, 1, nullptr, op);
    engine.leave(frame);
  }
  void use_in_turn(std::uint64_t times, const char* op) {
    for (std::uint64_t i = 0; i < times; ++i) use(i % storages.size(), op);
    device.drain();
  }

  fake::Device device;
  fake::HostMemory memory;
  lms::HostPool pool;
  fake::Backend backend;
  Engine engine;
  std::vector<StorageRef> storages;
};

}  // namespace

TEST(thrash_is_told_once) {
  ThrashWatch watch;
  CHECK_EQ(told(&watch, 10 * ThrashWatch::kUses, 0.9), 1);
}

TEST(thrash_is_more_than_a_backward_pass) {
  ThrashWatch watch;
  CHECK_EQ(told(&watch, 10 * ThrashWatch::kUses, 0.6), 0);
  // Not what was so for a while, long ago.
  CHECK_EQ(told(&watch, ThrashWatch::kUses / 2, 1.0), 0);
  CHECK_EQ(told(&watch, 2 * ThrashWatch::kUses, 0.1), 0);
  CHECK_EQ(told(&watch, 2 * ThrashWatch::kUses, 0.8), 1);
}

TEST(thrash_names_the_op_that_brought_most) {
  ThrashWatch watch;
  for (std::uint64_t i = 0; i < ThrashWatch::kUses; ++i) {
    const bool large = i == 17;
    watch.op(1, large ? 9 * kBytes : kBytes, large ? 9 * kBytes : kBytes,
             large ? "large" : "small");
  }
  Traffic traffic;
  CHECK(watch.tell(&traffic));
  CHECK(traffic.most_op == "large");
  CHECK_EQ(traffic.most_bytes, 9 * kBytes);
  CHECK_EQ(traffic.used_bytes, (ThrashWatch::kUses + 8) * kBytes);
  CHECK_EQ(traffic.brought_bytes, traffic.used_bytes);
}

TEST(thrash_of_the_engine) {
  Rig rig(2, 16);  // of 16 used in turn, 2 fit
  rig.use_in_turn(ThrashWatch::kUses - 1, "round");
  CHECK(!rig.engine.thrashing());
  rig.use(0, "round");
  CHECK(rig.engine.thrashing());
  int device = -1;
  Traffic traffic;
  CHECK(rig.engine.tell_thrashing(&device, &traffic));
  CHECK_EQ(device, 0);
  CHECK_EQ(traffic.uses, ThrashWatch::kUses);
  CHECK(traffic.most_op == "round");
  CHECK(!rig.engine.thrashing());
  CHECK(!rig.engine.tell_thrashing(&device, &traffic));
  const lms::EngineStats stats = rig.engine.stats(0);
  CHECK_EQ(stats.used, static_cast<std::int64_t>(ThrashWatch::kUses));
  CHECK_EQ(stats.used_bytes, static_cast<std::int64_t>(ThrashWatch::kUses * kBytes));
}

TEST(thrash_is_not_where_all_fits_nor_in_chaos_mode) {
  Rig fits(16, 16);
  fits.use_in_turn(2 * ThrashWatch::kUses, "round");
  CHECK(!fits.engine.thrashing());
  Rig chaotic(16, 16);
  chaotic.engine.set_chaos(true);
  chaotic.use_in_turn(2 * ThrashWatch::kUses, "round");
  CHECK(chaotic.engine.stats(0).paged_in > 0);
  CHECK(!chaotic.engine.thrashing());
}

TEST(thrash_counts_for_each_device) {
  fake::Device device(1, fake::Backend::streams_needed(1));
  fake::HostMemory memory(64 * kBytes);
  lms::HostPool pool(memory, kBytes);
  fake::Backend backend(device, 1, 8 * kBytes);
  Engine engine(backend, pool);
  backend.attach(&engine, &pool);
  engine.set_min_bytes(0);
  std::vector<StorageRef> storages;
  const fake::Scope scope;
  for (int i = 0; i < 5; ++i) {
    storages.push_back(backend.create(kBytes, stream(0), i % 2));
    engine.note(nullptr, storages.back().get(), stream(0));
  }
  CHECK(engine.evict(storages[1].get()));
  CHECK(engine.evict(storages[4].get()));
  std::vector<Use> uses;
  for (const StorageRef& each : storages) uses.push_back({each.get(), Access::kRead, stream(0)});
  Engine::Frame frame;
  engine.enter(frame, uses.data(), uses.size(), nullptr, "op");
  engine.leave(frame);
  CHECK_EQ(engine.stats(0).used, 3);
  CHECK_EQ(engine.stats(0).used_bytes, static_cast<std::int64_t>(3 * kBytes));
  CHECK_EQ(engine.stats(0).paged_in_bytes, static_cast<std::int64_t>(kBytes));
  CHECK_EQ(engine.stats(1).used, 2);
  CHECK_EQ(engine.stats(1).used_bytes, static_cast<std::int64_t>(2 * kBytes));
  CHECK_EQ(engine.stats(1).paged_in_bytes, static_cast<std::int64_t>(kBytes));
  device.drain();
}

TEST(thrash_message) {
  Traffic traffic;
  traffic.uses = 4096;
  traffic.used_bytes = std::size_t{300} << 20;
  traffic.brought_bytes = std::size_t{250} << 20;
  traffic.most_bytes = std::size_t{16} << 20;
  traffic.most_op = "aten::mm";
  lms::Words words{};
  words.ops = "operators";
  const std::string text = lms::thrashing("GPU 1", traffic, words);
  for (const char* part : {"GPU 1", "250.00 MiB", "300.00 MiB", "16.00 MiB", "aten::mm"}) {
    CHECK(text.find(part) != std::string::npos);
  }
}
