// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "engine.h"
#include "harness.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

TEST(link_load_is_of_both_ways) {
  lms::LinkLoad load;
  CHECK(!load.out_is_free());  // nothing comes in that could wait
  load.copied_in(8 * kMiB, 1);
  CHECK(load.out_is_free());
  load.copied_out(3 * kMiB, 1);
  CHECK(load.out_is_free());
  load.copied_out(3 * kMiB, 1);
  CHECK(!load.out_is_free());
  load.copied_in(8 * kMiB, 1);
  CHECK(load.out_is_free());
}

TEST(link_load_forgets) {
  lms::LinkLoad load;
  load.copied_out(64 * kMiB, 1);
  std::size_t ops = 1;
  for (; !load.out_is_free(); ++ops) {
    CHECK(ops < 1000);
    load.copied_in(kMiB, ops);
  }
  // With nothing forgotten it takes 129.
  CHECK(ops < 110);
  // After long what is said does not change by itself, and one copy is enough to change it.
  CHECK(load.out_is_free());
  load.copied_out(kMiB, ops + 100000);
  CHECK(!load.out_is_free());
}
