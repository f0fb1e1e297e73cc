// SPDX-License-Identifier: Apache-2.0
#include "slabs.h"

#include <algorithm>

namespace lms {
namespace {

// A larger one lies empty in most programs, and needs a larger hole once the pool is in use; with
// smaller ones a program of many small storages makes more of them, each between large storages.
constexpr std::size_t kMostSlab = std::size_t{8} << 20;

std::size_t within_bounds(std::size_t bytes) {
  return std::min(std::max(bytes, kLeastSlab), kMostSlab);
}

}  // namespace

std::size_t first_slab_bytes(std::size_t pool_bytes) { return within_bounds(pool_bytes / 64); }

std::size_t next_slab_bytes(std::size_t all_slabs_bytes) { return within_bounds(all_slabs_bytes); }

SlabPlace place_of_slab(const SlabRequest& request) {
  if (request.over_limit) return SlabPlace::kNowhere;
  const bool better =
      request.under_pressure && request.evicting && request.resort == Resort::kFirst;
  return better ? SlabPlace::kNowhere : SlabPlace::kAnywhere;
}

LastRun last_run(const std::vector<Segment>& segments, std::size_t bytes) {
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    LastRun run;
    std::size_t room = 0;
    for (auto block = segment->blocks.rbegin(); block != segment->blocks.rend(); ++block) {
      if (block->state == Block::State::kBusy) {
        room = 0;
        run.victims.clear();
        continue;
      }
      if (block->state == Block::State::kIdle) run.victims.push_back(block->victim);
      room += block->bytes;
      run.found = room >= bytes;
      if (run.found) return run;
    }
  }
  return {};
}

}  // namespace lms
