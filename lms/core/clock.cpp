// SPDX-License-Identifier: Apache-2.0
#include "clock.h"

namespace lms {
namespace {

class SteadyClock final : public Clock {
 public:
  Time now() override {
    return std::chrono::duration_cast<Duration>(Source::now().time_since_epoch());
  }
  void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                  Time deadline) override {
    changed.wait_until(lock, Source::time_point(deadline));
  }

 private:
  using Source = std::chrono::steady_clock;
};

}  // namespace

Clock& Clock::steady() {
  static SteadyClock clock;
  return clock;
}

}  // namespace lms
