// SPDX-License-Identifier: Apache-2.0
#include "crowd.h"
#include "harness.h"

namespace {

using Member = lms::Crowd::Member;

const auto nothing = [] {};

}  // namespace

TEST(crowd_of_one_is_alone) {
  lms::Crowd crowd;
  {
    const Member before(&crowd);
  }
  const Member one(&crowd);
  CHECK(one.if_alone(nothing));
  CHECK(one.if_alone(nothing));
}

TEST(crowd_members_that_met_are_not_alone) {
  lms::Crowd crowd;
  const Member one(&crowd);
  {
    const Member two(&crowd);
    CHECK(!one.if_alone([] { CHECK(false); }));
    CHECK(!two.if_alone([] { CHECK(false); }));
  }
  CHECK(!one.if_alone(nothing));
}

TEST(crowd_does_not_count_who_is_of_none) {
  lms::Crowd crowd;
  const Member one(&crowd);
  const Member none(nullptr);
  CHECK(one.if_alone(nothing));
}

// What was done is said to be done, whoever begins meanwhile.
TEST(crowd_looks_once) {
  lms::Crowd crowd;
  const Member one(&crowd);
  bool done = false;
  CHECK(one.if_alone([&] {
    const Member other(&crowd);
    done = true;
  }));
  CHECK(done);
  CHECK(!one.if_alone(nothing));
}
