// SPDX-License-Identifier: Apache-2.0
// lms/baseline/ibm.cpp in place of victims.cpp.
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
  fake::Device device(1, fake::Backend::streams_needed(1));
  fake::HostMemory memory(1 << 20);
  lms::HostPool pool(memory, 1 << 10);
  fake::Backend backend(device, 1, 1 << 14);
  lms::Engine engine(backend, pool);
  backend.attach(&engine, &pool);
  engine.set_min_bytes(0);
  {
    const fake::StorageRef storage = backend.create(1 << 10, fake::stream(0));
    const lms::Engine::Use use{storage.get(), lms::Access::kRead, 0, fake::stream(0)};
    for (int round = 0; round < 2; ++round) {
      const fake::Scope scope;
      lms::Engine::Frame frame;
      engine.enter(frame, &use, 1);
      engine.leave(frame);
      CHECK(engine.evict(storage.get()));
    }
    CHECK_EQ(backend.counts.outs, 2);
    CHECK_EQ(backend.counts.clean_outs, 0);
    device.drain();
  }
  const fake::Scope scope;
  engine.purge();
}
