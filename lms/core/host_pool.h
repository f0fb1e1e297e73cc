// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "high_water.h"
#include "host_memory.h"
#include "host_span.h"
#include "types.h"

namespace lms {

struct HostRange {
  void* ptr = nullptr;
  std::size_t bytes = 0;  // rounded up to HostPool::kAlignment
  explicit operator bool() const { return ptr != nullptr; }
};

struct HostStats {
  std::size_t limit = 0;  // 0: none
  std::size_t reserved = 0;
  std::size_t reserved_peak = 0;
  std::size_t used = 0;
  std::size_t used_peak = 0;
  std::size_t segments = 0;

  struct Node {
    std::size_t used = 0;
    std::size_t used_peak = 0;
  };
  std::map<int, Node> nodes;  // by the NUMA node; of those that memory came from
};

// Whether the pool may take more memory from the machine.
enum class Growth : std::uint8_t { kAllowed, kNone };

// Pinned host memory in segments, in one span for each NUMA node that devices are near to. Pinning
// is slow: ranges are cut from segments by best fit and merged when freed, segments come ahead of
// need and go when they are far from needed. What is reserved never exceeds the limit.
//
// Thread-safe. Its lock is a leaf, and let go while a segment comes or goes and while a fence is
// waited for. One segment is on its way at a time; whoever needs another waits for it.
class HostPool {
 public:
  // Ranges are multiples of it. More is lost behind each; with less there are more pieces too small
  // for any storage.
  static constexpr std::size_t kAlignment = 512;
  // What is pinned at once. A larger one comes later, and is held whole for little; with smaller
  // ones more copies are made in two, since none goes from one registration into the next.
  static constexpr std::size_t kSegmentBytes = std::size_t{64} << 20;

  // Who calls `tend`: a thread of the pool's, which begins with its first segment, or the caller.
  enum class Tended : std::uint8_t { kByThread, kByCaller };

  explicit HostPool(HostMemory& memory, std::size_t segment_bytes = kSegmentBytes,
                    Tended tended = Tended::kByCaller);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // For what leaves `device`. Empty range when neither the limit nor the machine leaves room. Waits
  // for pending frees before it gives up, one after the other; with Growth::kNone it does neither,
  // and the range is of what is free now.
  HostRange allocate(std::size_t bytes, Growth growth = Growth::kAllowed, int device = 0);

  // The range may be allocated again once `fence` (may be null) is done.
  void free(HostRange range, FencePtr fence);

  // Whether the limit lets so many bytes come from the machine.
  bool may_grow(std::size_t bytes) const;
  // Takes memory from the machine, if need be, until so many bytes are free in one piece. False
  // when `allocate` would find none.
  bool prepare(std::size_t bytes, int device);

  // Calls `part(offset, bytes)` for the pieces of a range that a copy may take at once.
  template <class Part>
  void for_parts(const void* ptr, std::size_t bytes, const Part& part) const {
    lms::for_parts(ptr, bytes, segment_bytes_, part);
  }

  // Releases segments that are wholly free. Returns the bytes given back to the machine.
  std::size_t trim();

  // One segment comes that will soon be needed, or goes that is beyond the limit or far from
  // needed. Whether there was one.
  bool tend();

  // Bytes; 0 means no limit. Lowering it below what is in use refuses further requests only.
  void set_limit(std::size_t bytes);

  HostStats stats() const;
  void reset_peaks();

  // Checks every invariant; for tests. Throws std::logic_error.
  void check() const;

 private:
  using Address = HostSpan::Address;
  using Lock = std::unique_lock<std::mutex>;
  struct Node {
    Node(int its_number, HostMemory::Space space, std::size_t segment_bytes)
        : number(its_number), span(space, segment_bytes) {}
    const int number;
    HostSpan span;
    std::size_t reserved = 0;
    std::size_t in_use = 0;  // given out, or freed and pending
    HighWater most_in_use;
    HighWater most_held;  // by segments that something is in: more, by the holes
  };
  struct Pending {
    HostRange range;
    FencePtr fence;
  };
  using Queue = std::deque<Pending>;  // the oldest first

  Node* node_(int number);
  Node& node_with_(const void* ptr);
  HostRange take_(Node* node, std::size_t bytes);
  HostRange give_(Node* node, Address ptr, std::size_t bytes);
  void put_(const HostRange& range);
  Queue::iterator helpful_(const Node& node, std::size_t bytes);
  Queue::iterator put_pending_(Queue::iterator pending);
  void reap_();
  bool wait_for_one_(Lock* lock, const Node* node, std::size_t bytes);
  bool grow_(Lock* lock, Node* node, std::size_t bytes);
  bool commit_(Lock* lock, Node* node, Address place, std::size_t bytes, std::size_t least);
  bool make_way_(Lock* lock, const Node* node, std::size_t bytes);
  bool release_one_(Lock* lock, Node* node, const HostSpan::Window& but);
  std::size_t release_all_(Lock* lock, std::size_t down_to);
  std::size_t room_() const;
  bool over_limit_() const;
  bool wants_more_(const Node& node) const;
  bool wants_less_(const Node& node) const;
  void call_helper_();
  void help_();

  HostMemory& memory_;
  const std::size_t segment_bytes_;
  mutable std::mutex mutex_;
  std::map<int, Node> nodes_;
  Queue pending_;
  HostStats stats_;

  bool moving_ = false;   // a segment is on its way
  bool refused_ = false;  // the machine had none ahead of need: not asked again before it gets some
  std::condition_variable moved_;

  const Tended tended_;
  bool called_ = false, stop_ = false;
  std::condition_variable wanted_;
  std::thread helper_;
};

}  // namespace lms
