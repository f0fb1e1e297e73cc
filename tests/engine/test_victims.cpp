// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "fake.h"
#include "harness.h"
#include "victims.h"

namespace {

using lms::Cell;
using lms::Choice;
using lms::Segment;

constexpr double kNever = std::numeric_limits<double>::infinity();

Cell free_cell(std::size_t bytes) { return {Cell::State::kFree, bytes, 0, 0}; }
Cell busy_cell(std::size_t bytes) { return {Cell::State::kBusy, bytes, 0, 0}; }
Cell idle_cell(std::size_t bytes, double cost, std::size_t victim) {
  return {Cell::State::kIdle, bytes, cost, victim};
}

std::vector<Segment> random_segments(fake::Random* random, std::size_t max_segments,
                                     std::size_t max_cells) {
  std::vector<Segment> segments(1 + random->below(max_segments));
  std::size_t victim = 0;
  for (Segment& segment : segments) {
    segment.can_hold = !random->one_in(4);
    segment.releasable = !random->one_in(4);
    const std::size_t busy = 2 + random->below(8), cells = random->below(max_cells + 1);
    for (std::size_t i = 0; i < cells; ++i) {
      const std::size_t bytes = 1 + random->below(20);
      if (random->one_in(busy)) {
        segment.cells.push_back(busy_cell(bytes));
      } else if (random->one_in(3)) {
        segment.cells.push_back(free_cell(bytes));
      } else {
        // Whole numbers: sums are exact, and there are ties.
        segment.cells.push_back(idle_cell(bytes, static_cast<double>(random->below(30)), victim++));
      }
    }
  }
  return segments;
}

double brute_force_hole(const std::vector<Segment>& segments, std::size_t need) {
  double best = kNever;
  for (const Segment& segment : segments) {
    if (!segment.can_hold) continue;
    for (std::size_t begin = 0; begin < segment.cells.size(); ++begin) {
      std::size_t bytes = 0;
      double cost = 0;
      for (std::size_t end = begin; end < segment.cells.size(); ++end) {
        if (segment.cells[end].state == Cell::State::kBusy) break;
        bytes += segment.cells[end].bytes;
        cost += segment.cells[end].cost;
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
  for (const Cell& cell : segment.cells) {
    if (cell.state == Cell::State::kBusy) return {0, 0};
    result.bytes += cell.bytes;
    result.cost += cell.cost;
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
    if (segment.cells[i].state == Cell::State::kIdle) victims.insert(segment.cells[i].victim);
  }
  return victims;
}

// The victims are the idle blocks of one run without a busy block that is long enough.
bool leaves_hole(const Segment& segment, const Choice& choice, std::size_t need) {
  const std::set<std::size_t> victims(choice.victims.begin(), choice.victims.end());
  for (std::size_t begin = 0; begin < segment.cells.size(); ++begin) {
    std::size_t bytes = 0;
    for (std::size_t end = begin; end < segment.cells.size(); ++end) {
      if (segment.cells[end].state == Cell::State::kBusy) break;
      bytes += segment.cells[end].bytes;
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
      const auto idle = idle_of(segments[index], 0, segments[index].cells.size());
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
  segments[0].cells = {idle_cell(99, 1, 0)};
  segments[1].cells = {idle_cell(1000, 10.2, 1)};
  segments[2].cells = {idle_cell(1, 1, 2)};
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
  Segment segment{{idle_cell(4, 1, 0), busy_cell(1), idle_cell(4, 1, 1)}, true, true};
  CHECK(lms::choose_victims({segment}, {5, 5, 0}).kind == Choice::Kind::kNone);
  CHECK(lms::choose_victims({segment}, {4, 0, 0}).kind == Choice::Kind::kHole);
  segment.cells[1] = free_cell(1);
  const Choice choice = lms::choose_victims({segment}, {9, 0, 0});
  CHECK(choice.kind == Choice::Kind::kHole);
  CHECK(choice.victims == (std::vector<std::size_t>{0, 1}));
}

TEST(victims_only_where_the_request_fits) {
  const Segment other_pool{{idle_cell(8, 1, 0)}, false, false};
  CHECK(lms::choose_victims({other_pool}, {4, 4, 0}).kind == Choice::Kind::kNone);
  const Segment dear{{idle_cell(8, 5, 1)}, true, false};
  const Choice choice = lms::choose_victims({other_pool, dear}, {4, 4, 0});
  CHECK(choice.kind == Choice::Kind::kHole);
  CHECK(choice.victims == std::vector<std::size_t>{1});
}

TEST(victims_ties) {
  // Of runs that cost the same, the one of fewer blocks; of ways that cost the same, the hole.
  const Segment many{{idle_cell(2, 2, 0), idle_cell(2, 2, 1)}, true, true};
  const Segment one{{idle_cell(4, 4, 2)}, true, true};
  Choice choice = lms::choose_victims({many, one}, {4, 0, 0});
  CHECK(choice.victims == std::vector<std::size_t>{2});
  choice = lms::choose_victims({one}, {4, 4, 0});
  CHECK(choice.kind == Choice::Kind::kHole);
  // A hole that is there already costs nothing.
  const Segment open{{idle_cell(4, 0, 0), free_cell(4)}, true, true};
  choice = lms::choose_victims({open}, {4, 0, 0});
  CHECK_EQ(choice.cost, 0.0);
  CHECK(choice.victims.size() <= 1);
}

TEST(victims_of_nothing) {
  CHECK(lms::choose_victims({}, {1, 1, 0}).kind == Choice::Kind::kNone);
  const Segment empty{{}, true, true};
  CHECK(lms::choose_victims({empty}, {1, 1, 0}).kind == Choice::Kind::kNone);
}
