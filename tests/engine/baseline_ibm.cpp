// SPDX-License-Identifier: Apache-2.0
// lms/baseline/ibm.cpp in place of victims.cpp.
#include <cstdint>
#include <functional>
#include <vector>

#include "engine.h"
#include "fake.h"
#include "harness.h"
#include "host_pool.h"
#include "victims.h"

namespace {

using lms::Block;
using lms::Choice;
using lms::Segment;
using Victims = std::vector<std::size_t>;

Block room(std::size_t bytes) { return {Block::State::kFree, bytes, 0, 0}; }
Block busy(std::size_t bytes) { return {Block::State::kBusy, bytes, 0, 0}; }
// What came to be idle as the `order`th. What it costs is nothing that is asked for.
Block idle(std::size_t bytes, std::size_t order) {
  return {Block::State::kIdle, bytes, 1.0 / static_cast<double>(bytes), order};
}

Victims chosen(const std::vector<Segment>& segments, std::size_t bytes) {
  const Choice choice = lms::policy().choose(segments, {bytes, bytes, 0});
  CHECK((choice.kind == Choice::Kind::kHole) == !choice.victims.empty());
  CHECK(choice.kind != Choice::Kind::kSegments);
  return choice.victims;
}

// An engine, and ops on storages of one size.
struct World {
  explicit World(std::uint64_t seed = 1) : device(seed, fake::Backend::streams_needed(1)) {
    backend.attach(&engine, &pool);
    engine.set_min_bytes(0);
  }
  ~World() {
    device.drain();
    const fake::Scope scope;
    engine.purge();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  fake::StorageRef create() { return backend.create(1 << 10, fake::stream(0)); }
  void use(const fake::StorageRef& storage, lms::Access access,
           const std::function<void(void*)>& kernel = {}) {
    const fake::Scope scope;
    const lms::Use use{storage.get(), access, fake::stream(0)};
    lms::Engine::Frame frame;
    engine.enter(frame, &use, 1);
    void* ptr = storage->ptr;
    if (kernel) device.launch(fake::stream(0), [kernel, ptr] { kernel(ptr); });
    engine.leave(frame);
  }
  void write(const fake::StorageRef& storage, std::uint64_t tag) {
    const std::size_t bytes = storage->bytes;
    use(storage, lms::Access::kWrite, [bytes, tag](void* ptr) { fake::fill(ptr, bytes, tag); });
  }
  void evict(const fake::StorageRef& storage) {
    const fake::Scope scope;
    CHECK(engine.evict(storage.get()));
  }
  // So that the next one is expected to be.
  void evict_one() {
    const fake::StorageRef storage = create();
    use(storage, lms::Access::kWrite);
    evict(storage);
  }

  fake::Device device;
  fake::HostMemory memory{1 << 20};
  lms::HostPool pool{memory, 1 << 10};
  fake::Backend backend{device, 1, 1 << 14};
  lms::Engine engine{backend, pool};
};

}  // namespace

TEST(ibm_takes_the_first_that_is_large_enough) {
  const std::vector<Segment> segments{{{idle(9, 2), busy(1), idle(4, 1)}, true, true},
                                      {{idle(2, 0), idle(5, 3)}, true, true}};
  CHECK(chosen(segments, 2) == Victims{0});
  CHECK(chosen(segments, 3) == Victims{1});
  CHECK(chosen(segments, 5) == Victims{2});
}

TEST(ibm_looks_at_the_pool_of_the_request_alone) {
  const std::vector<Segment> segments{{{idle(9, 0)}, false, true}, {{idle(9, 1)}, true, true}};
  CHECK(chosen(segments, 9) == Victims{1});
}

TEST(ibm_takes_neighbours_when_none_is_large_enough) {
  const std::vector<Segment> segments{
      {{idle(3, 0), busy(1), room(2), idle(3, 1), room(1), idle(3, 2), idle(3, 3)}, true, true}};
  CHECK(chosen(segments, 5) == (Victims{1}));  // with the free one before it
  CHECK(chosen(segments, 6) == (Victims{1}));  // and the one after it
  CHECK(chosen(segments, 7) == (Victims{1, 2}));
  CHECK(chosen(segments, 12) == (Victims{1, 2, 3}));
  CHECK(chosen(segments, 13) == Victims{});
}

TEST(ibm_ends_the_host_copy_with_the_page_in) {
  World world;
  {
    const fake::StorageRef storage = world.create();
    for (int round = 0; round < 2; ++round) {
      world.use(storage, lms::Access::kRead);
      world.evict(storage);
    }
    CHECK_EQ(world.backend.counts.outs, 2);
    CHECK_EQ(world.backend.counts.clean_outs, 0);
  }
}

// With LMS_IBM_SPECULATE=1, from here on.
TEST(speculating_ibm_copies_out_at_once_what_was_reclaimed_before) {
  World world;
  for (int round = 0; round < 3; ++round) {  // as activations: made anew
    const fake::StorageRef storage = world.create();
    world.use(storage, lms::Access::kWrite);
    CHECK_EQ(world.backend.counts.ahead, round == 0 ? 0 : 1);
    CHECK(storage->place == lms::Place::kDevice);  // and stays
    world.evict(storage);
    CHECK_EQ(world.backend.counts.outs, 1);  // once, whenever
    world.use(storage, lms::Access::kRead);
    world.backend.counts = fake::Counts();
  }
}

TEST(speculating_ibm_learns_what_was_used_again_before_it_was_reclaimed) {
  World world;
  for (int round = 0; round < 3; ++round) {
    const fake::StorageRef storage = world.create();
    world.use(storage, lms::Access::kWrite);
    CHECK_EQ(world.backend.counts.ahead, round == 1 ? 1 : 0);  // as the last one went
    if (round == 0) world.evict(storage);
    world.use(storage, lms::Access::kRead);
    world.backend.counts = fake::Counts();
  }
}

// The bytes on the host are those of the last write, whatever the device has copied by then.
TEST(speculating_ibm_copies_again_what_was_written_since) {
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    World world(seed);
    world.evict_one();
    const fake::StorageRef storage = world.create();
    world.write(storage, 1);
    CHECK_EQ(world.backend.counts.ahead, 1);
    world.device.run(seed % 5);
    world.write(storage, 2);
    world.evict(storage);
    CHECK_EQ(world.backend.counts.clean_outs, 0);
    world.use(storage, lms::Access::kRead);
    world.device.drain();
    CHECK(fake::holds(storage->ptr, storage->bytes, 2));
  }
}

// Its block is another's by then, whose writes come after the copy.
TEST(speculating_ibm_lets_nobody_have_the_block_before_the_copy) {
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    World world(seed);
    world.evict_one();
    const fake::StorageRef storage = world.create();
    world.write(storage, 1);
    world.evict(storage);
    CHECK_EQ(world.backend.counts.clean_outs, 1);
    const fake::StorageRef next = world.create();
    world.write(next, 2);
    world.use(storage, lms::Access::kRead);
    world.device.drain();
    CHECK(fake::holds(storage->ptr, storage->bytes, 1));
    CHECK(fake::holds(next->ptr, next->bytes, 2));
  }
}

TEST(speculating_ibm_ends_a_copy_under_way_with_its_storage) {
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    World world(seed);
    for (int round = 0; round < 3; ++round) {
      const fake::StorageRef storage = world.create();
      world.write(storage, 1);
      if (round == 0) world.evict(storage);
    }
    CHECK_EQ(world.backend.counts.ahead, 2);
  }
}

TEST(speculating_ibm_does_without_where_a_copy_fails) {
  World world;
  const fake::StorageRef first = world.create();
  world.write(first, 1);
  world.evict(first);
  world.backend.fail_page_out = 1;
  const fake::StorageRef storage = world.create();
  world.write(storage, 2);
  CHECK_EQ(world.backend.counts.ahead, 0);
  world.evict(storage);
  world.use(storage, lms::Access::kRead);
  world.device.drain();
  CHECK(fake::holds(storage->ptr, storage->bytes, 2));
}
