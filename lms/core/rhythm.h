// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "types.h"

namespace lms {

// When a storage is used next, by when it was used before. What a loop keeps for long, as
// parameters and the optimiser's state, each iteration uses in the same places: the gaps between
// the uses repeat. Of what lives for one iteration nothing repeats, and nothing is said.
//
// Time is in ops. Says what is likely, and stops as soon as a use does not come when it should.
class Rhythm {
 public:
  static constexpr std::uint64_t kUnknown = UINT64_MAX;

  // Gaps after which they repeat. Trades memory, and time when they do not, for storages that are
  // used more often in each iteration.
  static constexpr std::size_t kLongestPeriod = 16;

  // What a use was beside what was said of it.
  enum class Said : std::uint8_t { kNothing, kRight, kWrong };

  // It is used. Several uses in one op are one.
  LMS_ALWAYS_INLINE Said use(std::uint64_t now) {
    Said said = Said::kNothing;
    if (last_ != kUnknown && now > last_) said = add_(now - last_);
    last_ = now;
    return said;
  }

  // In how many ops it is used; kUnknown when its gaps do not repeat, or it should have been.
  std::uint64_t until_next(std::uint64_t now) const {
    if (period_ == 0) return kUnknown;
    const std::uint64_t gap = ago_(period_ - 1U);
    const std::uint64_t since = now - last_;
    if (since <= gap) return gap - since;
    return alike_(since, gap) ? 0 : kUnknown;
  }

 private:
  // Gaps that are kept, and half of them at least: a period has to be seen twice. More would be
  // memory, and time to look through, for nothing.
  static constexpr std::size_t kKept = 4 * kLongestPeriod;

  // An iteration may have a few ops more than the one before: one that lacked room begins anew.
  static bool alike_(std::uint64_t a, std::uint64_t b) {
    if (LMS_LIKELY(a == b)) return true;
    const std::uint64_t more = std::max(a, b), less = std::min(a, b);
    return more - less <= 1 + more / 8;
  }

  LMS_ALWAYS_INLINE Said add_(std::uint64_t gap) {
    const auto last = static_cast<std::uint32_t>(std::min<std::uint64_t>(gap, UINT32_MAX));
    const bool said = period_ != 0;
    const bool right = said && alike_(last, ago_(period_ - 1U));
    if (LMS_UNLIKELY(gaps_.size() < kKept)) {
      gaps_.push_back(last);
    } else {
      gaps_[next_] = last;
    }
    next_ = static_cast<std::uint8_t>((next_ + 1U) % kKept);
    kept_ = static_cast<std::uint8_t>(kept_ == kKept ? kKept / 2 + 1 : kept_ + 1U);
    if (LMS_LIKELY(right)) return Said::kRight;
    look_for_period_();
    return said ? Said::kWrong : Said::kNothing;
  }

  // The last gap, or the one so many before it.
  std::uint32_t ago_(std::size_t gaps) const { return gaps_[(next_ - 1 - gaps) % kKept]; }

  // How many of the last gaps, one after the other, are as they were a period before.
  std::size_t repeats_(std::size_t period) const {
    std::size_t count = 0;
    while (count + period < kept_ && alike_(ago_(count), ago_(count + period))) ++count;
    return count;
  }

  // The one that repeats for longest, and of all its gaps at least; else 0. Of several the
  // shortest.
  __attribute__((noinline)) void look_for_period_() {
    std::size_t best = 0, most = 0;
    for (std::size_t period = 1; period <= kLongestPeriod; ++period) {
      const std::size_t repeats = repeats_(period);
      if (repeats >= period && repeats > most) {
        best = period;
        most = repeats;
      }
    }
    period_ = static_cast<std::uint8_t>(best);
  }

  std::vector<std::uint32_t> gaps_;  // the last of them, in a ring once it has kKept
  std::uint64_t last_ = kUnknown;
  std::uint8_t period_ = 0;  // 0: none is known
  std::uint8_t next_ = 0;    // where the next gap comes to be
  std::uint8_t kept_ = 0;    // of the last gaps; none before them is looked at
};

}  // namespace lms
