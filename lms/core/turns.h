// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "clock.h"

namespace lms {

// How particular an op is about where its operands lie.
enum class Patience : std::uint8_t {
  kPatient,    // a place that halves the room of its kernel is no place, while others will end
  kImpatient,  // any place will do
};

// The ops of the process that have begun, among them those whose kernels lack memory; and those
// that found no room for their operands, which try again one at a time: each whenever another op
// has ended. Thread-safe.
class Turns {
 public:
  // How long an op tries while those that run may never end. Trades time until the error of a
  // program that is out of memory for one that would have got on: as long as BFCAllocator itself
  // waits for memory that another thread may free. While one runs that ends without the help of
  // others, it tries as long as a reservation waits.
  static constexpr Clock::Duration kLongest{10000};

  // Trades running beside other ops for a better place: how often an op rather waits for another
  // one's end than begins where its kernel may lack room.
  static constexpr int kPatientTries = 4;

  // `let_go` is called when an op is over, and when one gave up its pins: somebody may find room.
  explicit Turns(std::function<void()> let_go, Clock& clock = Clock::steady())
      : let_go_(std::move(let_go)), clock_(clock) {}

  // Tries to begin an op until that returns true. A try that fails has let go of everything. False
  // when no other op runs, or none ends any more, and the last try found no room either.
  // `others_end` tells whether an op runs that ends without the help of others.
  bool begin(const std::function<bool(Patience)>& try_to, const std::function<bool()>& others_end);
  // An op that began is over.
  void end();

  // The kernel of an op that runs lacks memory: tries to `take` it until that returns true, again
  // whenever another op has ended. False after kLongest, and at once when all that run lack memory
  // themselves: the last of them gives up, so that the others find what it leaves. `own` is how
  // many of those that began are this thread's, one within the other.
  bool wait(const std::function<bool()>& take, int own);

 private:
  bool try_once_(const std::function<bool(Patience)>& try_to, Patience patience);
  bool wait_for_end_(std::int64_t seen, Clock::Time deadline);
  bool gives_up_(std::int64_t seen, int own);

  const std::function<void()> let_go_;
  Clock& clock_;
  std::mutex turn_;                     // held by the op that tries again
  std::atomic<std::int64_t> begun_{0};  // that have begun, or are trying to, and not ended
  std::atomic<std::int64_t> ended_{0};
  std::atomic<int> waiting_{0};
  std::int64_t lacking_ = 0;  // of those that have begun: their kernels lack memory
  std::mutex mutex_;          // of the line before it, and for the one after it
  std::condition_variable changed_;
};

}  // namespace lms
