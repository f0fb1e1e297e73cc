// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "fake.h"
#include "harness.h"
#include "victims.h"

namespace {

using lms::Block;
using lms::Choice;
using lms::Segment;

constexpr double kNever = std::numeric_limits<double>::infinity();

Block free_block(std::size_t bytes) { return {Block::State::kFree, bytes, 0, 0}; }
Block busy_block(std::size_t bytes) { return {Block::State::kBusy, bytes, 0, 0}; }
Block idle_block(std::size_t bytes, double cost, std::size_t victim) {
  return {Block::State::kIdle, bytes, cost, victim};
}

std::vector<Segment> random_segments(fake::Random* random, std::size_t max_segments,
                                     std::size_t max_blocks) {
  std::vector<Segment> segments(1 + random->below(max_segments));
  std::size_t victim = 0;
  for (Segment& segment : segments) {
    segment.can_hold = !random->one_in(4);
    segment.releasable = !random->one_in(4);
    const std::size_t busy = 2 + random->below(8), blocks = random->below(max_blocks + 1);
    for (std::size_t i = 0; i < blocks; ++i) {
      const std::size_t bytes = 1 + random->below(20);
      if (random->one_in(busy)) {
        segment.blocks.push_back(busy_block(bytes));
      } else if (random->one_in(3)) {
        segment.blocks.push_back(free_block(bytes));
      } else {
        // Whole numbers: sums are exact, and there are ties.
        segment.blocks.push_back(
            idle_block(bytes, static_cast<double>(random->below(30)), victim++));
      }
    }
  }
  return segments;
}

double brute_force_hole(const std::vector<Segment>& segments, std::size_t need) {
  double best = kNever;
  for (const Segment& segment : segments) {
    if (!segment.can_hold) continue;
    for (std::size_t begin = 0; begin < segment.blocks.size(); ++begin) {
      std::size_t bytes = 0;
      double cost = 0;
      for (std::size_t end = begin; end < segment.blocks.size(); ++end) {
        if (segment.blocks[end].state == Block::State::kBusy) break;
        bytes += segment.blocks[end].bytes;
        cost += segment.blocks[end].cost;
        if (bytes >= need) best = std::min(best, cost);
      }
    }
  }
  return best;
}

struct Whole {
  std::size_t bytes;
  double cost;
};

// Bytes and cost of a segment that can be given back; no bytes if it cannot.
Whole whole(const Segment& segment) {
  Whole result{0, 0};
  if (!segment.releasable) return result;
  for (const Block& block : segment.blocks) {
    if (block.state == Block::State::kBusy) return {0, 0};
    result.bytes += block.bytes;
    result.cost += block.cost;
  }
  return result;
}

double brute_force_cover(const std::vector<Segment>& segments, std::size_t need) {
  double best = kNever;
  for (std::size_t set = 0; set < std::size_t{1} << segments.size(); ++set) {
    std::size_t bytes = 0;
    double cost = 0;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      bytes += whole(segments[i]).bytes;
      cost += whole(segments[i]).cost;
    }
    if (bytes >= need) best = std::min(best, cost);
  }
  return best;
}

std::set<std::size_t> idle_of(const Segment& segment, std::size_t begin, std::size_t end) {
  std::set<std::size_t> victims;
  for (std::size_t i = begin; i < end; ++i) {
    if (segment.blocks[i].state == Block::State::kIdle) victims.insert(segment.blocks[i].victim);
  }
  return victims;
}

// The victims are the idle blocks of one run without a busy block that is long enough.
bool leaves_hole(const Segment& segment, const Choice& choice, std::size_t need) {
  const std::set<std::size_t> victims(choice.victims.begin(), choice.victims.end());
  for (std::size_t begin = 0; begin < segment.blocks.size(); ++begin) {
    std::size_t bytes = 0;
    for (std::size_t end = begin; end < segment.blocks.size(); ++end) {
      if (segment.blocks[end].state == Block::State::kBusy) break;
      bytes += segment.blocks[end].bytes;
      if (bytes >= need && idle_of(segment, begin, end + 1) == victims) return true;
    }
  }
  return false;
}

}  // namespace

TEST(victims_hole_is_optimal) {
  fake::Random random(1);
  for (long i = 0; i < harness::option("instances", 20000); ++i) {
    const auto segments = random_segments(&random, 4, 12);
    const std::size_t need = 1 + random.below(60);
    const Choice choice = lms::choose_victims(segments, {need, 0, 0});
    const double best = brute_force_hole(segments, need);
    if (best == kNever) {
      CHECK(choice.kind == Choice::Kind::kNone);
      CHECK(choice.victims.empty() && choice.segments.empty());
      continue;
    }
    CHECK(choice.kind == Choice::Kind::kHole);
    CHECK_EQ(choice.cost, best);
    CHECK_EQ(choice.segments.size(), 1u);
    CHECK(segments[choice.segments[0]].can_hold);
    CHECK(leaves_hole(segments[choice.segments[0]], choice, need));
  }
}

TEST(victims_cover_is_within_factor_two) {
  fake::Random random(2);
  for (long i = 0; i < harness::option("instances", 20000); ++i) {
    auto segments = random_segments(&random, 8, 4);
    for (Segment& segment : segments) segment.can_hold = false;
    const std::size_t need = 1 + random.below(150);
    const double fee = static_cast<double>(random.below(10));
    const Choice choice = lms::choose_victims(segments, {1, need, fee});
    const double best = brute_force_cover(segments, need);
    if (best == kNever) {
      CHECK(choice.kind == Choice::Kind::kNone);
      continue;
    }
    CHECK(choice.kind == Choice::Kind::kSegments);
    CHECK(choice.cost <= 2 * best + fee);
    std::size_t bytes = 0;
    double cost = fee;
    std::set<std::size_t> victims;
    const std::set<std::size_t> distinct(choice.segments.begin(), choice.segments.end());
    CHECK_EQ(distinct.size(), choice.segments.size());
    for (std::size_t index : choice.segments) {
      CHECK(whole(segments[index]).bytes > 0);  // releasable, without a busy block
      bytes += whole(segments[index]).bytes;
      cost += whole(segments[index]).cost;
      const auto idle = idle_of(segments[index], 0, segments[index].blocks.size());
      victims.insert(idle.begin(), idle.end());
    }
    CHECK(bytes >= need);
    CHECK_EQ(choice.cost, cost);
    CHECK_EQ(victims.size(), choice.victims.size());
    CHECK(victims == std::set<std::size_t>(choice.victims.begin(), choice.victims.end()));
  }
}

// By cost per byte alone the large segment comes before the one that is really needed.
TEST(victims_cover_skips_a_segment_that_is_too_large) {
  std::vector<Segment> segments(3);
  segments[0].blocks = {idle_block(99, 1, 0)};
  segments[1].blocks = {idle_block(1000, 10.2, 1)};
  segments[2].blocks = {idle_block(1, 1, 2)};
  for (Segment& segment : segments) {
    segment.can_hold = false;
    segment.releasable = true;
  }
  const Choice choice = lms::choose_victims(segments, {1, 100, 0});
  CHECK(choice.kind == Choice::Kind::kSegments);
  CHECK(choice.cost <= 4);
}

TEST(victims_take_the_cheaper_way) {
  fake::Random random(3);
  for (long i = 0; i < harness::option("instances", 20000) / 4; ++i) {
    const auto segments = random_segments(&random, 5, 8);
    const std::size_t hole = 1 + random.below(60), release = 1 + random.below(100);
    const double fee = static_cast<double>(random.below(20));
    const Choice both = lms::choose_victims(segments, {hole, release, fee});
    auto no_hole = segments;
    for (Segment& segment : no_hole) segment.can_hold = false;
    const Choice only_hole = lms::choose_victims(segments, {hole, 0, fee});
    const Choice only_cover = lms::choose_victims(no_hole, {hole, release, fee});
    if (both.kind == Choice::Kind::kNone) {
      CHECK(only_hole.kind == Choice::Kind::kNone && only_cover.kind == Choice::Kind::kNone);
    } else if (both.kind == Choice::Kind::kHole) {
      CHECK_EQ(both.cost, only_hole.cost);
      CHECK(only_cover.kind == Choice::Kind::kNone || both.cost <= only_cover.cost);
    } else {
      CHECK_EQ(both.cost, only_cover.cost);
      CHECK(only_hole.kind == Choice::Kind::kNone || both.cost < only_hole.cost);
    }
  }
}

TEST(victims_busy_block_breaks_a_run) {
  Segment segment{{idle_block(4, 1, 0), busy_block(1), idle_block(4, 1, 1)}, true, true};
  CHECK(lms::choose_victims({segment}, {5, 5, 0}).kind == Choice::Kind::kNone);
  CHECK(lms::choose_victims({segment}, {4, 0, 0}).kind == Choice::Kind::kHole);
  segment.blocks[1] = free_block(1);
  const Choice choice = lms::choose_victims({segment}, {9, 0, 0});
  CHECK(choice.kind == Choice::Kind::kHole);
  CHECK(choice.victims == (std::vector<std::size_t>{0, 1}));
}

TEST(victims_only_where_the_request_fits) {
  const Segment other_pool{{idle_block(8, 1, 0)}, false, false};
  CHECK(lms::choose_victims({other_pool}, {4, 4, 0}).kind == Choice::Kind::kNone);
  const Segment dear{{idle_block(8, 5, 1)}, true, false};
  const Choice choice = lms::choose_victims({other_pool, dear}, {4, 4, 0});
  CHECK(choice.kind == Choice::Kind::kHole);
  CHECK(choice.victims == std::vector<std::size_t>{1});
}

TEST(victims_of_no_use_to_the_request_are_counted_and_taken_when_paid_for) {
  const Segment own{{idle_block(4, 10, 0)}, true, true};
  const auto others = [&](const Segment& segment, std::size_t forgone_bytes) {
    return lms::choose_victims({own, segment, segment}, {4, 4, 100, forgone_bytes});
  };
  const Segment free{{free_block(8)}, false, true};
  CHECK(others(free, 0).kind == Choice::Kind::kHole);
  CHECK_EQ(others(free, 0).forgone, 10.0);
  CHECK(others(free, 1).segments == std::vector<std::size_t>{1});
  CHECK(others(free, 5).segments.size() == 2);
  CHECK(others(free, 99).segments == std::vector<std::size_t>{1});  // there are not so many
  // What a part of it costs: the rest is for the next.
  const Segment old{{idle_block(8, 16, 1)}, false, true};
  CHECK_EQ(others(old, 0).forgone, 2.0);
  CHECK(others(old, 1).kind == Choice::Kind::kSegments);
  const Segment late{{idle_block(8, 24, 1)}, false, true};
  CHECK_EQ(others(late, 0).forgone, -2.0);
  CHECK(others(late, 1).kind == Choice::Kind::kHole);
  // Of the request's own pool, what is too small for it.
  const Segment small{{free_block(3)}, true, true};
  CHECK_EQ(others(small, 0).forgone, 10.0);
  CHECK(others(small, 1).segments.size() == 2);
  const Segment used{{free_block(1), idle_block(2, 0.1, 1)}, true, true};
  CHECK_EQ(others(used, 0).forgone, -10.0);
  const Segment broken{{busy_block(1), free_block(3)}, false, true};
  CHECK_EQ(others(broken, 0).forgone, -10.0);
  const Segment kept{{free_block(8)}, false, false};
  CHECK_EQ(others(kept, 0).forgone, -10.0);
}

TEST(victims_ties) {
  // Of runs that cost the same, the one of fewer blocks; of ways that cost the same, the hole.
  const Segment many{{idle_block(2, 2, 0), idle_block(2, 2, 1)}, true, true};
  const Segment one{{idle_block(4, 4, 2)}, true, true};
  Choice choice = lms::choose_victims({many, one}, {4, 0, 0});
  CHECK(choice.victims == std::vector<std::size_t>{2});
  choice = lms::choose_victims({one}, {4, 4, 0});
  CHECK(choice.kind == Choice::Kind::kHole);
  // A hole that is there already costs nothing.
  const Segment open{{idle_block(4, 0, 0), free_block(4)}, true, true};
  choice = lms::choose_victims({open}, {4, 0, 0});
  CHECK_EQ(choice.cost, 0.0);
  CHECK(choice.victims.size() <= 1);
}

TEST(victims_of_nothing) {
  CHECK(lms::choose_victims({}, {1, 1, 0}).kind == Choice::Kind::kNone);
  const Segment empty{{}, true, true};
  CHECK(lms::choose_victims({empty}, {1, 1, 0}).kind == Choice::Kind::kNone);
}
