// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "host_memory.h"

namespace lms {

// Calls `part(offset, bytes)` for each piece of host memory that lies in one segment: CUDA copies
// from and to one registration at a time, and refuses what goes on into the next.
template <class Part>
void for_parts(const void* ptr, std::size_t bytes, std::size_t segment_bytes, const Part& part) {
  const auto begin = reinterpret_cast<std::size_t>(ptr);
  for (std::size_t offset = 0; offset < bytes;) {
    const std::size_t left = segment_bytes - (begin + offset) % segment_bytes;
    const std::size_t size = bytes - offset < left ? bytes - offset : left;
    part(offset, size);
    offset += size;
  }
}

// Address space in places for segments, one after the other, each at a multiple of their size.
// Some have memory behind them; what is free of that is in ranges, which go on from one segment to
// the next and are merged when they meet. Knows no lock, no limit, and not where memory comes from.
class HostSpan {
 public:
  using Address = char*;

  HostSpan(HostMemory::Space space, std::size_t segment_bytes);

  // ---- ranges
  // The free range that fits best, or null.
  Address take(std::size_t bytes);
  void put(Address ptr, std::size_t bytes);
  // The size of the hole that there would be if this range were free.
  std::size_t hole_with(Address ptr, std::size_t bytes) const;
  bool contains(const void* ptr) const;

  // ---- segments
  struct Window {
    Address begin = nullptr;  // null: the address space has no place for it
    std::size_t bytes = 0;
    std::size_t missing = 0;  // what has to be put behind it, at least
  };
  // Where `bytes` fit with the least memory more.
  Window window(std::size_t bytes) const;
  // Of what a window misses, the first segment: its place, and how much of it the window needs.
  std::pair<Address, std::size_t> first_missing(const Window& window) const;
  // The place with the lowest address that has none.
  Address first_place() const;
  // The segment with the highest address that is wholly free and not part of the window; or null.
  Address last_free(const Window& window) const;
  // A segment on its way: neither free nor missing.
  void begin_move(Address segment);
  // Came, with so many bytes, all of them free; or went (0).
  void end_move(Address segment, std::size_t bytes, int node);
  std::size_t bytes_of(Address segment) const { return segments_.at(segment).bytes; }
  // The NUMA node of the segment that the range begins in.
  int node_of(const void* ptr) const;

  std::size_t segments() const { return segments_.size(); }
  std::size_t free_bytes() const { return free_bytes_; }
  // Of segments that are wholly free, but for short ones.
  std::size_t whole_free_bytes() const { return whole_free_bytes_; }
  HostMemory::Space space() const { return space_; }
  // All of them, to be given back.
  template <class Each>
  void for_segments(const Each& each) const {
    for (const auto& segment : segments_) each(segment.first, segment.second.bytes);
  }

  // Checks every invariant; for tests. Throws std::logic_error.
  void check() const;

 private:
  struct Segment {
    std::size_t bytes;
    int node;
    bool moving;
  };
  using Ranges = std::map<Address, std::size_t>;

  Address place_(const void* ptr) const;  // that it is in
  std::size_t missing_(Address begin, Address end) const;
  Ranges open_() const;
  std::size_t whole_(Address ptr, std::size_t bytes) const;
  void insert_(Address ptr, std::size_t bytes);
  void erase_(Ranges::iterator range);

  const HostMemory::Space space_;
  const std::size_t segment_bytes_;
  Address begin_;  // of the first place
  Address end_;
  std::map<Address, Segment> segments_;
  Ranges free_;                                          // by address, to merge neighbours
  std::set<std::pair<std::size_t, Address>> free_size_;  // the same by size, for best fit
  std::size_t free_bytes_ = 0;
  std::size_t whole_free_bytes_ = 0;
};

}  // namespace lms
