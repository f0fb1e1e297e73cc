// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "clock.h"
#include "crowd.h"
#include "types.h"

namespace lms {

// How particular an op is about where its operands lie.
enum class Patience : std::uint8_t {
  kPatient,    // a place that halves the room of its kernel is no place, while others will end
  kImpatient,  // any place will do
};

// What becomes of the op of a kernel that gets no memory. When all that run lack some, one of those
// gives up for which the last of these holds that holds for any.
enum class Lack : std::uint8_t {
  kOutsideOps,   // it is no op's thread: nothing comes free when it gives up
  kFails,        // an error
  kBeginsAgain,  // it lets go of all and begins anew, not for the first time
  kBeginsAnew,   // the same, for the first time
};

// The ops of the process that have begun, among them those whose kernels lack memory; and those
// that found no room, which try again one at a time: each whenever another op has ended. An op
// begins by tries, which may be all of it; or is started, and is tried again only when it lacked
// room. Thread-safe.
class Turns {
 public:
  // How long an op tries while those that run may never end. Trades time until the error of a
  // program that is out of memory for one that would have got on: as long as BFCAllocator itself
  // waits for memory that another thread may free. While one runs that ends without the help of
  // others, it tries as long as a reservation waits.
  static constexpr Clock::Duration kLongest{10000};

  // How long one tries that fits alone when no end of an op can help it any more, but a reference
  // that is dropped outside of ops: the executor's to the operands of one that has ended, or
  // Python's. From the last end on, however long it waited for that. And how often it looks. Longer
  // makes the error come later where none is dropped, shorter fails more of those for which one is.
  static constexpr Clock::Duration kDropTime{2000};
  static constexpr Clock::Duration kLook{20};

  // Trades running beside other ops for a better place: how often an op rather waits for another
  // one's end than begins where its kernel may lack room.
  static constexpr int kPatientTries = 4;

  // `let_go`, if any, is called when an op is over, and when one gave up its pins: somebody may
  // find room.
  explicit Turns(std::function<void()> let_go, Clock& clock = Clock::steady())
      : let_go_(std::move(let_go)), clock_(clock) {}
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Tries to begin an op until that returns true. A try that fails has let go of everything. False
  // when no other op runs, or none ends any more, and the last try found no room either.
  // `others_end` tells whether an op runs that ends without the help of others, `fits_alone`
  // whether the pool has room for this one.
  bool begin(const std::function<bool(Patience)>& try_to, const std::function<bool()>& others_end,
             bool fits_alone);
  // The same for one whose first try found no room. `holds` is how many are this thread's.
  bool try_again(const std::function<bool(Patience)>& try_to,
                 const std::function<bool()>& others_end, bool fits_alone, int holds = 0);
  // An op that began is over.
  void end();

  // A thread holds memory past an op, for as long as it likes: those that lack room wait for the
  // end, as for that of an op that may wait for them, unless all who hold some lack room
  // themselves.
  void hold() { ++holds_; }
  void release();
  // The same within a try that has failed, whose end tells: to itself it would look like another's.
  void withdraw() { --holds_; }

  // What a thread has of its own to count its ops in: others read it, and none writes it.
  class Tally {
    friend class Turns;
    std::atomic<std::uint64_t> begun_{0}, ended_{0};
    std::atomic<bool> taken_{true};
    Tally* next_ = nullptr;
    char apart_[64];  // no other thread writes this line of the cache
  };
  // For a thread, until it gives it back. Without a lock, which may be held by another when the
  // process forks.
  Tally& open_tally();
  void close_tally(Tally& tally) { tally.taken_.store(false, std::memory_order_release); }

  // An op begins, without a try. While one that lacked room tries for the last times it waits, if
  // it `may_wait`, so that those that run come to an end; but not while one runs that is not
  // `independent`, as in Reservation: that may wait for this one.
  void start(Tally& mine, bool independent, bool may_wait) {
    if (LMS_UNLIKELY(may_wait && barred_.load())) wait_at_bar_();
    mine.begun_.store(mine.begun_.load(std::memory_order_relaxed) + op_(!independent),
                      std::memory_order_relaxed);
    light_barrier();
    has_begun_(!independent);
  }
  // The same of one whose end another thread may tell.
  void start(bool independent, bool may_wait) {
    if (LMS_UNLIKELY(may_wait && barred_.load())) wait_at_bar_();
    begun_ += op_(!independent);
    has_begun_(!independent);
  }
  // One that was started is over.
  void end_started(Tally& mine, bool independent) {
    mine.ended_.store(mine.ended_.load(std::memory_order_relaxed) + op_(!independent),
                      std::memory_order_release);
    light_barrier();
    has_ended_();
  }
  void end_started(bool independent) {
    ended_ += op_(!independent);
    has_ended_();
  }
  bool barred() const { return barred_.load(); }
  // Whether one runs that is independent. Not for a pool in which any was not started.
  bool independent_run() const {
    const Count now = count_();
    return now.running() > now.dependent();
  }

  // For the op whose turn it is, within its try: does `act` while no other op runs and those that
  // would begin wait, and says whether it did. `act` waits for nothing that they may hold.
  bool between_ops(const std::function<void()>& act);

  // A kernel lacks memory: tries to `take` it until that returns true, again whenever another op
  // has ended. False after kLongest; and, for one of them, once all that run lack memory, so that
  // the others find what its op leaves. `own` is how many of those that began are this thread's,
  // one within the other.
  bool wait(const std::function<bool()>& take, Lack lack, int own, bool fits_alone, int holds = 0);
  // Whether none has begun but these.
  bool alone(int own) const { return count_().running() <= static_cast<Ops>(own); }
  // Whether a thread holds memory that is not waiting for some. Of this one's there are so many.
  bool others_hold(int holds) const { return holds_.load() > waiting_holds_.load() + holds; }
  // How many have ended. One that is alone, and finds as many as before, was alone meanwhile.
  std::uint64_t ended() const { return count_().ended; }

 private:
  struct Lacking;
  class Waits;

  // How many ops there ever were, in the lower half, and of those that were started the ones that
  // are not independent, in the upper one. Of what has begun less what has ended both are right,
  // whatever has overflown by then.
  using Ops = std::uint64_t;
  static constexpr Ops kDependent = Ops{1} << 32;
  static Ops op_(bool dependent) { return dependent ? 1 + kDependent : 1; }

  struct Count {
    Ops begun, ended;
    // That have begun, or are trying to, and not ended.
    Ops running() const { return (begun - ended) % kDependent; }
    Ops dependent() const { return (begun - ended) / kDependent; }
  };
  // Each that runs meanwhile is among those that run. For who has told before that he will look:
  // what begins or ends later sees that.
  Count count_() const;
  Ops total_(const std::atomic<Ops>& others, std::atomic<Ops> Tally::* of_tally) const;

  // It has been counted: it waits, or whoever acts between ops has seen it.
  void has_begun_(bool dependent) {
    if (LMS_UNLIKELY(between_ops_.load())) std::lock_guard<std::mutex> over(between_);
    if (LMS_UNLIKELY(dependent && barred_.load())) tell_bar_();
  }
  void has_ended_() {
    if (LMS_UNLIKELY(waiting_.load() > 0)) tell_waiting_();
    if (let_go_) let_go_();
  }
  void wait_at_bar_();
  void tell_bar_();
  void tell_end_();
  void tell_waiting_();
  bool try_once_(const std::function<bool(Patience)>& try_to, Patience patience);
  bool wait_for_end_(Ops seen, Clock::Time deadline);
  bool wait_to_look_(Lacking* me, Clock::Time start, bool fits_alone,
                     std::unique_lock<std::mutex>* lock);
  void choose_who_gives_up_();
  void bar_();
  void unbar_();

  const std::function<void()> let_go_;
  Clock& clock_;
  std::mutex turn_;                       // held by the op that tries again
  Clock::Time last_got_on_{};             // when one did that had its turn; under `turn_`
  std::atomic<Ops> begun_{0}, ended_{0};  // but for those in tallies
  std::atomic<Tally*> tallies_{nullptr};  // the last one made, and so on; none is ever removed
  std::atomic<int> waiting_{0};
  std::atomic<int> holds_{0};
  std::atomic<int> waiting_holds_{0};     // of them, those of threads that lack room
  std::atomic<bool> barred_{false};       // one tries for the last times
  std::atomic<bool> between_ops_{false};  // what begins waits for the next one
  std::mutex between_;                    // held while something is done between ops
  std::vector<Lacking*> lacking_;         // in the order in which they came to lack memory
  std::mutex mutex_;                      // of the line before it, and for the one after it
  std::condition_variable changed_;
};

}  // namespace lms
