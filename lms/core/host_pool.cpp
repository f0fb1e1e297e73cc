// SPDX-License-Identifier: Apache-2.0
#include "host_pool.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <system_error>

namespace lms {

constexpr std::size_t HostPool::kAlignment;
constexpr std::size_t HostPool::kSegmentBytes;

namespace {

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// Reserved is kept above the one, of what was in use, so that segments come ahead of need; and
// below the other, of what was held, so that they are not kept for long without any. They are apart
// so that none comes and goes by turns.
std::size_t ahead_of(std::size_t mark) { return mark + mark / 16; }
std::size_t far_above(std::size_t mark) { return mark + mark / 8; }

// Or a while. Waiting without an end would be a function of the newest C++ libraries, without which
// the framework's run, too.
void wait(std::condition_variable* changed, std::unique_lock<std::mutex>* lock) {
  changed->wait_for(*lock, std::chrono::minutes(1));
}

}  // namespace

HostPool::HostPool(HostMemory& memory, std::size_t segment_bytes, Tended tended)
    : memory_(memory),
      segment_bytes_(round_up(std::max(segment_bytes, kAlignment), kAlignment)),
      tended_(tended) {}

HostPool::~HostPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    wanted_.notify_one();
  }
  if (helper_.joinable()) helper_.join();
  for (auto& node : nodes_) {
    node.second.span.for_segments(
        [this](char* segment, std::size_t bytes) { memory_.decommit(segment, bytes); });
    memory_.unreserve(node.second.span.space());
  }
}

HostRange HostPool::allocate(std::size_t bytes, Growth growth, int device) {
  // Rounding wraps for the largest sizes, which must be refused and not become the smallest.
  const std::size_t want = std::max(bytes, round_up(std::max<std::size_t>(bytes, 1), kAlignment));
  const int number = memory_.node_near(device);
  Lock lock(mutex_);
  Node* const node = node_(number);
  for (;;) {
    reap_();
    // More may be reserved, where a lower limit has come too late to let segments go.
    if (stats_.limit != 0 && want > stats_.limit - std::min(stats_.limit, stats_.used)) return {};
    const HostRange range = node == nullptr ? HostRange() : take_(node, want);
    if (range || growth == Growth::kNone) return range;
    if (moving_) {
      wait(&moved_, &lock);
    } else if (node == nullptr || (!grow_(&lock, node, want) && !wait_for_one_(&lock, node, want) &&
                                   !make_way_(&lock, node, want))) {
      break;
    }
  }
  for (auto& other : nodes_) {  // memory that is farther away is better than none
    const HostRange range = take_(&other.second, want);
    if (range) return range;
  }
  return {};
}

void HostPool::free(HostRange range, FencePtr fence) {
  if (!range) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.used -= range.bytes;
  stats_.nodes[node_with_(range.ptr).span.node_of(range.ptr)].used -= range.bytes;
  if (fence && !fence->done()) {
    pending_.push_back({range, std::move(fence)});
  } else {
    put_(range);
  }
  call_helper_();
}

bool HostPool::may_grow(std::size_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return room_() >= bytes;
}

bool HostPool::prepare(std::size_t bytes, int device) {
  const HostRange range = allocate(bytes, Growth::kAllowed, device);
  if (!range) return false;
  free(range, nullptr);
  const int number = memory_.node_near(device);
  const std::lock_guard<std::mutex> lock(mutex_);
  return node_with_(range.ptr).number == number;  // else `allocate` would not look there first
}

std::size_t HostPool::trim() {
  Lock lock(mutex_);
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    pending = pending->fence->done() ? put_pending_(pending) : std::next(pending);
  }
  for (auto& entry : nodes_) {  // nor does what goes come back at once
    Node& node = entry.second;
    node.most_in_use.forget(node.in_use);
    node.most_held.forget(node.reserved - node.span.whole_free_bytes());
  }
  return release_all_(&lock, 0);
}

bool HostPool::tend() {
  Lock lock(mutex_);
  reap_();
  if (moving_) return false;
  for (auto& entry : nodes_) {
    Node& node = entry.second;
    if (wants_less_(node) && release_one_(&lock, &node, {})) return true;
    const Address place = wants_more_(node) ? node.span.first_place() : nullptr;
    if (place == nullptr) continue;
    refused_ = !commit_(&lock, &node, place, segment_bytes_, segment_bytes_);
    if (!refused_) return true;
  }
  return false;
}

void HostPool::set_limit(std::size_t bytes) {
  Lock lock(mutex_);
  stats_.limit = bytes;
  refused_ = false;
  if (over_limit_()) release_all_(&lock, bytes);
}

HostStats HostPool::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  HostStats stats = stats_;
  for (const auto& node : nodes_) stats.segments += node.second.span.segments();
  return stats;
}

void HostPool::reset_peaks() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.reserved_peak = stats_.reserved;
  stats_.used_peak = stats_.used;
  for (auto& node : stats_.nodes) node.second.used_peak = node.second.used;
}

// ---- ranges

// Null when the process may have no more address space.
HostPool::Node* HostPool::node_(int number) {
  auto node = nodes_.find(number);
  if (node == nodes_.end()) {
    const HostMemory::Space space = memory_.reserve();
    if (space.begin == nullptr) return nullptr;
    node = nodes_
               .emplace(std::piecewise_construct, std::forward_as_tuple(number),
                        std::forward_as_tuple(number, space, segment_bytes_))
               .first;
  }
  return &node->second;
}

HostPool::Node& HostPool::node_with_(const void* ptr) {
  for (auto& node : nodes_) {
    if (node.second.span.contains(ptr)) return node.second;
  }
  throw std::logic_error("host range outside every span");
}

// Of what is free, or is no longer read.
HostRange HostPool::take_(Node* node, std::size_t bytes) {
  Address ptr = node->span.take(bytes);
  if (ptr == nullptr) {
    const auto helpful = helpful_(*node, bytes);
    if (helpful == pending_.end() || !helpful->fence->done()) return {};
    put_pending_(helpful);
    ptr = node->span.take(bytes);
  }
  return give_(node, ptr, bytes);
}

HostRange HostPool::give_(Node* node, Address ptr, std::size_t bytes) {
  node->in_use += bytes;
  node->most_in_use.gave(bytes, node->in_use);
  node->most_held.gave(bytes, node->reserved - node->span.whole_free_bytes());
  stats_.used += bytes;
  stats_.used_peak = std::max(stats_.used_peak, stats_.used);
  HostStats::Node& counted = stats_.nodes[node->span.node_of(ptr)];
  counted.used += bytes;
  counted.used_peak = std::max(counted.used_peak, counted.used);
  call_helper_();
  HostRange range;
  range.ptr = ptr;
  range.bytes = bytes;
  return range;
}

void HostPool::put_(const HostRange& range) {
  Node& node = node_with_(range.ptr);
  node.in_use -= range.bytes;
  node.span.put(static_cast<Address>(range.ptr), range.bytes);
}

// ---- pending frees. Fences are asked as rarely as can be: copies end in the order in which they
// began, nearly, so the oldest that has not ended speaks for all behind it.

HostPool::Queue::iterator HostPool::put_pending_(Queue::iterator pending) {
  put_(pending->range);
  return pending_.erase(pending);
}

void HostPool::reap_() {
  while (!pending_.empty() && pending_.front().fence->done()) put_pending_(pending_.begin());
}

// The oldest that makes a hole for so many bytes.
HostPool::Queue::iterator HostPool::helpful_(const Node& node, std::size_t bytes) {
  return std::find_if(pending_.begin(), pending_.end(), [&](const Pending& pending) {
    const auto ptr = static_cast<Address>(pending.range.ptr);
    return node.span.contains(ptr) && node.span.hole_with(ptr, pending.range.bytes) >= bytes;
  });
}

// Where none makes a hole alone, the oldest is the first of several that may.
bool HostPool::wait_for_one_(Lock* lock, const Node* node, std::size_t bytes) {
  if (pending_.empty()) return false;
  const auto helpful = helpful_(*node, bytes);
  const FencePtr fence = (helpful == pending_.end() ? pending_.begin() : helpful)->fence;
  lock->unlock();
  fence->wait();
  lock->lock();
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    pending = pending->fence == fence ? put_pending_(pending) : std::next(pending);
  }
  return true;
}

// ---- segments

// False when the limit or the machine has no room for what a hole of so many bytes needs.
bool HostPool::grow_(Lock* lock, Node* node, std::size_t bytes) {
  const HostSpan::Window window = node->span.window(bytes);
  const std::size_t room = room_();
  if (window.begin == nullptr || window.missing > room) return false;
  const auto first = node->span.first_missing(window);
  const std::size_t rest = window.missing - first.second;
  return commit_(lock, node, first.first, std::min(segment_bytes_, room - rest), first.second);
}

bool HostPool::commit_(Lock* lock, Node* node, Address place, std::size_t bytes,
                       std::size_t least) {
  moving_ = true;
  node->span.begin_move(place);
  stats_.reserved += bytes;
  lock->unlock();
  std::size_t got = memory_.commit(place, bytes, node->number) ? bytes : 0;
  if (got == 0 && least < bytes && memory_.commit(place, least, node->number)) {
    got = least;  // the machine is nearly full: no more than is needed
  }
  const int on = got > 0 ? memory_.node_of(place) : 0;
  lock->lock();
  node->span.end_move(place, got, on);
  node->reserved += got;
  stats_.reserved -= bytes - got;
  stats_.reserved_peak = std::max(stats_.reserved_peak, stats_.reserved);
  moving_ = false;
  moved_.notify_all();
  return got > 0;
}

// Segments elsewhere hold the room that the limit, or the machine, denies to a new one.
bool HostPool::make_way_(Lock* lock, const Node* node, std::size_t bytes) {
  const HostSpan::Window window = node->span.window(bytes);
  if (window.begin == nullptr) return false;
  std::size_t free = 0;
  for (const auto& other : nodes_) free += other.second.span.free_bytes();
  // What is free within the window stays.
  free -= std::min(free, window.bytes - std::min(window.bytes, window.missing));
  const std::size_t room = room_();
  if (window.missing > room && window.missing - room > free) return false;
  for (auto& other : nodes_) {
    const bool same = &other.second == node;
    if (release_one_(lock, &other.second, same ? window : HostSpan::Window())) return true;
  }
  return false;
}

bool HostPool::release_one_(Lock* lock, Node* node, const HostSpan::Window& but) {
  const Address segment = node->span.last_free(but);
  if (segment == nullptr) return false;
  const std::size_t bytes = node->span.bytes_of(segment);
  moving_ = true;
  node->span.begin_move(segment);
  lock->unlock();
  memory_.decommit(segment, bytes);
  lock->lock();
  node->span.end_move(segment, 0, 0);
  node->reserved -= bytes;
  stats_.reserved -= bytes;
  moving_ = false;
  refused_ = false;
  moved_.notify_all();
  return true;
}

// Returns the bytes released.
std::size_t HostPool::release_all_(Lock* lock, std::size_t down_to) {
  std::size_t released = 0;
  for (bool any = true; any && stats_.reserved > down_to;) {
    while (moving_) wait(&moved_, lock);
    const std::size_t before = stats_.reserved;
    any = false;
    for (auto& node : nodes_) any = any || release_one_(lock, &node.second, {});
    released += before - std::min(before, stats_.reserved);
  }
  return released;
}

std::size_t HostPool::room_() const {
  if (stats_.limit == 0) return std::numeric_limits<std::size_t>::max() / 2;
  return over_limit_() ? 0 : (stats_.limit - stats_.reserved) / kAlignment * kAlignment;
}

bool HostPool::over_limit_() const { return stats_.limit != 0 && stats_.reserved > stats_.limit; }

// ---- the helper

bool HostPool::wants_more_(const Node& node) const {
  return !refused_ && node.reserved < ahead_of(node.most_in_use.bytes()) &&
         room_() >= segment_bytes_;
}

bool HostPool::wants_less_(const Node& node) const {
  return over_limit_() || node.reserved > far_above(node.most_held.bytes()) + segment_bytes_;
}

// Begun when it is needed first: a process may still fork before.
void HostPool::call_helper_() {
  if (tended_ == Tended::kByCaller || called_) return;
  for (const auto& node : nodes_) {
    called_ = called_ || wants_more_(node.second) || wants_less_(node.second);
  }
  if (!called_) return;
  if (helper_.joinable()) {
    wanted_.notify_one();
    return;
  }
  try {
    helper_ = std::thread([this] { help_(); });
  } catch (const std::system_error&) {
    // The machine has no more threads. All still works, with segments that come when needed.
  }
}

void HostPool::help_() {
  Lock lock(mutex_);
  for (;;) {
    while (!called_ && !stop_) wait(&wanted_, &lock);
    if (stop_) return;
    called_ = false;
    lock.unlock();
    while (tend()) {
    }
    lock.lock();
  }
}

void HostPool::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t reserved = 0, in_use = 0, pending = 0, on_nodes = 0;
  for (const auto& entry : nodes_) {
    const Node& node = entry.second;
    node.span.check();
    std::size_t bytes = 0;
    node.span.for_segments([&bytes](char*, std::size_t size) { bytes += size; });
    if (bytes != node.reserved) throw std::logic_error("reserved bytes of a span are wrong");
    if (node.in_use + node.span.free_bytes() != bytes)
      throw std::logic_error("host bytes are lost");
    reserved += bytes;
    in_use += node.in_use;
  }
  for (const Pending& one : pending_) pending += one.range.bytes;
  for (const auto& node : stats_.nodes) on_nodes += node.second.used;
  if (on_nodes != stats_.used) throw std::logic_error("bytes of NUMA nodes are wrong");
  if (reserved != stats_.reserved) throw std::logic_error("reserved bytes are wrong");
  if (stats_.used + pending != in_use) throw std::logic_error("pending bytes are lost");
}

}  // namespace lms
