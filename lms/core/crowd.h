// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include "types.h"

// For what threads do at the same time.
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

namespace detail {

// A barrier that every thread of the process passes, as Linux has it since 4.14. Whether it can be
// had is found out once, by the first who may need it: a process that never does asks for nothing.
bool allow_process_barriers();
extern std::atomic<bool> process_barriers;  // it was, and it can
// What threads then do is not to be trusted without it: ends the process where it is refused.
void pass_process_barrier();

}  // namespace detail

// Two barriers for a pair of threads that each store something and then look for what the other has
// stored: at least one sees it where one of them passes the light barrier in between, and the other
// the heavy one. The light one is for who comes by at each op: where the system can do without it,
// only the compiler sees it. A heavy one takes microseconds.
inline void light_barrier() {
  if (LMS_LIKELY(detail::process_barriers.load(std::memory_order_relaxed))) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    __sync_synchronize();  // as atomic_thread_fence, which ThreadSanitizer does not accept
  }
}

inline void heavy_barrier() {
  if (detail::process_barriers.load(std::memory_order_relaxed)) {
    detail::pass_process_barrier();
  } else {
    __sync_synchronize();
  }
}

// A mutex for what mostly one thread locks, again and again. It comes to be that thread's own,
// which then locks it without an instruction that waits for other processors, and stays so until
// another thread locks it. Not recursive.
class BiasedMutex {
 public:
  // Of a thread, by which it comes to own such mutexes. It has one of them locked at a time, and
  // owns none any more (see `disown`) when it is gone.
  class Hand {
   public:
    Hand() = default;
    Hand(const Hand&) = delete;
    Hand& operator=(const Hand&) = delete;

   private:
    friend class BiasedMutex;
    const std::thread::id thread_ = std::this_thread::get_id();
    std::atomic<bool> locked_{false};  // or it is about to find out that it is not its own
  };

  // Of this thread; null: it cannot own the mutex. Returns what `unlock` is to be given.
  Hand* lock(Hand* hand) {
    if (LMS_UNLIKELY(hand == nullptr || owner_.load(std::memory_order_relaxed) != hand)) {
      return lock_(hand);
    }
    hand->locked_.store(true, std::memory_order_relaxed);
    light_barrier();  // who takes it from this thread sees that it is locked, or is seen
    if (LMS_LIKELY(owner_.load(std::memory_order_relaxed) == hand)) return hand;
    hand->locked_.store(false, std::memory_order_relaxed);
    return lock_(hand);
  }
  void unlock(Hand* locked_by) {
    if (locked_by != nullptr) {
      locked_by->locked_.store(false, std::memory_order_release);
    } else {
      mutex_.unlock();
    }
  }

  void lock() { lock_(nullptr); }
  void unlock() { mutex_.unlock(); }

  // With it locked by `lock()`: it is nobody's own.
  void disown() { owner_.store(nullptr, std::memory_order_relaxed); }

 private:
  // So often in a row a thread locks it before it owns it. With fewer, threads take it from each
  // other more often, which costs microseconds each time; with more, one that runs few ops in a row
  // never owns it.
  static constexpr int kRow = 128;
  // So often who takes it yields to the owner before it sleeps: an owner that is not running must
  // come to run. With more, a waiting thread of higher priority keeps it from that for longer.
  static constexpr int kYields = 64;

  Hand* lock_(Hand* hand) {
    mutex_.lock();
    Hand* const owner = owner_.load(std::memory_order_relaxed);
    if (owner != nullptr && owner->thread_ != std::this_thread::get_id()) take_from_(owner);
    in_row_ = hand != nullptr && hand == last_ ? in_row_ + 1 : 0;
    last_ = hand;
    if (in_row_ >= kRow && detail::allow_process_barriers()) {
      owner_.store(hand, std::memory_order_relaxed);
    }
    return nullptr;
  }

  // Which lives as long as this thread has the mutex: until then it cannot disown it.
  void take_from_(Hand* owner) {
    owner_.store(nullptr, std::memory_order_relaxed);
    heavy_barrier();
    for (int i = 0; owner->locked_.load(std::memory_order_acquire); ++i) {
      if (i < kYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  std::atomic<Hand*> owner_{nullptr};  // set with the mutex
  std::mutex mutex_;
  Hand* last_ = nullptr;  // that locked it, which may be gone
  int in_row_ = 0;        // so often before
};

class BiasedLock {
 public:
  BiasedLock(BiasedMutex& mutex, BiasedMutex::Hand* hand)
      : mutex_(mutex), locked_by_(mutex.lock(hand)) {}
  ~BiasedLock() { mutex_.unlock(locked_by_); }
  BiasedLock(const BiasedLock&) = delete;
  BiasedLock& operator=(const BiasedLock&) = delete;

 private:
  BiasedMutex& mutex_;
  BiasedMutex::Hand* const locked_by_;
};

}  // namespace lms
