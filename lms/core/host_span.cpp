// SPDX-License-Identifier: Apache-2.0
#include "host_span.h"

#include <algorithm>
#include <stdexcept>

namespace lms {
namespace {

std::size_t distance(const char* from, const char* to) {
  return static_cast<std::size_t>(to - from);
}

}  // namespace

HostSpan::HostSpan(HostMemory::Space space, std::size_t segment_bytes)
    : space_(space), segment_bytes_(segment_bytes), begin_(space.begin), end_(space.begin) {
  const std::size_t beyond = reinterpret_cast<std::size_t>(space.begin) % segment_bytes;
  const std::size_t skip = beyond == 0 ? 0 : segment_bytes - beyond;
  if (skip > space.bytes) return;
  begin_ += skip;
  end_ = begin_ + (space.bytes - skip) / segment_bytes * segment_bytes;
}

// ---- ranges

HostSpan::Address HostSpan::take(std::size_t bytes) {
  const auto fit = free_size_.lower_bound({bytes, nullptr});
  if (fit == free_size_.end()) return nullptr;
  const Address ptr = fit->second;
  const std::size_t size = fit->first;
  erase_(free_.find(ptr));
  if (size > bytes) insert_(ptr + bytes, size - bytes);
  return ptr;
}

void HostSpan::put(Address ptr, std::size_t bytes) {
  // What has no memory behind it is not free, so neighbours are of one segment or of two that meet.
  auto next = free_.lower_bound(ptr);
  if (next != free_.end() && next->first == ptr + bytes) {
    bytes += next->second;
    erase_(next);
  }
  auto previous = free_.lower_bound(ptr);
  if (previous != free_.begin()) {
    --previous;
    if (previous->first + previous->second == ptr) {
      ptr = previous->first;
      bytes += previous->second;
      erase_(previous);
    }
  }
  insert_(ptr, bytes);
}

std::size_t HostSpan::hole_with(Address ptr, std::size_t bytes) const {
  const auto next = free_.lower_bound(ptr);
  std::size_t hole = bytes;
  if (next != free_.end() && next->first == ptr + bytes) hole += next->second;
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == ptr) hole += previous->second;
  }
  return hole;
}

bool HostSpan::contains(const void* ptr) const {
  const char* address = static_cast<const char*>(ptr);
  return begin_ <= address && address < end_;
}

// The bytes of the places that a range covers.
std::size_t HostSpan::whole_(Address ptr, std::size_t bytes) const {
  const std::size_t begin = distance(begin_, ptr), end = begin + bytes;
  const std::size_t first = (begin + segment_bytes_ - 1) / segment_bytes_;
  const std::size_t last = end / segment_bytes_;
  return first < last ? (last - first) * segment_bytes_ : 0;
}

void HostSpan::insert_(Address ptr, std::size_t bytes) {
  free_.emplace(ptr, bytes);
  free_size_.emplace(bytes, ptr);
  free_bytes_ += bytes;
  whole_free_bytes_ += whole_(ptr, bytes);
}

void HostSpan::erase_(Ranges::iterator range) {
  free_bytes_ -= range->second;
  whole_free_bytes_ -= whole_(range->first, range->second);
  free_size_.erase({range->second, range->first});
  free_.erase(range);
}

// ---- segments

HostSpan::Address HostSpan::place_(const void* ptr) const {
  const std::size_t offset = distance(begin_, static_cast<const char*>(ptr));
  return begin_ + offset / segment_bytes_ * segment_bytes_;
}

// Of [begin, end), what has no memory behind it. A segment is put there whole but for the last,
// which may end where the window does.
std::size_t HostSpan::missing_(Address begin, Address end) const {
  std::size_t missing = 0;
  for (Address place = place_(begin); place < end; place += segment_bytes_) {
    if (segments_.count(place) == 0) missing += std::min(segment_bytes_, distance(place, end));
  }
  return missing;
}

// What is free, and what could be: places without a segment.
HostSpan::Ranges HostSpan::open_() const {
  Ranges open;
  Address at = begin_;
  for (const auto& segment : segments_) {
    if (segment.first > at) open.emplace(at, distance(at, segment.first));
    at = segment.first + segment_bytes_;
  }
  if (at < end_) open.emplace(at, distance(at, end_));
  open.insert(free_.begin(), free_.end());
  return open;
}

HostSpan::Window HostSpan::window(std::size_t bytes) const {
  Window best;
  const auto consider = [&](Address begin) {
    const std::size_t missing = missing_(begin, begin + bytes);
    if (best.begin == nullptr || missing < best.missing) best = {begin, bytes, missing};
  };
  const Ranges open = open_();
  for (auto range = open.begin(); range != open.end();) {
    const Address begin = range->first;
    Address end = begin;
    auto next = range;
    for (; next != open.end() && next->first == end; ++next) end += next->second;
    // It begins where a piece of the run does, or ends where the run does.
    for (; range != next; ++range) {
      if (distance(range->first, end) >= bytes) consider(range->first);
    }
    if (distance(begin, end) >= bytes) consider(end - bytes);
  }
  return best;
}

std::pair<HostSpan::Address, std::size_t> HostSpan::first_missing(const Window& window) const {
  const Address end = window.begin + window.bytes;
  for (Address place = place_(window.begin); place < end; place += segment_bytes_) {
    if (segments_.count(place) == 0) return {place, std::min(segment_bytes_, distance(place, end))};
  }
  return {nullptr, 0};
}

HostSpan::Address HostSpan::first_place() const {
  Address place = begin_;
  for (const auto& segment : segments_) {
    if (segment.first != place) break;
    place += segment_bytes_;
  }
  return place < end_ ? place : nullptr;
}

HostSpan::Address HostSpan::last_free(const Window& window) const {
  for (auto range = free_.rbegin(); range != free_.rend(); ++range) {
    const Address end = range->first + range->second;
    for (Address place = place_(end - 1);; place -= segment_bytes_) {
      const bool whole = place >= range->first && place + segments_.at(place).bytes <= end;
      const bool wanted = window.begin != nullptr && place < window.begin + window.bytes &&
                          place + segment_bytes_ > window.begin;
      if (whole && !wanted) return place;
      if (place <= range->first) break;
    }
  }
  return nullptr;
}

void HostSpan::begin_move(Address segment) {
  const auto found = segments_.find(segment);
  if (found == segments_.end()) {
    segments_[segment] = {0, 0, true};
    return;
  }
  auto range = std::prev(free_.upper_bound(segment));
  const Address begin = range->first, end = begin + range->second;
  const Address beyond = segment + found->second.bytes;
  erase_(range);
  if (begin < segment) insert_(begin, distance(begin, segment));
  if (beyond < end) insert_(beyond, distance(beyond, end));
  found->second.moving = true;
}

void HostSpan::end_move(Address segment, std::size_t bytes, int node) {
  if (bytes == 0) {
    segments_.erase(segment);
    return;
  }
  segments_[segment] = {bytes, node, false};
  put(segment, bytes);
}

int HostSpan::node_of(const void* ptr) const { return segments_.at(place_(ptr)).node; }

void HostSpan::check() const {
  std::size_t free = 0, whole = 0;
  Address end = nullptr;
  for (const auto& range : free_) {
    if (range.first <= end) throw std::logic_error("free ranges overlap or are not merged");
    end = range.first + range.second;
    free += range.second;
    for (const auto& segment : segments_) {
      const bool within = segment.first >= range.first && segment.first + segment_bytes_ <= end;
      if (within) whole += segment_bytes_;
    }
    for (Address place = place_(range.first); place < end; place += segment_bytes_) {
      const auto segment = segments_.find(place);
      if (segment == segments_.end() || segment->second.moving ||
          std::min(end, place + segment_bytes_) > place + segment->second.bytes)
        throw std::logic_error("a free range has no memory behind it");
    }
  }
  if (whole != whole_free_bytes_) throw std::logic_error("bytes of free segments are wrong");
  if (free != free_bytes_) throw std::logic_error("free bytes are wrong");
  if (free_.size() != free_size_.size()) throw std::logic_error("free lists differ");
}

}  // namespace lms
