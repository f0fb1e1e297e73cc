// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace lms {

// What waiting is measured by. Tests put a clock of their own in its place.
class Clock {
 public:
  using Time = std::chrono::milliseconds;  // since some moment that does not change
  using Duration = std::chrono::milliseconds;

  virtual ~Clock() = default;
  virtual Time now() = 0;
  // Waits until `changed` is notified or it is `deadline`. May return earlier than either.
  virtual void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                          Time deadline) = 0;

  // The machine's monotonic one.
  static Clock& steady();
};

}  // namespace lms
