// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/lms/core/ready.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace c10::cuda::lms {

// What memory owes that is free in the allocator's segments, by address: the blocks themselves are
// the allocator's. Of what was never told it is not known. Of expandable segments nothing is kept,
// because memory is unmapped there without a word. Thread-safe; under its lock those of marks are
// taken.
class FreeMemory {
 public:
  using Ready = ::lms::Ready;

  struct Range {
    char* begin;
    char* end;
    bool operator<(const Range& other) const { return begin < other.begin; }
  };
  static Range range(void* ptr, std::size_t bytes) {
    auto* begin = static_cast<char*>(ptr);
    return {begin, begin + bytes};
  }

  // All segments that there are, by a list that is made meanwhile. What lies elsewhere is
  // forgotten: one list at a time, because an older one does not have the newest segments.
  void set_segments(const std::function<std::vector<Range>()>& list) {
    const std::lock_guard<std::mutex> turn(listing_);
    std::vector<Range> segments = list();
    std::sort(segments.begin(), segments.end());
    const std::lock_guard<std::mutex> lock(mutex_);
    segments_ = std::move(segments);
    for (auto piece = pieces_.begin(); piece != pieces_.end();) {
      piece = covered_({piece->first, piece->second.end}) ? std::next(piece) : pieces_.erase(piece);
    }
    note_size_();
  }

  // The range is free from now on. False where what it owes is not kept, because not all of that is
  // known, or no segment that it is in. What a list from before it was in use has said is no longer
  // so, in any case.
  bool put(Range range, Ready ready) {
    const std::lock_guard<std::mutex> lock(mutex_);
    cut_(range);
    const bool kept = !ready.all && covered_(range);
    if (kept) {
      pieces_[range.begin] = {range.end, std::move(ready)};
    }
    note_size_();
    return kept;
  }

  // What it owes is not known from now on: whoever takes it waits for all that is queued by then.
  void forget(Range range) {
    const std::lock_guard<std::mutex> lock(mutex_);
    cut_(range);
    note_size_();
  }

  // What is free of the ranges, and not known, owes no more than this, which is asked for under the
  // lock: the ranges are of a list, and what was put since may have been in use until then.
  void fill(const std::vector<Range>& ranges, const std::function<Ready()>& owes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Ready ready = owes();
    for (const Range& range : ranges) {
      fill_(range, ready);
    }
    note_size_();
  }

  // What is known to be free from there on, in one segment.
  struct Hole {
    std::size_t bytes = 0;
    ::lms::Owed owed;
  };
  Hole hole(void* ptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    char* const begin = static_cast<char*>(ptr);
    char* const last = end_of_segment_(begin);
    char* end = begin;
    Hole hole;
    for (auto piece = first_({begin, begin + 1});
         end < last && piece != pieces_.end() && piece->first <= end; ++piece) {
      if (hole.bytes == 0) {
        hole.owed = ::lms::Owed(piece->second.ready);
      } else {
        hole.owed.append(piece->second.ready, hole.bytes);
      }
      end = std::min(piece->second.end, last);
      hole.bytes = static_cast<std::size_t>(end - begin);
    }
    return hole;
  }

  // What the range owes; all, where that is not known of every byte.
  Ready look(Range range) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return owed_(range);
  }

  // The same, of who takes it.
  Ready take(Range range) {
    if (size_.load(std::memory_order_relaxed) == 0) {
      Ready ready;
      ready.all = true;
      return ready;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Ready owed = owed_(range);
    cut_(range);
    note_size_();
    return owed;
  }

 private:
  struct Piece {
    char* end;
    Ready ready;
  };
  using Pieces = std::map<char*, Piece>;  // by their beginnings; no two overlap

  // The first that ends after the range begins.
  Pieces::iterator first_(Range range) {
    auto piece = pieces_.upper_bound(range.begin);
    if (piece != pieces_.begin() && std::prev(piece)->second.end > range.begin) {
      --piece;
    }
    return piece;
  }

  Ready owed_(Range range) {
    Ready owed;
    char* at = range.begin;
    for (auto piece = first_(range); piece != pieces_.end() && piece->first < range.end; ++piece) {
      owed.all = owed.all || piece->first > at;
      owed.merge(piece->second.ready);
      at = piece->second.end;
    }
    owed.all = owed.all || at < range.end;
    if (owed.all) {
      owed.idle_since = UINT64_MAX;
    }
    return owed;
  }

  void fill_(Range range, const Ready& ready) {
    if (!covered_(range)) {
      return;
    }
    char* at = range.begin;
    for (auto piece = first_(range); at < range.end; ++piece) {
      const bool more = piece != pieces_.end() && piece->first < range.end;
      char* const next = more ? piece->first : range.end;
      if (at < next) {
        pieces_[at] = {next, ready};
      }
      if (!more) {
        break;
      }
      at = piece->second.end;
    }
  }

  // Forgets the range. What is left of pieces on either side owes what it owed.
  void cut_(Range range) {
    for (auto piece = first_(range); piece != pieces_.end() && piece->first < range.end;) {
      char* const end = piece->second.end;
      if (end > range.end) {
        pieces_[range.end] = {end, piece->second.ready};
      }
      if (piece->first < range.begin) {
        piece->second.end = range.begin;
        ++piece;
      } else {
        piece = pieces_.erase(piece);
      }
    }
  }

  bool covered_(Range range) const { return range.end <= end_of_segment_(range.begin); }

  // Null outside of all.
  char* end_of_segment_(char* at) const {
    const auto after = std::upper_bound(segments_.begin(), segments_.end(), Range{at, at});
    return after == segments_.begin() || std::prev(after)->end <= at ? nullptr
                                                                     : std::prev(after)->end;
  }

  void note_size_() { size_.store(pieces_.size(), std::memory_order_relaxed); }

  std::mutex listing_;
  std::mutex mutex_;
  std::vector<Range> segments_;
  Pieces pieces_;
  std::atomic<std::size_t> size_{0};
};

}  // namespace c10::cuda::lms
