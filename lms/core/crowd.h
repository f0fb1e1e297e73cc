// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace lms {

// Those that may run at the same time.
class Crowd {
 public:
  // One of them, or with no crowd none, while it lives. Knows whether another has run meanwhile.
  class Member {
   public:
    explicit Member(Crowd* crowd)
        : crowd_(crowd), before_(crowd == nullptr ? 0 : crowd->counts_.fetch_add(kBegun + 1)) {}
    ~Member() {
      if (crowd_ != nullptr) crowd_->counts_.fetch_sub(1);
    }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // Does `act` if no other has run, and says whether it did: it looks once, because another may
    // begin at any time. For one of a crowd.
    template <class Act>
    bool if_alone(const Act& act) const {
      const bool first = before_ % kBegun == 0;
      const bool last = crowd_->counts_.load() / kBegun == before_ / kBegun + 1;
      const bool alone = first && last;
      if (alone) {
        act();
      }
      return alone;
    }

   private:
    Crowd* const crowd_;
    const std::uint64_t before_;
  };

 private:
  // More than can run at once.
  static constexpr std::uint64_t kBegun = 1 << 16;

  // How many run and, in units of kBegun, how many have begun: one number, so that of two that
  // begin at once each sees the other, or is seen.
  std::atomic<std::uint64_t> counts_{0};
};

}  // namespace lms
