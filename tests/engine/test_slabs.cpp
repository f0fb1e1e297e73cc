// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include "harness.h"
#include "slabs.h"

namespace {

using lms::Block;
using lms::LastRun;
using lms::Segment;
using lms::SlabPlace;
using lms::SlabRequest;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A block of 10 for each character: '.' is free, '#' in use, a digit the idle victim of that
// number.
Segment segment(const char* picture) {
  Segment made{{}, true, true};
  for (; *picture != '\0'; ++picture) {
    if (*picture == '.') {
      made.blocks.push_back({Block::State::kFree, 10, 0, 0});
    } else if (*picture == '#') {
      made.blocks.push_back({Block::State::kBusy, 10, 0, 0});
    } else {
      made.blocks.push_back({Block::State::kIdle, 10, 1, static_cast<std::size_t>(*picture - '0')});
    }
  }
  return made;
}

TEST(slabs_have_their_sizes) {
  CHECK_EQ(lms::first_slab_bytes(64 * kMiB), kMiB);
  CHECK_EQ(lms::first_slab_bytes(kMiB), lms::kLeastSlab);
  CHECK_EQ(lms::first_slab_bytes(32768 * kMiB), 8 * kMiB);
  CHECK_EQ(lms::next_slab_bytes(0), lms::kLeastSlab);
  CHECK_EQ(lms::next_slab_bytes(3 * kMiB), 3 * kMiB);
  CHECK_EQ(lms::next_slab_bytes(20 * kMiB), 8 * kMiB);
}

// The oldest storage is not the one: what lies at the end makes way.
TEST(slabs_lie_at_the_end) {
  const LastRun run = lms::last_run({segment("0..123.")}, 25);
  CHECK(run.found && run.victims == std::vector<std::size_t>({3, 2}));
  CHECK(lms::last_run({segment("0..1"), segment("...")}, 25).victims.empty());
}

TEST(slabs_do_not_reach_past_what_is_in_use) {
  const LastRun run = lms::last_run({segment("01.#2#3")}, 15);
  CHECK(run.found && run.victims == std::vector<std::size_t>({1}));
  CHECK(!lms::last_run({segment("0#"), segment("#1")}, 15).found);
}

TEST(slabs_under_pressure_wait_for_their_place) {
  SlabRequest request;
  CHECK(lms::place_of_slab(request) == SlabPlace::kAnywhere);
  request.evicting = true;
  CHECK(lms::place_of_slab(request) == SlabPlace::kAnywhere);
  request.under_pressure = true;
  CHECK(lms::place_of_slab(request) == SlabPlace::kNowhere);
  request.resort = lms::Resort::kLast;
  CHECK(lms::place_of_slab(request) == SlabPlace::kAnywhere);
}

// While Large Model Support is being enabled again nothing can make way for a better place: a small
// request would fail although there is room.
TEST(slabs_while_nothing_can_be_evicted) {
  SlabRequest request;
  request.under_pressure = true;
  CHECK(lms::place_of_slab(request) == SlabPlace::kAnywhere);
}

// What there is in slabs may still be used up to the limit, but no slab past the first is made.
TEST(slabs_under_a_device_limit) {
  SlabRequest request;
  request.over_limit = true;
  request.resort = lms::Resort::kLast;
  CHECK(lms::place_of_slab(request) == SlabPlace::kNowhere);
}

}  // namespace
