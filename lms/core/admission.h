// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "clock.h"
#include "demand.h"

namespace lms {

// What admission and placement ask of one pool. Byte counts are of memory in one piece.
class Space {
 public:
  virtual ~Space() = default;
  virtual std::int64_t bytes() const = 0;  // of all of the pool
  virtual std::int64_t limit() const = 0;  // what of it may be in use
  // Whether so much can be had without an eviction.
  virtual bool has(std::int64_t bytes) const = 0;
  // Evicts until it `has` them. False when idle storages are not all that is in the way.
  virtual bool make(std::int64_t bytes) = 0;
  // Evicts everything idle, for as long as the host has room.
  virtual void evict_idle() = 0;
  // Takes a hole out of use until it is given back; null when there is none of the size.
  virtual void* set_aside(std::int64_t bytes) = 0;
  virtual void give_back(void* hole) = 0;
};

// Of an op that has a reservation.
struct Reservation {
  std::int64_t bytes = 0;
  // Ends without the help of another op. Others are not: asynchronous kernels, queues, calls of
  // Python. Whoever waits for such a one may be what it waits for.
  bool independent = false;
};

// The bytes of one pool that ops have reserved. Thread-safe; its lock is a leaf.
class Reservations {
 public:
  // How long a reservation waits while no other begins, ends or changes. Then one that seemed to be
  // independent is taken to wait for this op after all. Longer costs such a program that much time
  // whenever it happens; shorter lets ops that do not fit together begin beside a kernel that runs
  // longer than this.
  static constexpr Clock::Duration kStuck{30000};

  explicit Reservations(Clock& clock = Clock::steady()) : clock_(clock) {}

  // Waits until those before it have got theirs, and until all fit into `room` bytes, or this is
  // the only one. Never while no other that was given is independent, nor longer than kStuck
  // without a change.
  void acquire(const Reservation& wanted, std::int64_t room);
  void release(const Reservation& given);
  // Its op could not begin, and may be waiting for others until it does.
  void suspend(Reservation* given) { set_independent_(given, /*independent=*/false); }
  void resume(Reservation* given) { set_independent_(given, /*independent=*/true); }

 private:
  void set_independent_(Reservation* given, bool independent);
  void change_();

  Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t changes_ = 0;
  std::int64_t asked_ = 0, served_ = 0;  // tickets
  std::int64_t given_ = 0;               // bytes
  std::int64_t independent_ = 0;         // of those that were given
};

// Which ops may begin in one pool, and when. What one of them lacks once it runs, the others give
// back only when they are over, so two that do not fit together must not both begin.
//
// While most of the pool is free, ops begin unseen. Later each is looked at: its working set is its
// operands, and its demand. From the first shortage on it gets a reservation before it begins.
class Admission {
 public:
  struct Op {
    OpId id = 0;
    std::int64_t operand_bytes = 0;
    bool gathers = false;      // its result is as large as all of its operands
    bool independent = false;  // as in Reservation
    bool alone = false;        // may take all there is: it found no room beside others
    // From here on `ask` fills it in.
    std::int64_t demand = 0;  // what room is made for, in bytes; Demand::kUnknown: all there is
    bool reserved = false;
    Reservation reservation;
    bool running = false;
  };

  explicit Admission(Space& space, Clock& clock = Clock::steady())
      : space_(space), reservations_(clock) {}

  // Whether something has had to make way, or an op would not have fitted.
  bool under_pressure() const { return under_pressure_.load(std::memory_order_relaxed); }
  void set_under_pressure() { under_pressure_ = true; }

  // Whether any op may begin without a look at it.
  bool begins_unseen() const { return !under_pressure() && is_roomy_(); }
  // Whether a request is to be given no more than it asks for. BFC gives a free block away whole
  // that is less than twice the request; the rest of it is what the next request lacks.
  bool cuts_blocks() const { return !begins_unseen(); }

  // Gives the op a reservation if it needs one, and waits until it can be given.
  void ask(Op* op);
  // The op found no room, and tries again when others have ended.
  void suspend(Op* op);
  // The op has its operands, and runs.
  void run(Op* op);
  // The op is over: it took so many bytes, or Demand::kUnknown if it failed. Also of one that never
  // ran. Of one that does not need it, does nothing.
  void end(Op* op, std::int64_t taken);

  // Whether an op runs that ends without the help of others.
  bool others_end() const { return running_ > 0; }

  // Operands are small below a 64th of the pool. Of an op with small ones that has not run before
  // it is assumed that it takes as much again, and then it is not remembered; one with large ones,
  // which may take many times as much, begins alone in a pool that holds nothing else. A smaller
  // part makes the first step slow, because more ops begin so; a larger one lets more ops run out
  // of memory when they run for the first time.
  bool is_small(std::int64_t operand_bytes) const { return operand_bytes < space_.bytes() / 64; }

 private:
  // Why an op may not begin unseen.
  enum class Need : std::uint8_t {
    kNothing,
    kToBeLearnt,  // its demand, with large operands
    kRoom,        // it will lack some, or something has lacked some
  };
  bool is_roomy_() const;
  Need need_of_(const Op& op) const;
  std::int64_t reservable_() const;

  Space& space_;
  Demand demand_;
  Reservations reservations_;
  std::atomic<bool> under_pressure_{false};
  std::atomic<std::int64_t> running_{0};
};

}  // namespace lms
