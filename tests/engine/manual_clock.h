// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "clock.h"

namespace fake {

// Time that passes when the test says so. Whoever waits looks up every millisecond of real time.
class ManualClock final : public lms::Clock {
 public:
  Time now() override { return Time(now_.load()); }
  void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                  Time) override {
    if (looks_ != nullptr) ++*looks_;
    changed.wait_for(lock, std::chrono::milliseconds(1));
    if (sleep_ == nullptr || !sleep_->longer) return;
    lock.unlock();
    for (sleep_->begun = true; sleep_->longer;) std::this_thread::yield();
    lock.lock();
  }
  void advance(Duration by) { now_ += by.count(); }

  // Counts how often this thread began to wait.
  static void count_looks(std::atomic<int>* looks) { looks_ = looks; }

  // A thread that is not woken, without the lock, while it is to sleep longer.
  struct Sleep {
    std::atomic<bool> longer{false}, begun{false};
  };
  static void sleep_on(Sleep* sleep) { sleep_ = sleep; }

 private:
  static thread_local std::atomic<int>* looks_;
  static thread_local Sleep* sleep_;
  std::atomic<Duration::rep> now_{0};
};

}  // namespace fake
