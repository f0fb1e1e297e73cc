// SPDX-License-Identifier: Apache-2.0
#include <thread>
#include <vector>

#include "demand.h"
#include "harness.h"

namespace {

using lms::Demand;

TEST(demand_is_unknown_at_first) {
  Demand demand;
  CHECK_EQ(demand.of(1, 100), +Demand::kUnknown);
  demand.note(1, 100, 0);
  CHECK_EQ(demand.of(1, 100), 0);
}

TEST(demand_is_the_most_that_was_taken) {
  Demand demand;
  for (const std::int64_t taken : {5, 9, 7}) demand.note(1, 100, taken);
  CHECK_EQ(demand.of(1, 100), 9);
}

// What an op took with operands of nearly that size says nothing of this one.
TEST(demand_is_by_the_exact_size) {
  Demand demand;
  demand.note(1, 1 << 24, 5);
  CHECK_EQ(demand.of(1, (1 << 24) + 1), +Demand::kUnknown);
  CHECK_EQ(demand.of(2, 1 << 24), +Demand::kUnknown);
}

// Where the size is another one at every call, each call would be the first of its size.
TEST(demand_is_tried_by_about_the_size) {
  Demand demand;
  CHECK(!demand.tried(1, 1000));
  demand.mark_tried(1, 1000);
  CHECK(demand.tried(1, 1024) && demand.tried(1, 513));
  CHECK(!demand.tried(1, 1025) && !demand.tried(1, 512) && !demand.tried(2, 1000));
}

TEST(demand_forgets_rather_than_grow) {
  Demand demand;
  for (std::size_t i = 0; i < Demand::kMostEntries; ++i) demand.note(i, 8, 1);
  CHECK_EQ(demand.of(0, 8), 1);
  demand.note(Demand::kMostEntries, 8, 1);
  CHECK_EQ(demand.of(0, 8), +Demand::kUnknown);
  CHECK_EQ(demand.of(Demand::kMostEntries, 8), 1);
}

TEST(demand_from_many_threads) {
  Demand demand;
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&demand, t] {
      for (std::int64_t i = 0; i < 1000; ++i) {
        demand.note(7, i % 10, t * 1000 + i);
        demand.mark_tried(7, i);
        CHECK(demand.of(7, i % 10) >= t * 1000 + i && demand.tried(7, i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(demand.of(7, 9), 3999);
}

}  // namespace
