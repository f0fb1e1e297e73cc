// SPDX-License-Identifier: Apache-2.0
#include "host_pool.h"

#include <algorithm>
#include <stdexcept>

namespace lms {

constexpr std::size_t HostPool::kAlignment;
constexpr std::size_t HostPool::kSegmentBytes;

namespace {
std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
}  // namespace

HostPool::HostPool(HostMemory& memory, std::size_t segment_bytes)
    : memory_(memory), segment_bytes_(round_up(std::max(segment_bytes, kAlignment), kAlignment)) {}

HostPool::~HostPool() {
  for (const auto& segment : segments_) memory_.release(segment.first);
}

HostRange HostPool::allocate(std::size_t bytes, Growth growth) {
  // Rounding wraps for the largest sizes, which must be refused and not become the smallest.
  const std::size_t want = std::max(bytes, round_up(std::max<std::size_t>(bytes, 1), kAlignment));
  std::lock_guard<std::mutex> lock(mutex_);
  const HostRange range = find_(want, growth);
  if (!range) return range;
  stats_.used += range.bytes;
  stats_.used_peak = std::max(stats_.used_peak, stats_.used);
  HostStats::Node& node = stats_.nodes[segment_of_(static_cast<Address>(range.ptr))->second.node];
  node.used += range.bytes;
  node.used_peak = std::max(node.used_peak, node.used);
  return range;
}

void HostPool::free(HostRange range, FencePtr fence) {
  if (!range) return;
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.used -= range.bytes;
  stats_.nodes[segment_of_(static_cast<Address>(range.ptr))->second.node].used -= range.bytes;
  if (fence && !fence->done()) {
    pending_.emplace_back(range, std::move(fence));
  } else {
    put_(range);
  }
  if (stats_.limit != 0 && stats_.reserved > stats_.limit) trim_();  // the limit was lowered
}

std::size_t HostPool::trim() {
  std::lock_guard<std::mutex> lock(mutex_);
  reap_(/*wait=*/false);
  return trim_();
}

void HostPool::set_limit(std::size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.limit = bytes;
  if (bytes != 0 && stats_.reserved > bytes) trim_();
}

HostStats HostPool::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  HostStats stats = stats_;
  stats.segments = segments_.size();
  return stats;
}

void HostPool::reset_peaks() {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.reserved_peak = stats_.reserved;
  stats_.used_peak = stats_.used;
  for (auto& node : stats_.nodes) node.second.used_peak = node.second.used;
}

HostRange HostPool::find_(std::size_t bytes, Growth growth) {
  reap_(/*wait=*/false);
  HostRange range = take_(bytes);
  if (range || growth == Growth::kNone) return range;
  if (grow_(bytes)) return take_(bytes);
  if (!pending_.empty()) {
    reap_(/*wait=*/true);
    range = take_(bytes);
  }
  // Segments of other sizes may hold the room that the limit denies to a new one.
  if (!range && trim_() > 0 && grow_(bytes)) range = take_(bytes);
  return range;
}

HostRange HostPool::take_(std::size_t bytes) {
  const auto fit = free_size_.lower_bound({bytes, nullptr});
  if (fit == free_size_.end()) return {};
  const Address ptr = fit->second;
  const std::size_t size = fit->first;
  erase_free_(free_.find(ptr));
  if (size > bytes) insert_free_(ptr + bytes, size - bytes);
  HostRange range;
  range.ptr = ptr;
  range.bytes = bytes;
  return range;
}

bool HostPool::grow_(std::size_t bytes) {
  std::size_t size = std::max(bytes, segment_bytes_);
  if (stats_.limit != 0) {
    const std::size_t room = stats_.limit > stats_.reserved ? stats_.limit - stats_.reserved : 0;
    if (room < bytes) return false;
    size = std::min(size, room / kAlignment * kAlignment);
    if (size < bytes) return false;
  }
  void* ptr = memory_.allocate(size);
  if (ptr == nullptr && size > bytes) {
    size = bytes;  // the machine is nearly full: take no more than is asked for
    ptr = memory_.allocate(size);
  }
  if (ptr == nullptr) return false;
  segments_.emplace(static_cast<Address>(ptr), Segment{size, memory_.node(ptr)});
  stats_.reserved += size;
  stats_.reserved_peak = std::max(stats_.reserved_peak, stats_.reserved);
  insert_free_(static_cast<Address>(ptr), size);
  return true;
}

void HostPool::put_(HostRange range) {
  Address begin = static_cast<Address>(range.ptr);
  std::size_t size = range.bytes;
  const auto segment = segment_of_(begin);
  // Segments that happen to be neighbours in memory are still released one by one: merge within
  // one.
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + size &&
      next->first < segment->first + segment->second.bytes) {
    size += next->second;
    erase_free_(next);
  }
  auto previous = free_.lower_bound(begin);
  if (previous != free_.begin()) {
    --previous;
    if (previous->first + previous->second == begin && previous->first >= segment->first) {
      begin = previous->first;
      size += previous->second;
      erase_free_(previous);
    }
  }
  insert_free_(begin, size);
}

void HostPool::reap_(bool wait) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (wait) it->second->wait();
    if (wait || it->second->done()) {
      put_(it->first);
      it = pending_.erase(it);
    } else {
      ++it;
    }
  }
}

std::size_t HostPool::trim_() {
  std::size_t released = 0;
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto whole = free_.find(segment->first);
    if (whole == free_.end() || whole->second != segment->second.bytes) {
      ++segment;
      continue;
    }
    erase_free_(whole);
    memory_.release(segment->first);
    released += segment->second.bytes;
    segment = segments_.erase(segment);
  }
  stats_.reserved -= released;
  return released;
}

HostPool::Segments::const_iterator HostPool::segment_of_(Address ptr) const {
  auto segment = segments_.upper_bound(ptr);
  if (segment == segments_.begin()) throw std::logic_error("host range outside every segment");
  --segment;
  if (ptr >= segment->first + segment->second.bytes)
    throw std::logic_error("host range outside every segment");
  return segment;
}

void HostPool::insert_free_(Address ptr, std::size_t bytes) {
  free_.emplace(ptr, bytes);
  free_size_.emplace(bytes, ptr);
}

void HostPool::erase_free_(std::map<Address, std::size_t>::iterator it) {
  free_size_.erase({it->second, it->first});
  free_.erase(it);
}

void HostPool::check() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::size_t reserved = 0, free = 0, pending = 0, on_nodes = 0;
  for (const auto& segment : segments_) reserved += segment.second.bytes;
  Address end = nullptr;
  for (const auto& range : free_) {
    if (range.first < end) throw std::logic_error("free ranges overlap");
    end = range.first + range.second;
    const auto segment = segment_of_(range.first);
    if (end > segment->first + segment->second.bytes)
      throw std::logic_error("free range crosses its segment");
    free += range.second;
  }
  for (const auto& range : pending_) pending += range.first.bytes;
  for (const auto& node : stats_.nodes) on_nodes += node.second.used;
  if (free_.size() != free_size_.size()) throw std::logic_error("free lists differ");
  if (on_nodes != stats_.used) throw std::logic_error("bytes of NUMA nodes are wrong");
  if (reserved != stats_.reserved) throw std::logic_error("reserved bytes are wrong");
  if (stats_.used + pending + free != reserved) throw std::logic_error("host bytes are lost");
}

}  // namespace lms
