// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "engine.h"
#include "harness.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

TEST(link_load_is_of_both_ways) {
  lms::LinkLoad load;
  CHECK(!load.is_worth_more());  // nothing comes in that could wait
  load.copied_in(8 * kMiB, 1);
  CHECK(load.is_worth_more());
  load.copied_out(3 * kMiB, 1);
  CHECK(load.is_worth_more());
  load.copied_out(3 * kMiB, 1);
  CHECK(!load.is_worth_more());
  load.copied_in(8 * kMiB, 1);
  CHECK(load.is_worth_more());
}

TEST(link_load_keeps_what_leaves_early_little) {
  lms::LinkLoad load;
  load.copied_in(8 * kMiB, 1);
  load.evicted_early(kMiB, 1);
  CHECK(load.is_worth_more());
  load.evicted_early(kMiB, 1);
  CHECK(!load.is_worth_more());
}

TEST(link_load_forgets) {
  lms::LinkLoad load;
  load.copied_out(64 * kMiB, 1);
  std::size_t ops = 1;
  for (; !load.is_worth_more(); ++ops) {
    CHECK(ops < 1000);
    load.copied_in(kMiB, ops);
  }
  // With nothing forgotten it takes 129.
  CHECK(ops < 110);
  // After long what is said does not change by itself, and one copy is enough to change it.
  CHECK(load.is_worth_more());
  load.copied_out(kMiB, ops + 100000);
  CHECK(!load.is_worth_more());
}
