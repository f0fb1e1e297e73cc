// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "engine.h"
#include "fake.h"
#include "harness.h"
#include "host_pool.h"
#include "reclaim.h"

namespace {

using fake::StorageRef;
using fake::stream;
using lms::Place;
using lms::RoomRequest;
using lms::Route;

constexpr std::size_t kUnit = 1024;

// One stream, with memory for `units` storages of kUnit bytes.
struct Rig {
  explicit Rig(std::size_t units, std::size_t segment_units = 0, std::size_t streams = 1,
               std::size_t host_units = 64)
      : device(1, fake::Backend::streams_needed(streams)),
        memory(host_units * kUnit),
        pool(memory, kUnit),
        backend(device, streams, units * kUnit / streams, segment_units * kUnit),
        engine(backend, pool) {
    backend.attach(&engine, &pool);
    engine.set_min_bytes(0);
  }
  ~Rig() {
    made.clear();
    engine.purge();
  }

  // Storages that the engine knows, oldest first, in neighbouring blocks.
  void make(std::size_t count, std::size_t units = 1, lms::Stream home = stream(0)) {
    for (std::size_t i = 0; i < count; ++i) {
      made.push_back(backend.create(units * kUnit, home));
      fake::Scope scope;
      engine.note(nullptr, made.back().get(), home);
      lms::Engine::Frame frame;
      engine.leave(frame);  // time goes on
    }
  }
  void* room(RoomRequest request) {
    fake::Scope scope;
    void* ptr = backend.make_room(request, stream(0), &route);
    device.drain();
    CHECK_EQ(device.failure(), "");
    CHECK((ptr != nullptr) == (route != Route::kNone));
    return ptr;
  }
  void* room(std::size_t units) {
    RoomRequest request;
    request.bytes = units * kUnit;
    return room(request);
  }
  void unpin(std::size_t index) {
    fake::Scope scope;
    engine.unpin(made[index].get());
  }
  // Which storages are on the host.
  std::vector<std::size_t> out() const {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (made[i]->place == Place::kHost) result.push_back(i);
    }
    return result;
  }
  void check_out(const std::vector<std::size_t>& expected) const { CHECK(out() == expected); }

  fake::Device device;
  fake::HostMemory memory;
  lms::HostPool pool;
  fake::Backend backend;
  lms::Engine engine;
  std::vector<StorageRef> made;
  Route route = Route::kNone;
};

// An allocator with the storages of a rig, one unit each, in one segment.
struct Row final : lms::BlockLists {
  Row(Rig& owner, std::size_t units) : rig(owner), wanted(units) {}
  bool take_free_block() override {
    std::size_t run = 0;
    for (const StorageRef& storage : rig.made) {
      run = storage->place == Place::kDevice ? 0 : run + 1;
      if (run == wanted) return true;
    }
    return false;
  }
  bool take_new_segment() override { return false; }
  std::vector<lms::Segment> segments(const lms::IdleMap& idle) override {
    lms::Segment segment{{}, true, false};
    for (const StorageRef& storage : rig.made) {
      const bool here = storage->place == Place::kDevice;
      segment.blocks.push_back(here ? lms::used_block(storage->ptr, kUnit, idle)
                                    : lms::free_block(kUnit));
    }
    return {segment};
  }
  void release_segments(const std::vector<std::size_t>&) override {}
  void settle_and_release() override {}
  std::size_t shortfall() override { return 0; }
  Rig& rig;
  const std::size_t wanted;
};

}  // namespace

TEST(reclaim_takes_what_is_free_first) {
  Rig rig(4);
  rig.make(3);
  CHECK(rig.room(1) != nullptr);
  CHECK(rig.route == Route::kFreeBlock);
  rig.check_out({});
}

TEST(reclaim_evicts_the_least_recently_used) {
  Rig rig(4);
  rig.make(4);
  CHECK(rig.room(1) != nullptr);
  CHECK(rig.route == Route::kEvictOne);
  rig.check_out({0});
}

TEST(reclaim_evicts_neighbours) {
  Rig rig(4);
  rig.make(4);
  rig.engine.pin(rig.made[1].get(), stream(0));
  CHECK(rig.room(2) != nullptr);
  CHECK(rig.route == Route::kEvictSome);
  rig.check_out({2, 3});
  rig.unpin(1);
}

// Only the whole of another pool's segment can go to the device, for a new one of this pool.
// Wherever they lie: a copy out begins when those before it have.
TEST(reclaim_evicts_neighbours_in_the_order_of_their_last_uses) {
  Rig rig(3);
  rig.make(3);
  {
    fake::Scope scope;
    lms::Engine::Frame frame;
    const lms::Use again{rig.made[0].get(), lms::Access::kRead, stream(0)};
    rig.engine.enter(frame, &again, 1);
    rig.engine.leave(frame);
  }
  rig.room(3);
  rig.check_out({0, 1, 2});
  const auto host = [&rig](std::size_t index) { return rig.made[index]->range.ptr; };
  CHECK(host(1) < host(2) && host(2) < host(0));  // given to them in this order
}

TEST(reclaim_gives_segments_of_other_pools_back) {
  Rig rig(4, 2, 2);
  rig.make(2, 1, stream(1));
  rig.make(2, 1, stream(1));
  CHECK(rig.room(1) != nullptr);
  CHECK(rig.route == Route::kReplaceSegments);
  rig.check_out({0, 1});
  CHECK_EQ(rig.backend.segments(), 2u);
}

// To give one back stops the device: that is as dear as to copy a part of its memory.
TEST(reclaim_gives_segments_back_when_that_is_cheaper) {
  Rig rig(16, 2, 2);
  rig.make(14);
  rig.make(2, 1, stream(1));
  rig.made.resize(14);  // a segment of the other pool is free now
  CHECK(rig.room(1) != nullptr);
  CHECK(rig.route == Route::kEvictOne);
  rig.check_out({0});
  CHECK(rig.room(2) != nullptr);
  CHECK(rig.route == Route::kReplaceSegments);
  rig.check_out({0});
}

// As often as others leave for want of them, they are worth it.
TEST(reclaim_gives_segments_back_when_holes_have_cost_enough) {
  Rig rig(26, 2, 2);
  rig.make(14);
  rig.make(12, 1, stream(1));
  rig.made.resize(14);  // six segments of the other pool are free now
  std::size_t left = 0;
  while (rig.room(1) != nullptr && rig.route == Route::kEvictOne) ++left;
  CHECK(rig.route == Route::kReplaceSegments);
  // Four times a sixth of the memory, by two units for each that leaves and comes back.
  CHECK_EQ(left, std::size_t{9});
  CHECK_EQ(rig.out().size(), left);
  // They went for as much as has left and for the one that came.
  CHECK_EQ(rig.backend.segments(), std::size_t{13 - 6 + 1});
  CHECK_EQ(rig.engine.forgone(0).bytes(), std::size_t{0});
}

TEST(reclaim_counts_what_is_forgone_from_nothing_on) {
  lms::Forgone forgone;
  forgone.add(5, 1);
  forgone.add(2, 3);
  forgone.add(-4, 9);
  CHECK_EQ(forgone.cost(), 3.0);
  CHECK_EQ(forgone.bytes(), std::size_t{4});
  forgone.add(-9, 1);
  forgone.add(1, 2);
  CHECK_EQ(forgone.cost(), 1.0);
  CHECK_EQ(forgone.bytes(), std::size_t{2});
}

// What is older than all of the request's own pool leaves with the segments that it is in.
TEST(reclaim_evicts_what_is_old_in_other_pools_when_holes_have_cost_enough) {
  Rig rig(40, 2, 2);
  rig.make(4, 1, stream(1));
  rig.make(36);
  while (rig.room(1) != nullptr && rig.route == Route::kEvictOne) {
  }
  CHECK(rig.route == Route::kReplaceSegments);
  const auto out = rig.out();
  CHECK(out.size() > 2 && out[0] == 0 && out[1] == 1);
}

TEST(reclaim_looks_for_holes_again_when_host_memory_is_full) {
  Rig rig(18, 2, 2);
  rig.make(4, 1, stream(1));
  rig.make(14);
  rig.memory.capacity = 0;
  rig.engine.forgone(0).add(1e9, kUnit);
  CHECK(rig.room(1) == nullptr);
  rig.check_out({});
  rig.memory.capacity = kUnit;
  CHECK(rig.room(1) != nullptr);
  CHECK(rig.route == Route::kEvictOne);
}

TEST(reclaim_keeps_segments_when_asked_to) {
  Rig rig(4, 2, 2);
  rig.make(4, 1, stream(1));
  RoomRequest request;
  request.bytes = kUnit;
  request.whole_segments = request.everything = false;
  CHECK(rig.room(request) == nullptr);
  rig.check_out({});
}

// Nothing lies so that a choice would make room: everything goes, and the segments with it.
TEST(reclaim_evicts_all_at_last) {
  Rig rig(6, 2, 2);
  rig.make(2);
  rig.make(2, 1, stream(1));
  rig.make(2, 1, stream(1));
  rig.engine.pin(rig.made[0].get(), stream(0));
  rig.engine.set_min_bytes(kUnit + 1);
  CHECK(rig.room(3) != nullptr);
  CHECK(rig.route == Route::kEvictAll);
  rig.check_out({1, 2, 3, 4, 5});
  rig.unpin(0);
}

TEST(reclaim_moves_small_ones_after_the_rest) {
  Rig rig(6);
  rig.make(1);     // 0
  rig.make(1, 2);  // 1
  rig.make(1);     // 2
  rig.make(1, 2);  // 3
  rig.engine.set_min_bytes(2 * kUnit);
  RoomRequest request;
  request.bytes = 3 * kUnit;
  request.everything = false;
  CHECK(rig.room(request) == nullptr);
  rig.check_out({});
  request.sizes = lms::Sizes::kAny;
  CHECK(rig.room(request) != nullptr);
  rig.check_out({0, 1});
}

TEST(reclaim_stops_without_everything) {
  Rig rig(4);
  rig.make(4);
  rig.engine.pin(rig.made[1].get(), stream(0));
  RoomRequest request;
  request.bytes = 3 * kUnit;
  request.everything = false;
  CHECK(rig.room(request) == nullptr);
  rig.check_out({});
  rig.unpin(1);
}

// A segment that is as large as usual does not fit beside what is in use, one for the request does,
// and by then nothing small has to go.
TEST(reclaim_shrinks_the_segment_at_last) {
  Rig rig(7, 4);
  rig.make(1);
  rig.make(1, 2);
  rig.make(1);
  rig.engine.pin(rig.made[0].get(), stream(0));
  rig.engine.set_min_bytes(2 * kUnit);
  CHECK(rig.room(3) != nullptr);
  CHECK(rig.route == Route::kEvictAll);
  rig.check_out({1});
  CHECK_EQ(rig.backend.segments(), 2u);
  rig.unpin(0);
}

// Whatever was used least recently, wherever it lies: the limit is on what is in use, not on a
// hole.
TEST(reclaim_comes_below_a_limit) {
  Rig rig(8);
  rig.make(4);
  rig.backend.limit = 5 * kUnit;
  rig.engine.pin(rig.made[1].get(), stream(0));
  CHECK(rig.room(3) != nullptr);
  CHECK(rig.route == Route::kEvictSome);
  rig.check_out({0, 2});
  CHECK_EQ(rig.backend.in_use(), 5 * kUnit);
  CHECK(rig.room(5) == nullptr);
  rig.check_out({0, 2, 3});
  rig.unpin(1);
}

TEST(reclaim_of_many_evicts_more_than_was_asked_for) {
  const std::size_t each = lms::policy().candidates_per_victim();
  Rig rig(3 * each, 0, 1, 4 * each);
  rig.make(3 * each);
  CHECK(rig.room(1) != nullptr);
  CHECK(rig.route == Route::kEvictOne);
  rig.check_out({0, 1, 2});  // one for each so many that were looked at
}

TEST(reclaim_of_many_evicts_no_more_than_so_many_like_it) {
  const std::size_t each = lms::policy().candidates_per_victim();
  Rig rig(3 * each + 5, 0, 1, 4 * each);
  rig.make(1, 5);
  rig.make(3 * each);
  CHECK(rig.room(1) != nullptr);
  rig.check_out({1, 2, 3});  // not the oldest, which is far larger
}

// What lies elsewhere would leave for nothing.
TEST(reclaim_of_many_evicts_more_only_where_the_request_fits) {
  const std::size_t each = lms::policy().candidates_per_victim();
  Rig rig(4 * each, 2 * each, 2, 4 * each);
  rig.make(2 * each, 1, stream(1));
  rig.make(2 * each);
  CHECK(rig.room(1) != nullptr);
  const auto out = rig.out();
  CHECK(out.size() == 4 && out[0] == 2 * each);
  CHECK_EQ(rig.engine.forgone(0).bytes(), 4 * kUnit);  // all of them, as older ones lie elsewhere
}

// A block is as large as the allocator makes it, however little of it the storage has.
TEST(reclaim_of_many_goes_by_the_size_of_blocks) {
  const std::size_t each = lms::policy().candidates_per_victim();
  Rig rig(2 * each, 0, 1, 4 * each);
  for (std::size_t i = 0; i < 2 * each; ++i) {
    rig.made.push_back(rig.backend.create(kUnit - 1, stream(0)));
    fake::Scope scope;
    rig.engine.note(nullptr, rig.made.back().get(), stream(0));
  }
  Row row(rig, 1);
  RoomRequest request;
  request.bytes = kUnit;
  fake::Scope scope;
  CHECK(lms::make_room(rig.engine, row, request) == Route::kEvictOne);
  CHECK_EQ(rig.out().size(), std::size_t{2});
}

TEST(reclaim_of_few_evicts_what_was_asked_for) {
  const std::size_t each = lms::policy().candidates_per_victim();
  Rig rig(2 * each - 1, 0, 1, 4 * each);
  rig.make(2 * each - 1);
  CHECK(rig.room(1) != nullptr);
  rig.check_out({0});
}

TEST(reclaim_ends_when_host_memory_is_full) {
  Rig rig(4);
  rig.make(4);
  rig.memory.capacity = kUnit;
  CHECK(rig.room(2) == nullptr);
  CHECK(rig.route == Route::kNone);
  CHECK_EQ(rig.out().size(), 1u);
  CHECK(rig.room(1) != nullptr);
}

// Another thread takes what was made free before it can be taken here: as long as something moves,
// there is another chance.
TEST(reclaim_goes_on_when_a_hole_was_taken) {
  struct Taken final : lms::BlockLists {
    explicit Taken(Rig& owner) : rig(owner) {}
    bool take_free_block() override {
      ++looks;
      return rig.out().size() == 3;
    }
    bool take_new_segment() override { return false; }
    std::vector<lms::Segment> segments(const lms::IdleMap& idle) override {
      std::vector<lms::Segment> result(1);
      result[0].can_hold = true;
      result[0].releasable = false;
      for (const StorageRef& storage : rig.made) {
        if (storage->place == Place::kDevice) {
          result[0].blocks.push_back(lms::used_block(storage->ptr, kUnit, idle));
          result[0].blocks.push_back(lms::busy_block(1));
        }
      }
      return result;
    }
    void release_segments(const std::vector<std::size_t>&) override {}
    void settle_and_release() override {}
    std::size_t shortfall() override { return 0; }
    Rig& rig;
    int looks = 0;
  };
  Rig rig(4);
  rig.make(4);
  Taken lists(rig);
  RoomRequest request;
  request.bytes = kUnit;
  request.everything = false;
  fake::Scope scope;
  CHECK(lms::make_room(rig.engine, lists, request) == Route::kEvictOne);
  CHECK_EQ(lists.looks, 4);
  rig.check_out({0, 1, 2});
  CHECK_EQ(rig.device.failure(), "");
}

TEST(reclaim_finds_nothing_idle) {
  Rig rig(2);
  rig.make(2);
  for (const StorageRef& storage : rig.made) rig.engine.pin(storage.get(), stream(0));
  CHECK(rig.room(1) == nullptr);
  for (std::size_t i = 0; i < rig.made.size(); ++i) rig.unpin(i);
}

TEST(reclaim_makes_a_hole) {
  Rig rig(5);
  rig.make(5);
  Row lists(rig, 2);
  fake::Scope scope;
  rig.engine.pin(rig.made[1].get(), stream(0));
  rig.engine.pin(rig.made[3].get(), stream(0));
  CHECK(!lms::make_hole(rig.engine, lists, 0, 2 * kUnit));
  rig.check_out({});  // what is idle is not all that is in the way
  rig.unpin(3);
  rig.engine.set_min_bytes(2 * kUnit);  // and small does as well
  CHECK(lms::make_hole(rig.engine, lists, 0, 2 * kUnit));
  rig.check_out({2, 3});
  CHECK(lms::make_hole(rig.engine, lists, 0, 2 * kUnit));  // it is there
  rig.check_out({2, 3});
  rig.unpin(1);
  CHECK_EQ(rig.device.failure(), "");
}

// The end counts, not the age.
TEST(reclaim_makes_a_hole_at_the_end) {
  Rig rig(5);
  rig.make(5);
  Row lists(rig, 2);
  fake::Scope scope;
  rig.engine.pin(rig.made[4].get(), stream(0));
  rig.engine.pin(rig.made[1].get(), stream(0));
  CHECK(!lms::make_hole_at_end(rig.engine, lists, 0, 3 * kUnit));
  rig.check_out({});
  CHECK(lms::make_hole_at_end(rig.engine, lists, 0, 2 * kUnit));
  rig.check_out({2, 3});
  rig.memory.capacity = 2 * kUnit;
  rig.unpin(4);
  CHECK(!lms::make_hole_at_end(rig.engine, lists, 0, 3 * kUnit));
  rig.check_out({2, 3});
  rig.unpin(1);
  CHECK_EQ(rig.device.failure(), "");
}

// One refusal is enough: each may have waited for host memory.
TEST(reclaim_evicts_what_is_idle_while_the_host_has_room) {
  Rig rig(4);
  rig.make(4);
  rig.engine.set_min_bytes(2 * kUnit);
  rig.memory.capacity = 2 * kUnit;
  fake::Scope scope;
  CHECK(lms::evict_idle(rig.engine, 0));
  rig.check_out({0, 1});
  CHECK_EQ(rig.engine.stats(0).host_refused, 1);
  CHECK(!lms::evict_idle(rig.engine, 0));
  CHECK_EQ(rig.engine.stats(0).host_refused, 2);
  CHECK_EQ(rig.device.failure(), "");
}

TEST(reclaim_counts_routes) {
  lms::RouteCounts counts;
  counts.count(Route::kEvictAll);
  counts.count(Route::kEvictAll);
  counts.count(Route::kNone);
  CHECK_EQ(counts.of(Route::kEvictAll), 2);
  CHECK_EQ(counts.of(Route::kFreeBlock), 0);
  counts.reset();
  CHECK_EQ(counts.of(Route::kEvictAll), 0);
}

namespace {

// Storages used in a cycle, by one op each, on a device with less room: how many come in per round.
struct Cycle {
  Cycle(std::size_t room, std::size_t segment, std::size_t count, std::size_t units)
      : rig(room, segment) {
    rig.make(count, units);
  }
  std::int64_t round(lms::Access access) {
    const auto before = rig.engine.stats(0).paged_in;
    for (std::size_t i = 0; i < rig.made.size(); ++i) use(i, access);
    return rig.engine.stats(0).paged_in - before;
  }
  void use(std::size_t index, lms::Access access) {
    fake::Scope scope;
    lms::Engine::Frame frame;
    const lms::Use one = {rig.made[index].get(), access, stream(0)};
    rig.engine.enter(frame, &one, 1);
    rig.engine.leave(frame);
    rig.device.drain();
  }
  Rig rig;
};

}  // namespace

// The least recently used is what is used next. With the future known, 40 storages on 30 places
// miss 10 times in 39 uses; in segments of 20 units, of which each holds 6, there are 24 places.
TEST(reclaim_keeps_what_a_cycle_comes_to_next) {
  for (const std::size_t segment : {0, 20}) {
    for (const lms::Access access : {lms::Access::kRead, lms::Access::kWrite}) {
      Cycle cycle(90, segment, 40, 3);
      for (int i = 0; i < 3; ++i) cycle.round(access);  // the gaps are known then
      for (int i = 0; i < 20; ++i) CHECK(cycle.round(access) <= 17);
    }
  }
}

// The same where the limit is on what is in use, and any storage may make way.
TEST(reclaim_below_a_limit_keeps_what_a_cycle_comes_to_next) {
  Cycle cycle(120, 0, 40, 3);
  cycle.rig.backend.limit = 90 * kUnit;
  cycle.rig.engine.evict_all(0, lms::Sizes::kAny);
  for (int i = 0; i < 3; ++i) CHECK(cycle.round(lms::Access::kRead) > 0);
  for (int i = 0; i < 20; ++i) CHECK(cycle.round(lms::Access::kRead) <= 17);
}

// After another order the old one is not believed, and a new one is learnt.
TEST(reclaim_learns_another_cycle) {
  Cycle cycle(90, 0, 40, 3);
  for (int i = 0; i < 5; ++i) cycle.round(lms::Access::kRead);
  fake::Random random(1);
  for (int i = 0; i < 200; ++i) cycle.use(random.below(40), lms::Access::kRead);
  std::reverse(cycle.rig.made.begin(), cycle.rig.made.end());
  for (int i = 0; i < 3; ++i) cycle.round(lms::Access::kRead);
  for (int i = 0; i < 5; ++i) CHECK(cycle.round(lms::Access::kRead) <= 17);
}

// What lives for one iteration is used the other way round than it was made: there the least
// recently used is the right one, beside parameters that are used in a cycle.
TEST(reclaim_judges_what_has_no_rhythm_by_its_age) {
  Cycle cycle(24, 0, 4, 1);
  std::int64_t last = 0;
  for (int step = 0; step < 8; ++step) {
    const auto before = cycle.rig.engine.stats(0).paged_in;
    for (std::size_t i = 0; i < 30; ++i) {
      cycle.use(i % 4, lms::Access::kRead);
      cycle.rig.make(1);
    }
    while (cycle.rig.made.size() > 4) {
      cycle.use(cycle.rig.made.size() % 4, lms::Access::kRead);
      cycle.use(cycle.rig.made.size() - 1, lms::Access::kRead);
      cycle.rig.made.pop_back();
    }
    last = cycle.rig.engine.stats(0).paged_in - before;
  }
  CHECK(last <= 30 - 20 + 4);
}

namespace {

void use(Rig* rig, std::size_t index, lms::Access access = lms::Access::kRead) {
  fake::Scope scope;
  lms::Engine::Frame frame;
  const lms::Use use{rig->made[index].get(), access, stream(0)};
  rig->engine.enter(frame, &use, 1);
  rig->engine.leave(frame);
}

// Copies in outweigh those out, of one storage that leaves and comes back, and ends clean.
void bring_in(Rig* rig, std::size_t index, int times) {
  for (int i = 0; i < times; ++i) {
    {
      fake::Scope scope;
      CHECK(rig->engine.evict(rig->made[index].get()));
    }
    use(rig, index);
  }
  rig->check_out({});
}

void pass_ops(Rig* rig, int count) {
  for (int i = 0; i < count; ++i) {
    fake::Scope scope;
    lms::Engine::Frame frame;
    rig->engine.leave(frame);
  }
}

constexpr std::uint64_t kAnyMark = UINT64_MAX - 1;

Route room_early(Rig* rig, std::size_t units, std::uint64_t mark = kAnyMark) {
  fake::Scope scope;
  Row row(*rig, units);
  return lms::make_room_early(rig->engine, row, 0, units * kUnit, mark);
}

// Each used, by ops that are long ago, and copies in that outweigh those out.
void make_early(Rig* rig) {
  rig->make(4);
  for (const std::size_t index : {0, 1, 2}) use(rig, index);
  bring_in(rig, 3, 8);
  pass_ops(rig, 128);
}

}  // namespace

TEST(reclaim_early_evicts_what_is_not_used_soon) {
  Rig rig(4);
  make_early(&rig);
  use(&rig, 0);
  CHECK(lms::may_make_room_early(rig.engine, 0));
  CHECK(room_early(&rig, 1) == Route::kEvictOne);
  CHECK_EQ(rig.out().size(), 1u);
  CHECK(rig.out()[0] != 0);  // the oldest, but for this
}

TEST(reclaim_early_evicts_nothing_that_was_just_used) {
  Rig rig(4);
  make_early(&rig);
  for (const std::size_t index : {0, 1, 2, 3}) use(&rig, index);
  CHECK(room_early(&rig, 1) == Route::kNone);
  rig.check_out({});
}

TEST(reclaim_early_evicts_nothing_that_is_used_in_a_short_cycle) {
  Rig rig(4);
  make_early(&rig);
  for (int round = 0; round < 8; ++round) {
    for (const std::size_t index : {0, 1, 2, 3}) use(&rig, index);
    pass_ops(&rig, 110);
  }
  CHECK(room_early(&rig, 1) == Route::kNone);
  rig.check_out({});
  pass_ops(&rig, 200);  // the cycle is over
  CHECK(room_early(&rig, 1) == Route::kEvictOne);
}

TEST(reclaim_early_evicts_nothing_that_went_idle_too_late) {
  Rig rig(4);
  make_early(&rig);
  CHECK(room_early(&rig, 1, /*mark=*/0) == Route::kNone);
  rig.check_out({});
}

TEST(reclaim_early_evicts_nothing_whose_last_use_is_not_known) {
  Rig rig(4);
  make_early(&rig);
  for (const std::size_t index : {0, 1, 2, 3}) {
    fake::Scope scope;
    rig.engine.written(rig.made[index].get());
  }
  CHECK(room_early(&rig, 1) == Route::kNone);
  rig.check_out({});
}

TEST(reclaim_early_is_not_worth_it_while_much_is_copied_out) {
  Rig rig(4);
  rig.make(4);
  CHECK(!lms::may_make_room_early(rig.engine, 0));  // nothing comes in
  for (int i = 0; i < 4; ++i) {
    bring_in(&rig, 3, 1);
    use(&rig, 3, lms::Access::kWrite);  // as much goes out as comes in
  }
  CHECK(!lms::may_make_room_early(rig.engine, 0));
}

TEST(reclaim_early_is_a_little_of_what_comes_in) {
  Rig rig(4);
  make_early(&rig);
  int times = 0;
  for (; lms::may_make_room_early(rig.engine, 0); ++times) {
    CHECK(times < 4);
    if (room_early(&rig, 1) == Route::kNone) break;
  }
  CHECK(times > 0);
  CHECK(!lms::may_make_room_early(rig.engine, 0));
}

TEST(reclaim_early_makes_no_other_room) {
  Rig rig(4);
  make_early(&rig);
  {
    fake::Scope scope;
    rig.engine.pin(rig.made[1].get(), stream(0));
    rig.engine.pin(rig.made[3].get(), stream(0));
  }
  CHECK(room_early(&rig, 2) == Route::kNone);  // two neighbours are nowhere
  rig.check_out({});
  rig.unpin(1);
  rig.unpin(3);
}

TEST(reclaim_early_takes_what_the_device_has) {
  Rig rig(4);
  make_early(&rig);
  struct Roomy final : lms::BlockLists {
    explicit Roomy(Row& owner) : row(owner) {}
    bool take_free_block() override { return false; }
    bool take_new_segment() override { return true; }
    std::vector<lms::Segment> segments(const lms::IdleMap& idle) override {
      return row.segments(idle);
    }
    void release_segments(const std::vector<std::size_t>&) override {}
    void settle_and_release() override {}
    std::size_t shortfall() override { return 1; }
    Row& row;
  };
  fake::Scope scope;
  Row row(rig, 1);
  Roomy roomy(row);
  CHECK(lms::make_room_early(rig.engine, roomy, 0, kUnit, kAnyMark) == Route::kNewSegment);
  rig.check_out({});
}
