// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_PROMISES_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_PROMISES_H_

#include <cstdint>

#include "tensorflow/core/platform/mutex.h"

namespace tensorflow {
namespace lms {

// Lets ops begin, in the order in which they ask, that fit into a pool together: what one of them
// lacks once it has begun, the others give only when they are over.
class Promises {
 public:
  static constexpr int64_t kStuckMs = 30000;

  struct Promise {
    int64_t bytes = 0;
    bool computes = false;  // ends without another op's help
  };

  // When no op ends for `stuck_ms`, one that seemed to compute may be waiting for others after all.
  explicit Promises(int64_t stuck_ms = kStuckMs) : stuck_ms_(stuck_ms) {}

  // Waits until the promise and those given fit into `room` bytes, or it is the only one. Not
  // longer than any op runs that computes: the others may be waiting for this one.
  void Give(const Promise& promise, int64_t room) {
    mutex_lock lock(mu_);
    const int64_t ticket = tickets_++;
    while (ticket != served_ || (given_ > 0 && given_ + promise.bytes > room && computing_ > 0)) {
      const bool stuck = WaitForMilliseconds(&lock, &changed_, stuck_ms_) == kCond_Timeout;
      if (stuck && ticket == served_) break;
    }
    ++served_;
    given_ += promise.bytes;
    if (promise.computes) ++computing_;
    changed_.notify_all();
  }

  // Whether the op runs: one that still looks for room may be waiting for others.
  void SetComputes(Promise* promise, bool computes) {
    mutex_lock lock(mu_);
    computing_ += static_cast<int>(computes) - static_cast<int>(promise->computes);
    promise->computes = computes;
    changed_.notify_all();
  }

  void TakeBack(const Promise& promise) {
    mutex_lock lock(mu_);
    given_ -= promise.bytes;
    if (promise.computes) --computing_;
    changed_.notify_all();
  }

 private:
  const int64_t stuck_ms_;
  mutex mu_;
  condition_variable changed_;
  int64_t tickets_ = 0, served_ = 0;
  int64_t given_ = 0;  // bytes
  int64_t computing_ = 0;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_PROMISES_H_
