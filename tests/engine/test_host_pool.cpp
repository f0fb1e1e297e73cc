// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <limits>
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
  bool done() override { return finished; }
  void wait() override {
    ++waits;
    finished = true;
  }
  bool finished = false;
  int waits = 0;
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

TEST(pool_merges_within_one_segment_only) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  const HostRange first = pool.allocate(4 * kUnit);
  const HostRange second = pool.allocate(4 * kUnit);
  CHECK(static_cast<char*>(first.ptr) + first.bytes == second.ptr);  // neighbours in memory
  pool.free(first, nullptr);
  pool.free(second, nullptr);
  pool.check();
  const HostRange again = pool.allocate(4 * kUnit);
  pool.free(second.ptr == again.ptr ? again : again, nullptr);
  const HostRange wide = pool.allocate(8 * kUnit);  // fits neither segment
  CHECK(wide);
  CHECK_EQ(pool.stats().segments, 3u);
  pool.free(wide, nullptr);
  CHECK_EQ(pool.trim(), 16 * kUnit);
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

TEST(pool_releases_segments_for_one_that_fits) {
  HostMemory memory(64 * kUnit);
  HostPool pool(memory, 4 * kUnit);
  pool.set_limit(8 * kUnit);
  const HostRange a = pool.allocate(4 * kUnit), b = pool.allocate(4 * kUnit);
  pool.free(a, nullptr);
  pool.free(b, nullptr);
  CHECK_EQ(pool.allocate(8 * kUnit).bytes, 8 * kUnit);
  CHECK_EQ(pool.stats().segments, 1u);
  CHECK_EQ(pool.stats().reserved_peak, 8 * kUnit);
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

// Each segment is of one NUMA node, whatever is cut from it.
TEST(pool_counts_by_node) {
  class TwoNodes final : public lms::HostMemory {
   public:
    void* allocate(std::size_t bytes) override {
      segments_.push_back(memory_.allocate(bytes));
      return segments_.back();
    }
    void release(void* ptr) override { memory_.release(ptr); }
    int node(const void* ptr) override { return ptr == segments_[0] ? 0 : 3; }

   private:
    fake::HostMemory memory_{64 * kUnit};
    std::vector<void*> segments_;
  };
  TwoNodes memory;
  HostPool pool(memory, 4 * kUnit);
  const HostRange a = pool.allocate(kUnit), b = pool.allocate(3 * kUnit);
  const HostRange c = pool.allocate(2 * kUnit);
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

// Ranges keep their bytes until they are freed and the fence is done; the limit holds throughout.
TEST(pool_random) {
  const long seeds = harness::option("seeds", 20), steps = harness::option("steps", 2000);
  for (long seed = 0; seed < seeds; ++seed) {
    fake::Random random(static_cast<std::uint64_t>(seed));
    HostMemory memory(256 * kUnit);
    HostPool pool(memory, (1 + random.below(16)) * kUnit);
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
        const HostRange range = pool.allocate(1 + random.below(12 * kUnit));
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
      } else {
        pool.trim();
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
