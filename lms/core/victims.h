// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lms {

// One block of a segment, as the framework's allocator has it.
struct Block {
  enum class State : std::uint8_t { kFree, kIdle, kBusy };
  State state;
  std::size_t bytes;
  double cost;  // of evicting it (kIdle only): bytes moved, weighted by how soon it is needed
  std::size_t victim;  // the caller's index of the idle storage (kIdle only)
};

// Neighbouring blocks of one device allocation, in address order.
struct Segment {
  std::vector<Block> blocks;
  bool can_hold;    // same pool and stream as the request: a hole in it serves the request
  bool releasable;  // can be given back to the device as a whole
};

struct Request {
  std::size_t hole_bytes;  // what a hole inside a segment must measure
  std::size_t
      release_bytes;    // what must be given back to the device for a new segment; 0: no such way
  double release_cost;  // of giving back and allocating anew, in the unit of Block::cost
  // Bytes of the requests whose holes have cost so much more than segments that are of no use to
  // them, as Choice::forgone counts, that those are given back at no price, for as many bytes. 0:
  // they have not.
  std::size_t forgone_bytes = 0;
};

struct Choice {
  enum class Kind : std::uint8_t {
    kNone,      // no set of idle storages makes room
    kHole,      // `victims` are neighbours: evicting them leaves a hole of hole_bytes
    kSegments,  // evicting `victims` empties `segments`, which are then released
  };
  Kind kind = Kind::kNone;
  double cost = 0;
  std::vector<std::size_t> victims;
  std::vector<std::size_t> segments;
  // What a hole costs more than its part of segments that are of no use to the request would, if
  // they could be replaced for nothing. Below 0 where it costs less, or there are none.
  double forgone = 0;
};

// The cheapest way to make room. For a hole the result is the minimum over all runs of neighbouring
// blocks (two pointers over each segment, linear in the number of blocks). Which segments to give
// back is a covering knapsack; it is answered by the best of the covers that a greedy choice by
// cost per byte meets when it passes over each segment that would complete one, pruned, and the
// best single segment: within a factor of two of the optimum.
Choice choose_victims(const std::vector<Segment>& segments, const Request& request);

// A storage between two uses, by what tells whether it is evicted meanwhile.
struct Idleness {
  std::size_t bytes;
  std::uint64_t uses;  // before it, since the storage is known
};

// Says what will be evicted, so that its page-out can be over by then. Called with the engine's
// lock held.
class Predictor {
 public:
  virtual ~Predictor() = default;
  virtual bool evicted(const Idleness& idleness) const = 0;
  virtual void learn(const Idleness& idleness, bool evicted) = 0;
};

// What is decided where more than one way would be right.
class Policy {
 public:
  virtual ~Policy() = default;
  // Victims are numbered in the order in which they came to be idle.
  virtual Choice choose(const std::vector<Segment>& segments, const Request& request) const = 0;
  // Whether a storage that came in to be read keeps its host copy: it can leave again without a
  // page-out.
  virtual bool keeps_copies() const = 0;
  // Whether storages may leave so that a page-in need not wait for the end of an op.
  virtual bool makes_room_early() const { return false; }
  // A search takes the host a while for each candidate. One more leaves at once for each so many.
  virtual std::size_t candidates_per_victim() const { return SIZE_MAX; }
  // Of an engine's own. Null: nothing is paged out ahead.
  virtual std::unique_ptr<Predictor> predictor() const { return nullptr; }
};

// That of this build: of victims.cpp, or of what a benchmark compiles in its place.
const Policy& policy();

}  // namespace lms
