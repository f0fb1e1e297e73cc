// SPDX-License-Identifier: Apache-2.0
#include "reclaim.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "slabs.h"

namespace lms {
namespace {

Route route_of(std::size_t evicted) { return evicted > 1 ? Route::kEvictSome : Route::kEvictOne; }

struct Step {
  Route route;
  bool moved;  // something did: it may be worth another step
};

// Segments that are of no use where they are go once holes have cost so many times more as it costs
// to replace them: so who would copy for ever copies a few times as much as who knew. With one, the
// device stops for what is free in a part of each step alone: GPT-2 medium at half of its peak took
// 5% longer, a GPT of 130 layers at 1/1.5 3%; with four they are within 1%.
constexpr double kTimesThePrice = 4;

// Without those that are not to leave at any cost.
IdleMap idle_map(const std::vector<Candidate>& candidates) {
  IdleMap idle;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (std::isinf(candidates[i].cost)) continue;
    idle[candidates[i].extent.ptr] = {candidates[i].cost, i};
  }
  return idle;
}

std::size_t bytes_of(const std::vector<Segment>& segments) {
  std::size_t bytes = 0;
  for (const Segment& segment : segments) {
    for (const Block& block : segment.blocks) bytes += block.bytes;
  }
  return bytes;
}

// Evicts so many of the candidates, in the order in which they came to be idle: what one is copied
// out after is then over when that of the next is, and holds it up no longer. False when one cannot
// leave, as host memory is full.
bool evict_in_order(Engine& engine, const std::vector<Candidate>& candidates,
                    std::vector<std::size_t> victims) {
  std::sort(victims.begin(), victims.end());
  return std::all_of(victims.begin(), victims.end(),
                     [&](std::size_t victim) { return engine.evict(candidates[victim].key); });
}

// Where a search looks at many, more leaves than was asked for: beside the victims the cheapest
// that leave holes of about the size of the request, so that what comes next finds room without a
// search. Returns how many.
std::size_t evict_alike(Engine& engine, const std::vector<Candidate>& candidates,
                        const std::vector<Segment>& segments, std::size_t bytes,
                        const std::vector<std::size_t>& victims) {
  const std::size_t count = candidates.size() / policy().candidates_per_victim();
  if (count <= victims.size()) return 0;
  std::vector<Block> alike;
  for (const Segment& segment : segments) {
    if (!segment.can_hold) continue;
    for (const Block& block : segment.blocks) {
      if (block.state == Block::State::kIdle && block.bytes >= bytes && block.bytes / 2 <= bytes &&
          std::find(victims.begin(), victims.end(), block.victim) == victims.end()) {
        alike.push_back(block);
      }
    }
  }
  const std::size_t more = std::min(count - victims.size(), alike.size());
  std::partial_sort(alike.begin(), alike.begin() + static_cast<std::ptrdiff_t>(more), alike.end(),
                    [](const Block& a, const Block& b) {
                      return a.cost < b.cost || (a.cost == b.cost && a.victim < b.victim);
                    });
  for (std::size_t i = 0; i < more; ++i) {
    if (!engine.evict(candidates[alike[i].victim].key)) return i;
  }
  return more;
}

// Any storage will do, wherever it lies: what costs least for its bytes goes first.
Step evict_to_limit(Engine& engine, BlockLists& lists, std::vector<Candidate> candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.cost * static_cast<double>(b.extent.bytes) <
                            b.cost * static_cast<double>(a.extent.bytes);
                   });
  std::size_t evicted = 0;
  for (const Candidate& candidate : candidates) {
    if (lists.over_limit() == 0) break;
    if (engine.evict(candidate.key)) ++evicted;
  }
  if (evicted > 0 && lists.take_free_block()) return {route_of(evicted), true};
  return {Route::kNone, evicted > 0};
}

Step evict_cheapest(Engine& engine, BlockLists& lists, const RoomRequest& request) {
  auto candidates = engine.candidates(request.device, request.sizes, *request.cost);
  if (candidates.empty()) return {Route::kNone, false};
  if (lists.over_limit() > 0) return evict_to_limit(engine, lists, std::move(candidates));
  const std::vector<Segment> segments = lists.segments(idle_map(candidates));
  Forgone& forgone = engine.forgone(request.device);
  const double price = request.cost->replace_segments(bytes_of(segments));
  const bool paid = forgone.cost() >= kTimesThePrice * price;
  const Choice choice =
      policy().choose(segments, {request.bytes, request.whole_segments ? lists.shortfall() : 0,
                                 price, paid ? forgone.bytes() : 0});
  if (choice.kind == Choice::Kind::kNone) return {Route::kNone, false};
  if (!evict_in_order(engine, candidates, choice.victims)) {
    forgone.reset();  // a hole may need less host memory
    return {Route::kNone, false};
  }
  const bool moved = !choice.victims.empty();  // else another step would find the same
  if (choice.kind == Choice::Kind::kHole) {
    // Before a block is taken: what is freed beside one that is would be merged with it.
    const std::size_t more =
        evict_alike(engine, candidates, segments, request.bytes, choice.victims);
    forgone.add(choice.forgone * static_cast<double>(1 + more), request.bytes * (1 + more));
    if (lists.take_free_block()) return {route_of(choice.victims.size()), moved};
  } else {
    forgone.reset();
    lists.release_segments(choice.segments);
    if (lists.take_new_segment()) return {Route::kReplaceSegments, moved};
  }
  return {Route::kNone, moved};
}

bool take_any(BlockLists& lists) {
  if (lists.take_free_block()) return true;
  lists.settle_and_release();
  return lists.take_free_block() || lists.take_new_segment() ||
         (lists.shrink_segment() && lists.take_new_segment());
}

}  // namespace

Route make_room(Engine& engine, BlockLists& lists, const RoomRequest& request) {
  const EngineLock lock(engine.mutex());
  if (lists.take_free_block()) return Route::kFreeBlock;  // made by another thread meanwhile
  Step step = {Route::kNone, true};
  while (step.route == Route::kNone && step.moved) step = evict_cheapest(engine, lists, request);
  if (step.route != Route::kNone || !request.everything) return step.route;
  for (const Sizes sizes : {Sizes::kFromMinimum, Sizes::kAny}) {
    engine.evict_all(request.device, sizes);
    if (take_any(lists)) return Route::kEvictAll;
  }
  return Route::kNone;
}

bool may_make_room_early(Engine& engine, int device) {
  return policy().makes_room_early() && engine.may_evict_early(device);
}

Route make_room_early(Engine& engine, BlockLists& lists, int device, std::size_t bytes,
                      std::uint64_t mark) {
  const EngineLock lock(engine.mutex());
  if (lists.take_free_block()) return Route::kFreeBlock;  // made by another thread meanwhile
  const bool fits = lists.shortfall() == 1;  // the least that is said: no try is made in vain
  if (fits && lists.take_new_segment()) return Route::kNewSegment;
  const EarlyCost cost(mark);
  RoomRequest request;
  request.device = device;
  request.bytes = bytes;
  request.whole_segments = false;
  request.cost = &cost;
  const std::int64_t before = engine.stats(device).reclaimed_bytes;
  const Route route = evict_cheapest(engine, lists, request).route;  // once: it makes what it says
  engine.evicted_early(device,
                       static_cast<std::size_t>(engine.stats(device).reclaimed_bytes - before));
  return route;
}

bool make_hole(Engine& engine, BlockLists& lists, int device, std::size_t bytes) {
  const EngineLock lock(engine.mutex());
  RoomRequest request;
  request.device = device;
  request.bytes = bytes;
  request.everything = false;
  for (const Sizes sizes : {Sizes::kFromMinimum, Sizes::kAny}) {
    request.sizes = sizes;
    if (make_room(engine, lists, request) != Route::kNone) return true;
  }
  return false;
}

bool make_hole_at_end(Engine& engine, BlockLists& lists, int device, std::size_t bytes) {
  const EngineLock lock(engine.mutex());
  const auto candidates = engine.candidates(device, Sizes::kAny);
  const LastRun run = last_run(lists.segments(idle_map(candidates)), bytes);
  return evict_in_order(engine, candidates, run.victims) && run.found;
}

bool evict_idle(Engine& engine, int device) {
  const EngineLock lock(engine.mutex());
  const auto refused = engine.stats(device).host_refused;
  bool moved = false;
  for (const Candidate& candidate : engine.candidates(device, Sizes::kAny)) {
    if (engine.evict(candidate.key)) moved = true;
    if (engine.stats(device).host_refused != refused) break;
  }
  return moved;
}

}  // namespace lms
