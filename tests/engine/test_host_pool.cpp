// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "fake.h"
#include "harness.h"

namespace {

using fake::HostMemory;
using lms::HostPool;
using lms::HostRange;

constexpr std::size_t kUnit = HostPool::kAlignment;

class Fence final : public lms::Fence {
 public:
  bool done() override {
    ++asked;
    return finished;
  }
  void wait() override {
    ++waits;
    finished = true;
  }
  bool finished = false;
  int waits = 0;
  int asked = 0;
};

}  // namespace

TEST(pool_rounds_and_aligns) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 16 * kUnit);
  const HostRange one = pool.allocate(1);
  const HostRange more = pool.allocate(kUnit + 1);
  CHECK_EQ(one.bytes, kUnit);
  CHECK_EQ(more.bytes, 2 * kUnit);
  for (const HostRange& range : {one, more}) {
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(range.ptr) % kUnit, 0u);
  }
  CHECK_EQ(pool.allocate(0).bytes, kUnit);  // every range has an address of its own
  pool.check();
}

TEST(pool_prepares_what_is_taken_next) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 16 * kUnit);
  CHECK(pool.may_grow(20 * kUnit) && pool.prepare(20 * kUnit, 0));
  CHECK_EQ(pool.stats().used, 0u);
  const HostRange range = pool.allocate(20 * kUnit, lms::Growth::kNone);
  CHECK(range);
  pool.set_limit(pool.stats().reserved);
  CHECK(!pool.may_grow(kUnit) && !pool.prepare(20 * kUnit, 0));
  pool.check();
}

TEST(pool_takes_the_best_fit) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 16 * kUnit);
  const HostRange big = pool.allocate(6 * kUnit);
  const HostRange wall = pool.allocate(kUnit);
  const HostRange small = pool.allocate(3 * kUnit);
  const HostRange rest = pool.allocate(6 * kUnit);
  pool.free(big, nullptr);
  pool.free(small, nullptr);
  CHECK(pool.allocate(2 * kUnit).ptr == small.ptr);
  CHECK(pool.allocate(4 * kUnit).ptr == big.ptr);
  CHECK_EQ(pool.stats().segments, 1u);
  pool.check();
  static_cast<void>(wall);
  static_cast<void>(rest);
}

TEST(pool_merges_neighbours) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  for (int order = 0; order < 6; ++order) {
    HostRange ranges[4];
    for (HostRange& range : ranges) range = pool.allocate(kUnit);
    const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i : orders[order]) {
      pool.free(ranges[i], nullptr);
      pool.check();
    }
    const HostRange whole = pool.allocate(3 * kUnit);
    CHECK(whole.ptr == ranges[0].ptr);
    CHECK_EQ(pool.stats().segments, 1u);
    pool.free(whole, nullptr);
    pool.free(ranges[3], nullptr);
  }
}

TEST(pool_merges_across_segments) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  const HostRange first = pool.allocate(4 * kUnit);
  const HostRange second = pool.allocate(4 * kUnit);
  CHECK(static_cast<char*>(first.ptr) + first.bytes == second.ptr);
  pool.free(first, nullptr);
  pool.free(second, nullptr);
  pool.check();
  const HostRange wide = pool.allocate(8 * kUnit);
  CHECK(wide.ptr == first.ptr);
  CHECK_EQ(pool.stats().segments, 2u);
  // A hole is added to: what is missing of a request is all that comes.
  pool.free(wide, nullptr);
  const HostRange wider = pool.allocate(9 * kUnit);
  CHECK(wider.ptr == first.ptr);
  CHECK_EQ(pool.stats().segments, 3u);
  pool.free(wider, nullptr);
  CHECK_EQ(pool.trim(), 12 * kUnit);
  CHECK_EQ(memory.used.load(), 0u);
}

TEST(pool_honours_fences) {
  HostMemory memory(8 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  auto fence = std::make_shared<Fence>();
  const HostRange range = pool.allocate(4 * kUnit);
  pool.free(range, fence);
  CHECK_EQ(pool.stats().used, 0u);
  CHECK_EQ(pool.trim(), 0u);  // still being read
  const HostRange other = pool.allocate(4 * kUnit);
  CHECK(other.ptr != range.ptr);
  CHECK_EQ(fence->waits, 0);
  pool.check();
  fence->finished = true;
  CHECK(pool.allocate(4 * kUnit).ptr == range.ptr);
  CHECK_EQ(fence->waits, 0);
}

TEST(pool_waits_only_when_it_must) {
  HostMemory memory(4 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  auto fence = std::make_shared<Fence>();
  const HostRange range = pool.allocate(2 * kUnit);
  pool.free(range, fence);
  CHECK(pool.allocate(2 * kUnit).ptr != range.ptr);
  CHECK_EQ(fence->waits, 0);
  CHECK(pool.allocate(2 * kUnit).ptr == range.ptr);  // nothing else is left
  CHECK_EQ(fence->waits, 1);
  CHECK(!pool.allocate(kUnit));
  pool.check();
}

TEST(pool_takes_no_more_than_it_has) {
  HostMemory memory(16 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  CHECK(!pool.allocate(kUnit, lms::Growth::kNone));
  const HostRange range = pool.allocate(4 * kUnit);
  auto fence = std::make_shared<Fence>();
  pool.free(range, fence);
  CHECK(!pool.allocate(kUnit, lms::Growth::kNone));
  CHECK_EQ(fence->waits, 0);
  fence->finished = true;
  CHECK(pool.allocate(kUnit, lms::Growth::kNone));
  CHECK_EQ(memory.requests.size(), 1u);
  pool.check();
}

TEST(pool_never_exceeds_its_limit) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 8 * kUnit);
  pool.set_limit(11 * kUnit + 7);
  std::vector<HostRange> ranges;
  for (;;) {
    const HostRange range = pool.allocate(3 * kUnit);
    if (!range) break;
    ranges.push_back(range);
    CHECK(pool.stats().reserved <= 11 * kUnit + 7);
    CHECK(memory.used.load() <= 11 * kUnit + 7);
  }
  CHECK_EQ(ranges.size(), 3u);                  // 6 of 8 units, and 3 of the 3 that are left
  CHECK_EQ(pool.stats().reserved, 11 * kUnit);  // the last segment is cut to what is left
  CHECK(!pool.allocate(12 * kUnit));
  pool.check();
}

// Enough is free, but not in one piece, and what is missing would be of two segments.
TEST(pool_exceeds_no_limit_for_a_hole) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 8 * kUnit);
  pool.set_limit(16 * kUnit);
  std::vector<HostRange> ranges;
  for (int i = 0; i < 16; ++i) ranges.push_back(pool.allocate(kUnit));
  for (std::size_t i = 0; i < 16; ++i) {
    if (i % 8 != 4) pool.free(ranges[i], nullptr);
  }
  CHECK(!pool.allocate(12 * kUnit));
  CHECK_EQ(pool.stats().reserved_peak, 16 * kUnit);
  pool.check();
}

// What lies in the way of letting segments go is no reason to use more.
TEST(pool_uses_no_more_than_a_limit_that_was_lowered) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 8 * kUnit);
  std::vector<HostRange> ranges;
  for (int i = 0; i < 8; ++i) ranges.push_back(pool.allocate(kUnit));
  for (int i = 0; i < 6; ++i) pool.free(ranges[static_cast<std::size_t>(i)], nullptr);
  pool.set_limit(3 * kUnit);
  CHECK_EQ(pool.stats().reserved, 8 * kUnit);
  CHECK(pool.allocate(kUnit));
  CHECK(!pool.allocate(kUnit));
  CHECK(!pool.allocate(std::numeric_limits<std::size_t>::max()));
  pool.set_limit(0);
  CHECK(pool.allocate(5 * kUnit));
  pool.check();
}

// The limit's last segment is a short one, and nothing goes on behind it.
TEST(pool_ends_a_range_where_a_short_segment_does) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  pool.set_limit(6 * kUnit);
  const HostRange a = pool.allocate(4 * kUnit), b = pool.allocate(2 * kUnit);
  CHECK(a && b);
  pool.set_limit(0);
  const HostRange c = pool.allocate(4 * kUnit);
  CHECK(static_cast<char*>(b.ptr) + 4 * kUnit == c.ptr);
  pool.free(b, nullptr);
  pool.free(c, nullptr);
  pool.check();
  const HostRange wide = pool.allocate(5 * kUnit);
  CHECK(wide.ptr == c.ptr);
}

// Free segments that are no neighbours of the hole hold the room that the limit denies.
TEST(pool_releases_segments_for_a_hole_elsewhere) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  pool.set_limit(16 * kUnit);
  HostRange ranges[4];
  for (HostRange& range : ranges) range = pool.allocate(4 * kUnit);
  pool.free(ranges[1], nullptr);
  pool.free(ranges[3], nullptr);
  CHECK(!pool.allocate(12 * kUnit));
  CHECK_EQ(pool.stats().segments, 4u);  // nothing goes in vain
  memory.requests.clear();
  const HostRange wide = pool.allocate(8 * kUnit);
  CHECK(wide.ptr == ranges[3].ptr);
  CHECK_EQ(memory.requests.size(), 1u);
  CHECK_EQ(pool.stats().reserved_peak, 16 * kUnit);
  CHECK_EQ(pool.stats().reserved, 16 * kUnit);
  pool.check();
}

TEST(pool_obeys_a_lowered_limit) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  const HostRange a = pool.allocate(4 * kUnit), b = pool.allocate(4 * kUnit);
  pool.free(a, nullptr);
  pool.set_limit(4 * kUnit);
  CHECK_EQ(pool.stats().reserved, 4 * kUnit);  // what was free is given back at once
  pool.set_limit(2 * kUnit);
  CHECK_EQ(pool.stats().reserved, 4 * kUnit);  // what is in use stays
  CHECK(!pool.allocate(kUnit));
  pool.free(b, nullptr);
  CHECK(pool.tend());  // what is beyond the limit goes as it is freed
  CHECK(!pool.tend());
  CHECK_EQ(pool.stats().reserved, 0u);
  CHECK_EQ(pool.allocate(2 * kUnit).bytes, 2 * kUnit);
  CHECK_EQ(pool.stats().limit, 2 * kUnit);
  pool.set_limit(0);
  CHECK(pool.allocate(4 * kUnit));
  pool.check();
}

TEST(pool_survives_a_machine_that_is_full) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 16 * kUnit);
  memory.refusals = 1;
  CHECK(pool.allocate(3 * kUnit));
  CHECK_EQ(memory.requests.size(), 2u);
  CHECK_EQ(memory.requests[0], 16 * kUnit);
  CHECK_EQ(memory.requests[1], 3 * kUnit);
  CHECK_EQ(pool.stats().reserved, 3 * kUnit);
  memory.refusals = 2;
  CHECK(!pool.allocate(2 * kUnit));
  CHECK_EQ(pool.stats().reserved, 3 * kUnit);
  CHECK(pool.allocate(2 * kUnit));
  pool.check();
}

TEST(pool_refuses_what_no_machine_has) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  pool.free(pool.allocate(1), nullptr);
  CHECK(!pool.allocate(std::numeric_limits<std::size_t>::max()));
  CHECK(!pool.allocate(std::numeric_limits<std::size_t>::max() - kUnit));
  pool.check();
}

TEST(pool_counts) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 8 * kUnit);
  const HostRange a = pool.allocate(kUnit), b = pool.allocate(2 * kUnit);
  pool.free(a, nullptr);
  lms::HostStats stats = pool.stats();
  CHECK_EQ(stats.used, 2 * kUnit);
  CHECK_EQ(stats.used_peak, 3 * kUnit);
  CHECK_EQ(stats.reserved, 8 * kUnit);
  CHECK_EQ(stats.segments, 1u);
  pool.reset_peaks();
  CHECK_EQ(pool.stats().used_peak, 2 * kUnit);
  pool.free(b, nullptr);
  pool.free(HostRange(), nullptr);  // an empty range is nobody's
  CHECK_EQ(pool.trim(), 8 * kUnit);
  pool.reset_peaks();
  CHECK_EQ(pool.stats().reserved_peak, 0u);
  pool.check();
}

// What leaves a device goes to the NUMA node nearest to it.
TEST(pool_counts_by_node) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  const HostRange a = pool.allocate(kUnit), b = pool.allocate(3 * kUnit);
  const HostRange c = pool.allocate(2 * kUnit, lms::Growth::kAllowed, 3);
  pool.free(a, nullptr);
  auto nodes = pool.stats().nodes;
  CHECK_EQ(nodes.size(), 2u);
  CHECK_EQ(nodes[0].used, 3 * kUnit);
  CHECK_EQ(nodes[0].used_peak, 4 * kUnit);
  CHECK_EQ(nodes[3].used, 2 * kUnit);
  pool.reset_peaks();
  pool.free(b, nullptr);
  pool.free(c, nullptr);
  nodes = pool.stats().nodes;
  CHECK_EQ(nodes[0].used + nodes[3].used, 0u);
  CHECK_EQ(nodes[0].used_peak, 3 * kUnit);
  pool.check();
}

// A node that is full gives memory of another, which is told; and one without a segment left gives
// what the other has.
TEST(pool_takes_memory_that_is_farther_away) {
  HostMemory memory(64 * kUnit);
  memory.full_nodes[2] = 1;
  HostPool pool(memory, 4 * kUnit);
  pool.set_limit(4 * kUnit);
  const HostRange far = pool.allocate(kUnit, lms::Growth::kAllowed, 2);
  CHECK_EQ(pool.stats().nodes[1].used, kUnit);
  const HostRange farther = pool.allocate(3 * kUnit, lms::Growth::kAllowed, 5);
  CHECK_EQ(pool.stats().nodes[1].used, 4 * kUnit);
  pool.free(far, nullptr);
  pool.free(farther, nullptr);
  // What one node does not use makes way for the other.
  CHECK(pool.allocate(4 * kUnit, lms::Growth::kAllowed, 5));
  CHECK_EQ(pool.stats().nodes[5].used, 4 * kUnit);
  pool.check();
}

TEST(pool_without_address_space) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  memory.no_space = true;
  CHECK(!pool.allocate(kUnit));
  memory.no_space = false;
  const HostRange range = pool.allocate(kUnit);
  CHECK(range);
  memory.no_space = true;
  CHECK(pool.allocate(kUnit, lms::Growth::kAllowed, 1));  // of the other node
  pool.check();

  HostMemory little(64 * kUnit, 12 * kUnit);
  HostPool small(little, 4 * kUnit);
  CHECK(small.allocate(4 * kUnit));
  CHECK(!small.allocate(12 * kUnit));
  small.check();
}

// ---- segments ahead of need

TEST(pool_grows_ahead_of_its_peak) {
  HostMemory memory(1024 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  CHECK(!pool.tend());
  for (int i = 0; i < 3; ++i) CHECK(pool.allocate(kUnit));
  CHECK(!pool.tend());  // the fourth unit is enough ahead
  const HostRange last = pool.allocate(kUnit);
  CHECK(pool.tend());
  CHECK(!pool.tend());
  CHECK_EQ(pool.stats().reserved, 8 * kUnit);
  memory.requests.clear();
  CHECK(pool.allocate(4 * kUnit));
  CHECK(memory.requests.empty());
  pool.free(last, nullptr);
  CHECK(pool.tend());  // the peak is what counts: it will be reached again
  CHECK_EQ(pool.stats().reserved, 12 * kUnit);
  pool.set_limit(14 * kUnit);
  CHECK(pool.allocate(4 * kUnit) && pool.allocate(kUnit));
  CHECK(!pool.tend());  // never beyond the limit
  pool.check();
}

// What was given back for the asking comes again when it is needed.
TEST(pool_forgets_its_peak_when_trimmed) {
  HostMemory memory(1024 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  const HostRange much = pool.allocate(100 * kUnit), little = pool.allocate(kUnit);
  pool.free(much, nullptr);
  CHECK(pool.trim() >= 96 * kUnit);
  CHECK(!pool.tend());
  pool.free(little, nullptr);
  CHECK(!pool.tend());
  pool.check();
}

TEST(pool_asks_a_full_machine_once) {
  HostMemory memory(8 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  const HostRange a = pool.allocate(4 * kUnit), b = pool.allocate(4 * kUnit);
  memory.requests.clear();
  for (int i = 0; i < 5; ++i) CHECK(!pool.tend());
  CHECK_EQ(memory.requests.size(), 1u);
  memory.capacity = 64 * kUnit;
  CHECK(!pool.tend());
  pool.set_limit(32 * kUnit);
  CHECK(pool.tend());
  pool.check();
  static_cast<void>(a);
  static_cast<void>(b);
}

// A period is over when sixteen times its peak was given out.
TEST(pool_gives_back_what_is_far_from_needed) {
  HostMemory memory(1024 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  const auto tend = [&pool] {
    while (pool.tend()) {
    }
    pool.check();
  };
  const auto step = [&pool](int ranges) {
    std::vector<HostRange> held;
    for (int i = 0; i < ranges; ++i) held.push_back(pool.allocate(kUnit));
    for (const HostRange& range : held) pool.free(range, nullptr);
  };
  for (int i = 0; i < 20; ++i) step(100);
  tend();
  CHECK(pool.stats().reserved >= 100 * kUnit);
  CHECK(pool.stats().reserved <= 117 * kUnit);  // an eighth more and one segment, at most
  memory.requests.clear();
  for (int i = 0; i < 40; ++i) {
    step(100);
    tend();
  }
  CHECK(memory.requests.empty());  // nothing comes and goes by turns
  for (int i = 0; i < 3; ++i) step(20);
  tend();
  CHECK(pool.stats().reserved >= 100 * kUnit);  // it may have been a small step
  for (int i = 0; i < 200; ++i) step(20);
  tend();
  CHECK(pool.stats().reserved <= 27 * kUnit);
  CHECK(pool.stats().reserved >= 20 * kUnit);
}

// A helper that is slow is waited for, with the lock let go: ranges are freed meanwhile, and what
// is free is given out.
TEST(pool_is_not_locked_while_a_segment_comes) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  const HostRange a = pool.allocate(2 * kUnit), b = pool.allocate(2 * kUnit);
  HostRange meanwhile;
  memory.on_the_way = [&] {
    memory.on_the_way = nullptr;
    pool.free(a, nullptr);
    meanwhile = pool.allocate(kUnit, lms::Growth::kNone);
    CHECK(!pool.tend());  // one at a time
  };
  const HostRange c = pool.allocate(4 * kUnit);
  CHECK(c && meanwhile.ptr == a.ptr);
  memory.on_the_way = [&] {
    memory.on_the_way = nullptr;
    CHECK(pool.allocate(kUnit, lms::Growth::kNone));
  };
  pool.free(c, nullptr);
  CHECK_EQ(pool.trim(), 4 * kUnit);
  pool.check();
  static_cast<void>(b);
}

TEST(pool_has_a_helper_of_its_own) {
  HostMemory memory(4096 * kUnit);
  std::atomic<int> on_the_way{0};
  memory.on_the_way = [&on_the_way] {
    ++on_the_way;
    std::this_thread::yield();
  };
  HostPool pool(memory, 4 * kUnit, HostPool::Tended::kByThread);
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&pool, number] {
      fake::Random random(static_cast<std::uint64_t>(number));
      for (int round = 0; round < 20; ++round) {
        std::vector<HostRange> held;
        for (std::size_t i = 0; i < 40; ++i) {
          held.push_back(
              pool.allocate(1 + random.below(3 * kUnit), lms::Growth::kAllowed, number % 2));
          if (!held.back()) std::abort();
          fake::fill(held.back().ptr, held.back().bytes, i);
        }
        for (std::size_t i = 0; i < held.size(); ++i) {
          if (!fake::holds(held[i].ptr, held[i].bytes, i)) std::abort();
          pool.free(held[i], nullptr);
        }
      }
    });
  }
  pool.set_limit(2048 * kUnit);
  for (std::thread& thread : threads) thread.join();
  CHECK(on_the_way > 0);
  pool.set_limit(kUnit);
  CHECK(pool.stats().reserved <= 4 * kUnit);
  CHECK_EQ(pool.stats().used, 0u);
}

// ---- pending frees

TEST(pool_asks_few_fences) {
  HostMemory memory(1024 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  std::vector<std::shared_ptr<Fence>> fences;
  std::vector<HostRange> ranges;
  for (int i = 0; i < 100; ++i) ranges.push_back(pool.allocate(kUnit));
  for (const HostRange& range : ranges) {
    fences.push_back(std::make_shared<Fence>());
    pool.free(range, fences.back());
  }
  const auto asked = [&fences] {
    int all = 0;
    for (const auto& fence : fences) all += fence->asked;
    return all;
  };
  const int before = asked();
  for (int i = 0; i < 100; ++i) {
    CHECK(pool.allocate(kUnit));
    CHECK(!pool.allocate(64 * kUnit, lms::Growth::kNone));
  }
  CHECK(asked() - before <= 400);  // a poll of each on each would be 20,000
  pool.check();
}

// At the limit the one that makes the hole is waited for, wherever it is in the queue; where it
// takes several, the oldest first and no more than it takes.
TEST(pool_waits_for_the_free_that_helps) {
  HostMemory memory(1024 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  pool.set_limit(16 * kUnit);
  const std::size_t sizes[] = {1, 2, 1, 6, 2, 4};
  HostRange ranges[6];
  std::shared_ptr<Fence> fences[6];
  for (int i = 0; i < 6; ++i) ranges[i] = pool.allocate(sizes[i] * kUnit);
  for (int i = 0; i < 6; ++i) {
    if (i == 2) continue;  // stays
    fences[i] = std::make_shared<Fence>();
    pool.free(ranges[i], fences[i]);
  }
  const HostRange range = pool.allocate(5 * kUnit);
  CHECK(range.ptr == ranges[3].ptr);
  CHECK_EQ(fences[0]->waits + fences[1]->waits + fences[4]->waits + fences[5]->waits, 0);
  CHECK_EQ(fences[3]->waits, 1);
  pool.free(range, nullptr);
  const HostRange all = pool.allocate(12 * kUnit);
  CHECK(all.ptr == ranges[3].ptr);
  CHECK_EQ(fences[4]->waits + fences[5]->waits, 2);
  pool.check();
}

// The queue is not stopped by a stream that is slow.
TEST(pool_takes_what_is_free_behind_a_fence_that_is_not_done) {
  HostMemory memory(8 * kUnit);
  HostPool pool(memory, 8 * kUnit);
  const HostRange slow = pool.allocate(2 * kUnit), fast = pool.allocate(6 * kUnit);
  auto slow_fence = std::make_shared<Fence>(), fast_fence = std::make_shared<Fence>();
  pool.free(slow, slow_fence);
  pool.free(fast, fast_fence);
  fast_fence->finished = true;
  CHECK(pool.allocate(6 * kUnit).ptr == fast.ptr);
  CHECK_EQ(slow_fence->waits + fast_fence->waits, 0);
  pool.check();
}

TEST(pool_is_not_locked_while_it_waits_for_a_fence) {
  class Other final : public lms::Fence {
   public:
    bool done() override { return finished; }
    void wait() override {
      meanwhile();
      finished = true;
    }
    std::function<void()> meanwhile;
    bool finished = false;
  };
  HostMemory memory(4 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  const HostRange a = pool.allocate(2 * kUnit), b = pool.allocate(2 * kUnit);
  auto fence = std::make_shared<Other>();
  HostRange meanwhile;
  fence->meanwhile = [&] {
    pool.free(b, nullptr);
    meanwhile = pool.allocate(2 * kUnit);
  };
  pool.free(a, fence);
  CHECK(pool.allocate(2 * kUnit).ptr == a.ptr);
  CHECK(meanwhile.ptr == b.ptr);
  pool.check();
}

// Ranges keep their bytes until they are freed and the fence is done; the limit holds throughout.
TEST(pool_random) {
  const long seeds = harness::option("seeds", 20), steps = harness::option("steps", 2000);
  for (long seed = 0; seed < seeds; ++seed) {
    fake::Random random(static_cast<std::uint64_t>(seed));
    HostMemory memory(256 * kUnit);
    HostPool pool(memory, (1 + random.below(16)) * kUnit);
    const std::size_t nodes = 1 + random.below(3);
    struct Held {
      HostRange range;
      std::uint64_t tag;
      std::shared_ptr<Fence> fence;  // freed, but still in use until it is done
    };
    std::vector<Held> held;
    std::size_t limit = 0;
    for (long step = 0; step < steps; ++step) {
      const std::size_t kind = random.below(16);
      if (kind < 7) {
        memory.refusals = random.one_in(8) ? 1 : 0;
        const auto growth = random.one_in(8) ? lms::Growth::kNone : lms::Growth::kAllowed;
        const HostRange range = pool.allocate(1 + random.below(12 * kUnit), growth,
                                              static_cast<int>(random.below(nodes)));
        if (range) {
          CHECK(limit == 0 || memory.used.load() <= limit || pool.stats().reserved > limit);
          held.push_back({range, random.next(), nullptr});
          fake::fill(range.ptr, range.bytes, held.back().tag);
        }
      } else if (kind < 14 && !held.empty()) {
        Held& one = held[random.below(held.size())];
        if (one.fence) {
          one.fence->finished = true;
        } else {
          auto fence = random.one_in(3) ? nullptr : std::make_shared<Fence>();
          CHECK(fake::holds(one.range.ptr, one.range.bytes, one.tag));
          pool.free(one.range, fence);
          one.fence = fence ? fence : std::make_shared<Fence>();
          if (!fence) one.fence->finished = true;
        }
      } else if (kind == 14) {
        const std::size_t before = pool.stats().reserved;
        limit = random.one_in(3) ? 0 : (1 + random.below(128)) * kUnit / 2;
        pool.set_limit(limit);
        CHECK(pool.stats().reserved <= before);
      } else if (random.one_in(4)) {
        pool.trim();
      } else {
        pool.tend();
        CHECK(limit == 0 || memory.used.load() <= limit || pool.stats().reserved > limit);
      }
      for (std::size_t i = held.size(); i-- > 0;) {
        if (held[i].fence && held[i].fence->finished) {
          held[i] = held.back();
          held.pop_back();
        } else {
          CHECK(fake::holds(held[i].range.ptr, held[i].range.bytes, held[i].tag));
        }
      }
      pool.check();
      CHECK_EQ(memory.used.load(), pool.stats().reserved);
    }
    for (Held& one : held) {
      if (!one.fence) pool.free(one.range, nullptr);
      if (one.fence) one.fence->finished = true;
    }
    pool.trim();
    CHECK_EQ(pool.stats().reserved, 0u);
    CHECK_EQ(pool.stats().used, 0u);
  }
}
