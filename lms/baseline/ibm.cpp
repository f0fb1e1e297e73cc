// SPDX-License-Identifier: Apache-2.0
// Victims as IBM's Large Model Support chose them, for the benchmark alone: it is compiled in place
// of victims.cpp, and no wheel that is shipped has it. Written from what IBM's pages and statistics
// say: what is idle is a list in the order of its unpinning; the first in it that is large enough
// makes way (`reclaim_one`), else several that are neighbours (`reclaim_fragments`), else all
// (`reclaim_all`); segments are given back only after that; a page-in ends the host copy.
// Speculative page-out, with LMS_IBM_SPECULATE=1: what goes idle and is expected to be reclaimed is
// copied out at once, beside the computation, and stays on the device until it is reclaimed. How
// that is foretold the pages do not say, but that reclaims are recorded for it: see Recorded.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "victims.h"

namespace lms {
namespace {

// An idle block where a hole would serve the request.
struct Place {
  std::size_t victim;
  std::size_t segment;
  std::size_t block;
};

// In the order of their unpinning.
std::vector<Place> idle_places(const std::vector<Segment>& segments) {
  std::vector<Place> places;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (!segments[i].can_hold) continue;
    const auto& blocks = segments[i].blocks;
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      if (blocks[k].state == Block::State::kIdle) places.push_back({blocks[k].victim, i, k});
    }
  }
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.victim < b.victim; });
  return places;
}

// The fewest blocks from `first` on that are as many bytes, with the free one before it; none where
// a busy one comes before that.
std::vector<std::size_t> run_from(const std::vector<Block>& blocks, std::size_t first,
                                  std::size_t bytes) {
  std::vector<std::size_t> victims;
  const bool room_before = first > 0 && blocks[first - 1].state == Block::State::kFree;
  std::size_t found = room_before ? blocks[first - 1].bytes : 0;
  for (std::size_t i = first; i < blocks.size() && found < bytes; ++i) {
    if (blocks[i].state == Block::State::kBusy) break;
    if (blocks[i].state == Block::State::kIdle) victims.push_back(blocks[i].victim);
    found += blocks[i].bytes;
  }
  if (found < bytes) victims.clear();
  return victims;
}

// Idle times from this one on count as one: of what stays for long there are ever more.
constexpr std::uint64_t kLastIdleTime = 8;

// What is made anew in each iteration is another storage there, so a tensor is known by its size
// and by which of its idle times this is: it is expected to end as the last such one did.
class Recorded final : public Predictor {
 public:
  bool evicted(const Idleness& idleness) const override {
    const auto found = evicted_.find(of_(idleness));
    return found != evicted_.end() && found->second;
  }
  void learn(const Idleness& idleness, bool evicted) override { evicted_[of_(idleness)] = evicted; }

 private:
  using Kind = std::pair<std::size_t, std::uint64_t>;
  static Kind of_(const Idleness& idleness) {
    return {idleness.bytes, idleness.uses < kLastIdleTime ? idleness.uses : kLastIdleTime};
  }
  std::map<Kind, bool> evicted_;
};

class Ibm final : public Policy {
 public:
  Choice choose(const std::vector<Segment>& segments, const Request& request) const override {
    const std::vector<Place> places = idle_places(segments);
    for (const Place& place : places) {
      if (segments[place.segment].blocks[place.block].bytes >= request.hole_bytes) {
        return hole(place.segment, {place.victim});
      }
    }
    for (const Place& place : places) {
      const auto victims =
          run_from(segments[place.segment].blocks, place.block, request.hole_bytes);
      if (!victims.empty()) return hole(place.segment, victims);
    }
    return {};
  }
  bool keeps_copies() const override { return false; }
  std::unique_ptr<Predictor> predictor() const override {
    const char* set = std::getenv("LMS_IBM_SPECULATE");
    if (set == nullptr || std::string(set) != "1") return nullptr;
    return std::unique_ptr<Predictor>(new Recorded);
  }

 private:
  static Choice hole(std::size_t segment, const std::vector<std::size_t>& victims) {
    Choice choice;
    choice.kind = Choice::Kind::kHole;
    choice.victims = victims;
    choice.segments.push_back(segment);
    return choice;
  }
};

}  // namespace

const Policy& policy() {
  static const Ibm ibm;
  return ibm;
}

}  // namespace lms
