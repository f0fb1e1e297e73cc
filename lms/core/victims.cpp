// SPDX-License-Identifier: Apache-2.0
#include "victims.h"

#include <algorithm>
#include <limits>

namespace lms {
namespace {

// A candidate takes a search a microsecond or less, so that an eviction costs the host an eighth of
// a millisecond, however many there are. With half as many, more leaves that might have stayed;
// with twice as many each takes twice as long. Against none that leaves beside what was asked for,
// six runs on the dry device took 1% less time in the mean, with half and twice as many 0.3 to
// 0.4%.
constexpr std::size_t kCandidatesPerVictim = 128;

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Hole {
  double cost = kNever;
  std::size_t length = 0;  // in blocks
  std::size_t segment = 0, begin = 0, end = 0;
};

void best_hole(const Segment& segment, std::size_t index, std::size_t need, Hole* best) {
  const auto& blocks = segment.blocks;
  std::size_t begin = 0, bytes = 0;
  double cost = 0;
  for (std::size_t end = 0; end < blocks.size(); ++end) {
    if (blocks[end].state == Block::State::kBusy) {
      begin = end + 1;
      bytes = 0;
      cost = 0;
      continue;
    }
    bytes += blocks[end].bytes;
    if (blocks[end].state == Block::State::kIdle) cost += blocks[end].cost;
    while (bytes - blocks[begin].bytes >= need) {
      bytes -= blocks[begin].bytes;
      if (blocks[begin].state == Block::State::kIdle) cost -= blocks[begin].cost;
      ++begin;
    }
    if (bytes < need) continue;
    const std::size_t length = end + 1 - begin;
    if (cost < best->cost || (cost == best->cost && length < best->length)) {
      best->cost = cost;
      best->length = length;
      best->segment = index;
      best->begin = begin;
      best->end = end + 1;
    }
  }
}

struct Whole {
  std::size_t index = 0;
  std::size_t bytes = 0;
  double cost = 0;
};

// Segments without a busy block.
std::vector<Whole> empty_able(const std::vector<Segment>& segments) {
  std::vector<Whole> wholes;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (!segments[i].releasable) continue;
    Whole whole;
    whole.index = i;
    bool busy = false;
    for (const Block& block : segments[i].blocks) {
      busy = busy || block.state == Block::State::kBusy;
      whole.bytes += block.bytes;
      if (block.state == Block::State::kIdle) whole.cost += block.cost;
    }
    if (!busy && whole.bytes > 0) wholes.push_back(whole);
  }
  return wholes;
}

std::vector<Whole> best_cover(std::vector<Whole> wholes, std::size_t need, double* cost) {
  std::stable_sort(wholes.begin(), wholes.end(), [](const Whole& a, const Whole& b) {
    return a.cost * static_cast<double>(b.bytes) < b.cost * static_cast<double>(a.bytes);
  });
  *cost = kNever;
  std::vector<Whole> best, taken;
  std::size_t bytes = 0;
  double sum = 0;
  for (const Whole& whole : wholes) {
    if (bytes + whole.bytes < need) {
      taken.push_back(whole);
      bytes += whole.bytes;
      sum += whole.cost;
    } else if (sum + whole.cost < *cost) {
      // Completes the cover, but may be far larger than what is missing: a later one may do better.
      *cost = sum + whole.cost;
      best = taken;
      best.push_back(whole);
    }
  }
  if (best.empty()) return best;
  // The last one may make earlier, dearer ones unnecessary.
  bytes = 0;
  for (const Whole& whole : best) bytes += whole.bytes;
  for (std::size_t i = best.size(); i-- > 0;) {
    if (bytes - best[i].bytes >= need) {
      bytes -= best[i].bytes;
      best.erase(best.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  *cost = 0;
  for (const Whole& whole : best) *cost += whole.cost;
  for (const Whole& whole : wholes) {
    if (whole.bytes >= need && whole.cost < *cost) {
      *cost = whole.cost;
      best.assign(1, whole);
    }
  }
  return best;
}

// Of segments that are of no use to the request: of other pools, and free ones of its own that are
// too small. Those in which something lies are left, as in a loop it comes back to them. Of what
// the cover costs a part is the request's own: the rest serves those that come next.
std::vector<Whole> cover_of_others(const std::vector<Segment>& segments, std::vector<Whole> wholes,
                                   const Request& request, double* cost) {
  wholes.erase(std::remove_if(wholes.begin(), wholes.end(),
                              [&](const Whole& whole) {
                                return segments[whole.index].can_hold &&
                                       (whole.bytes >= request.hole_bytes || whole.cost > 0);
                              }),
               wholes.end());
  std::vector<Whole> cover =
      best_cover(wholes, request.release_bytes + request.forgone_bytes, cost);
  if (cover.empty() && request.forgone_bytes > 0) {  // there are not so many
    cover = best_cover(std::move(wholes), request.release_bytes, cost);
  }
  std::size_t bytes = 0;
  for (const Whole& whole : cover) bytes += whole.bytes;
  if (bytes > request.hole_bytes) {
    *cost *= static_cast<double>(request.hole_bytes) / static_cast<double>(bytes);
  }
  return cover;
}

void add_victims(const Segment& segment, std::size_t begin, std::size_t end, Choice* choice) {
  for (std::size_t i = begin; i < end; ++i) {
    if (segment.blocks[i].state == Block::State::kIdle) {
      choice->victims.push_back(segment.blocks[i].victim);
    }
  }
}

class Cheapest final : public Policy {
 public:
  Choice choose(const std::vector<Segment>& segments, const Request& request) const override {
    return choose_victims(segments, request);
  }
  bool keeps_copies() const override { return true; }
  bool makes_room_early() const override { return true; }
  std::size_t candidates_per_victim() const override { return kCandidatesPerVictim; }
};

}  // namespace

const Policy& policy() {
  static const Cheapest cheapest;
  return cheapest;
}

Choice choose_victims(const std::vector<Segment>& segments, const Request& request) {
  Hole hole;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].can_hold) best_hole(segments[i], i, request.hole_bytes, &hole);
  }
  double cover_cost = kNever, others_cost = kNever;
  std::vector<Whole> cover;
  if (request.release_bytes > 0) {
    std::vector<Whole> wholes = empty_able(segments);
    cover = best_cover(wholes, request.release_bytes, &cover_cost);
    cover_cost += request.release_cost;
    std::vector<Whole> others = cover_of_others(segments, std::move(wholes), request, &others_cost);
    if (request.forgone_bytes > 0 && others_cost < std::min(hole.cost, cover_cost)) {
      cover = std::move(others);
      cover_cost = others_cost;
    }
  }
  Choice choice;
  if (hole.cost == kNever && cover_cost == kNever) return choice;
  if (hole.cost <= cover_cost) {
    choice.kind = Choice::Kind::kHole;
    choice.cost = hole.cost;
    if (request.release_bytes > 0) {
      choice.forgone = std::max(-hole.cost, hole.cost - others_cost);
    }
    choice.segments.push_back(hole.segment);
    add_victims(segments[hole.segment], hole.begin, hole.end, &choice);
    return choice;
  }
  choice.kind = Choice::Kind::kSegments;
  choice.cost = cover_cost;
  for (const Whole& whole : cover) {
    choice.segments.push_back(whole.index);
    add_victims(segments[whole.index], 0, segments[whole.index].blocks.size(), &choice);
  }
  return choice;
}

}  // namespace lms
