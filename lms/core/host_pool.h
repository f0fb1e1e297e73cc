// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "types.h"

namespace lms {

// Where segments come from: pinned memory of the device in production, plain memory in tests.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // Returns nullptr when `bytes` cannot be had.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* ptr) = 0;
  // The NUMA node that memory from here is on.
  virtual int node(const void*) { return 0; }
};

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

// Pinned host memory in segments. Pinning is slow and never given back for a single range, so
// ranges are cut from large segments by best fit and merged again when freed. What is reserved
// never exceeds the limit. Thread-safe; its lock is a leaf.
class HostPool {
 public:
  static constexpr std::size_t kAlignment = 512;
  static constexpr std::size_t kSegmentBytes = std::size_t{64} << 20;

  explicit HostPool(HostMemory& memory, std::size_t segment_bytes = kSegmentBytes);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Empty range when neither the limit nor the machine leaves room. Waits for pending frees before
  // it gives up; with Growth::kNone it does neither, and the range is of what is free now.
  HostRange allocate(std::size_t bytes, Growth growth = Growth::kAllowed);

  // The range may be allocated again once `fence` (may be null) is done.
  void free(HostRange range, FencePtr fence);

  // Releases segments that are wholly free. Returns the bytes given back to the machine.
  std::size_t trim();

  // Bytes; 0 means no limit. Lowering it below what is in use refuses further requests only.
  void set_limit(std::size_t bytes);

  HostStats stats() const;
  void reset_peaks();

  // Checks every invariant; for tests. Throws std::logic_error.
  void check() const;

 private:
  using Address = char*;

  struct Segment {
    std::size_t bytes;
    int node;
  };
  using Segments = std::map<Address, Segment>;

  HostRange find_(std::size_t bytes, Growth growth);
  HostRange take_(std::size_t bytes);
  bool grow_(std::size_t bytes);
  void put_(HostRange range);
  void reap_(bool wait);
  std::size_t trim_();
  Segments::const_iterator segment_of_(Address ptr) const;
  void insert_free_(Address ptr, std::size_t bytes);
  void erase_free_(std::map<Address, std::size_t>::iterator it);

  HostMemory& memory_;
  const std::size_t segment_bytes_;
  mutable std::mutex mutex_;
  Segments segments_;
  std::map<Address, std::size_t> free_;                  // by address, to merge neighbours
  std::set<std::pair<std::size_t, Address>> free_size_;  // the same ranges by size, for best fit
  std::deque<std::pair<HostRange, FencePtr>> pending_;
  HostStats stats_;
};

}  // namespace lms
