// SPDX-License-Identifier: Apache-2.0
// Which ops may begin. An op that waits has looked twice, and not begun.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "admission.h"
#include "fake.h"
#include "harness.h"
#include "late_stores.h"
#include "manual_clock.h"
#include "turns.h"

thread_local std::atomic<int>* fake::ManualClock::looks_ = nullptr;
thread_local fake::ManualClock::Sleep* fake::ManualClock::sleep_ = nullptr;

namespace {

using fake::ManualClock;
using lms::Admission;
using lms::Demand;
using lms::Lack;
using lms::Patience;
using lms::Reservation;
using lms::Reservations;
using lms::Turns;
using std::chrono::milliseconds;

constexpr std::int64_t kRoom = 100;
constexpr milliseconds kMoment{1};

// Something that may wait, in a thread of its own.
class Waiter {
 public:
  Waiter(ManualClock* clock, std::function<void()> body)
      : clock_(*clock), thread_([this, body] {
          ManualClock::count_looks(&looks_);
          body();
          done_ = true;
        }) {}
  // Lets time pass if it still waits, so that a test that fails ends.
  ~Waiter() {
    for (int i = 0; !done_ && i < 1000; ++i) {
      clock_.advance(Reservations::kStuck);
      std::this_thread::sleep_for(kMoment);
    }
    if (!done_) {
      std::fprintf(stderr, "it waits for ever\n");
      std::_Exit(1);
    }
    thread_.join();
  }

  // Whether it is done, or has found twice that it must wait.
  bool done() const {
    for (const int before = looks_; !done_ && looks_ < before + 2;) std::this_thread::yield();
    return done_;
  }

 private:
  ManualClock& clock_;
  std::atomic<int> looks_{0};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

struct Ops {
  ManualClock clock;
  Reservations reservations{clock};
};

class Op {
 public:
  Op(Ops* ops, std::int64_t bytes, bool independent)
      : reservations_(ops->reservations),
        reservation_{bytes, independent},
        waiter_(&ops->clock, [this] { reservations_.acquire(reservation_, kRoom); }) {
    waiter_.done();  // so that ops ask in the order in which they are made
  }
  bool begun() const { return waiter_.done(); }
  void suspend() { reservations_.suspend(&reservation_); }
  void resume() { reservations_.resume(&reservation_); }
  void end() { reservations_.release(reservation_); }

 private:
  Reservations& reservations_;
  Reservation reservation_;
  Waiter waiter_;
};

TEST(reservations_wait_for_room) {
  Ops all;
  Op a(&all, 60, true), b(&all, 60, true);
  CHECK(a.begun() && !b.begun());
  a.end();
  CHECK(b.begun());
}

TEST(reservations_of_two_that_fit) {
  Ops all;
  Op a(&all, 60, true), b(&all, 40, true);
  CHECK(a.begun() && b.begun());
}

TEST(reservations_larger_than_the_pool_begin_alone) {
  Ops all;
  Op a(&all, 1000, true), b(&all, 1, true);
  CHECK(a.begun() && !b.begun());
  a.end();
  CHECK(b.begun());
}

// A small one does not overtake: the large one would never begin.
TEST(reservations_in_the_order_of_asking) {
  Ops all;
  Op a(&all, 60, true), b(&all, 60, true), c(&all, 10, true);
  const bool c_waits = !c.begun();
  CHECK(a.begun() && !b.begun());
  a.end();
  CHECK(b.begun() && c.begun());
  CHECK(c_waits);
}

TEST(reservations_do_not_wait_for_one_that_may_wait) {
  Ops all;
  Op a(&all, 60, false), b(&all, 60, true);
  const bool begun = a.begun() && b.begun();
  a.end();
  CHECK(begun);
}

// Until the last that is independent is over, and no longer.
TEST(reservations_wait_for_an_independent_one) {
  Ops all;
  Op a(&all, 60, false), b(&all, 30, true), c(&all, 60, true);
  CHECK(a.begun() && b.begun() && !c.begun());
  b.end();
  CHECK(c.begun());
}

// One that has not found its room may be waiting for what asks next.
TEST(reservations_do_not_wait_for_a_suspended_one) {
  Ops all;
  Op a(&all, 60, true), b(&all, 60, true);
  CHECK(a.begun() && !b.begun());
  a.suspend();
  CHECK(b.begun());
  a.resume();
  b.end();
  Op c(&all, 60, true);
  const bool waits = !c.begun();
  a.end();
  CHECK(c.begun() && waits);
}

// The first seems to be independent, and waits for the third.
TEST(reservations_begin_when_none_ends) {
  Ops all;
  Op a(&all, 60, true), b(&all, 60, true), c(&all, 60, true);
  CHECK(a.begun() && !b.begun() && !c.begun());
  all.clock.advance(Reservations::kStuck - kMoment);
  CHECK(!b.begun());
  all.clock.advance(kMoment);
  CHECK(b.begun() && !c.begun());  // half a minute each
  all.clock.advance(Reservations::kStuck);
  CHECK(c.begun());
}

// As long as others begin and end, they are not waiting for this one.
TEST(reservations_wait_longer_when_others_end) {
  Ops all;
  Op a(&all, 60, true), b(&all, 30, true), c(&all, 60, true);
  CHECK(a.begun() && b.begun() && !c.begun());
  all.clock.advance(Reservations::kStuck - kMoment);
  b.end();
  CHECK(!c.begun());
  all.clock.advance(Reservations::kStuck - kMoment);
  CHECK(!c.begun());
  all.clock.advance(kMoment);
  CHECK(c.begun());
}

// ---- what needs a reservation

// A pool of which only the free bytes are known, as if they were always in one piece.
class FakeRoom final : public lms::Space {
 public:
  explicit FakeRoom(std::int64_t bytes) : bytes_(bytes), free(bytes) {}
  std::int64_t bytes() const override { return bytes_; }
  std::int64_t limit() const override { return bytes_; }
  bool has(std::int64_t bytes) const override { return free >= bytes; }
  bool make(std::int64_t bytes) override { return free >= bytes; }
  void evict_idle() override {}
  void* set_aside(std::int64_t) override { return nullptr; }
  void give_back(void*) override {}

 private:
  const std::int64_t bytes_;

 public:
  std::atomic<std::int64_t> free;
};

Admission::Op op_of(lms::OpId id, std::int64_t operand_bytes, bool independent = true) {
  Admission::Op op;
  op.id = id;
  op.operand_bytes = operand_bytes;
  op.independent = independent;
  return op;
}

struct Scene {
  ManualClock clock;
  FakeRoom room{6400};
  Admission admission{room, clock};

  // The op runs by itself, and takes so many bytes.
  Admission::Op learn(Admission::Op op, std::int64_t taken) {
    admission.ask(&op);
    admission.run(&op);
    const Admission::Op asked = op;
    admission.end(&op, taken);
    return asked;
  }
};

TEST(admission_needs_no_look_while_half_is_free) {
  Scene s;
  s.room.free = 3200;
  CHECK(s.admission.begins_unseen());
  s.room.free = 3199;
  CHECK(!s.admission.begins_unseen());
  s.room.free = 6400;
  s.admission.set_under_pressure();
  CHECK(!s.admission.begins_unseen());
}

// The rest of a block is what the next request lacks: before the first shortage, too.
TEST(admission_cuts_blocks_once_half_is_not_free) {
  Scene s;
  CHECK(!s.admission.cuts_blocks());
  s.room.free = 3199;
  CHECK(s.admission.cuts_blocks());
  s.room.free = 6400;
  CHECK(!s.admission.cuts_blocks());
  s.admission.set_under_pressure();
  CHECK(s.admission.cuts_blocks());
}

// To look does not change what is seen.
TEST(admission_predicates_have_no_effect) {
  Scene s;
  s.room.free = 0;
  for (int i = 0; i < 3; ++i) {
    CHECK(!s.admission.begins_unseen() && s.admission.cuts_blocks() && !s.admission.others_end());
  }
  CHECK(!s.admission.under_pressure());
}

TEST(admission_finds_the_first_that_lacks_room) {
  Scene s;
  s.room.free = 3000;
  s.learn(op_of(1, 200), 2000);  // is looked at with care because it has not run before
  CHECK(!s.learn(op_of(1, 200), 2000).reserved && !s.admission.under_pressure());
  s.room.free = 1999;
  CHECK(s.learn(op_of(1, 200), 2000).reserved && s.admission.under_pressure());
}

// The result of one that gathers is known before it has run.
TEST(admission_knows_what_gathering_takes) {
  Scene s;
  s.room.free = 1500;
  Admission::Op op = op_of(1, 1501);
  op.gathers = true;
  CHECK(s.learn(op, 1501).reserved && s.admission.under_pressure());
}

// Of nothing that has large operands and has not run: of anything else, as little as it has.
TEST(admission_of_ops_that_have_not_run) {
  Scene s;
  s.room.free = 3000;
  const Admission::Op small = s.learn(op_of(1, 99), 50);
  CHECK(!small.reserved);
  const Admission::Op large = s.learn(op_of(2, 100), 50);
  CHECK(large.reserved && large.demand == Demand::kUnknown);
  CHECK_EQ(large.reservation.bytes, 100 + 5600);  // alone
  CHECK(!s.learn(op_of(3, 99), 1).reserved && !s.admission.under_pressure());
  s.admission.set_under_pressure();
  const Admission::Op assumed = s.learn(op_of(4, 99), 50);
  CHECK(assumed.reserved && assumed.demand == 99 && assumed.reservation.bytes == 198);
  // It took no more than was assumed, which therefore stands.
  CHECK_EQ(s.learn(op_of(4, 99), 500).demand, 99);
  CHECK_EQ(s.learn(op_of(4, 99), 500).demand, 500);
}

// Once for about each size: else an op whose size changes would always be the first of its size.
TEST(admission_is_careful_once_for_a_size) {
  Scene s;
  s.room.free = 3000;
  Admission::Op failed = op_of(1, 1000);
  s.admission.ask(&failed);
  CHECK(failed.reserved);
  s.admission.end(&failed, Demand::kUnknown);
  CHECK(!s.learn(op_of(1, 1001), 1).reserved);
  CHECK(s.learn(op_of(1, 1025), 1).reserved);
}

// One that may wait for others cannot be alone.
TEST(admission_of_one_that_may_wait) {
  Scene s;
  s.admission.set_under_pressure();
  const Admission::Op op = s.learn(op_of(1, 1000, /*independent=*/false), 10);
  CHECK_EQ(op.reservation.bytes, 2000);
  CHECK(op.demand == Demand::kUnknown && !op.running);
}

// Whatever it took before, and although there seems to be room.
TEST(admission_of_one_that_found_no_room) {
  Scene s;
  s.learn(op_of(1, 50), 10);
  s.admission.set_under_pressure();
  s.learn(op_of(1, 50), 70);
  Admission::Op op = op_of(1, 50);
  op.alone = true;
  const Admission::Op asked = s.learn(op, 10);
  CHECK(asked.reserved && asked.demand == Demand::kUnknown);
  CHECK_EQ(asked.reservation.bytes, 50 + 5600);
}

TEST(admission_makes_no_more_room_than_there_is) {
  Scene s;
  s.admission.set_under_pressure();
  s.learn(op_of(1, 5000), 5000);
  CHECK_EQ(s.learn(op_of(1, 5000), 5000).demand, 600);
}

// A failed op says nothing of what it would have taken.
TEST(admission_learns_from_success_only) {
  Scene s;
  s.admission.set_under_pressure();
  s.learn(op_of(1, 1000), Demand::kUnknown);
  CHECK_EQ(s.learn(op_of(1, 1000), 7).demand, +Demand::kUnknown);
  CHECK_EQ(s.learn(op_of(1, 1000), 7).demand, 7);
}

// ---- turns

// Others that run: `end` tells that one of them is over.
struct Others {
  ManualClock clock;
  std::atomic<int> let_go{0};
  Turns turns{[this] { ++let_go; }, clock};
  std::atomic<bool> they_end{false};
  std::atomic<bool> fits_alone{false};
  std::atomic<bool> room{false};
  std::atomic<int> patient{0}, impatient{0};

  void begin_another() {
    CHECK(turns.begin([](Patience) { return true; }, [] { return true; }, false));
  }
  bool begin() {
    return turns.begin([this](Patience patience) { return look(patience); },
                       [this] { return they_end.load(); }, fits_alone);
  }
  // Of a thread that holds as much already.
  bool try_again(int holds) {
    return turns.try_again([this](Patience patience) { return look(patience); },
                           [this] { return they_end.load(); }, fits_alone, holds);
  }
  bool look(Patience patience) {
    ++(patience == Patience::kPatient ? patient : impatient);
    return room.load();
  }
};

TEST(turns_begin_at_once_where_there_is_room) {
  Others s;
  s.room = true;
  CHECK(s.begin());
  CHECK(s.patient == 1 && s.impatient == 0 && s.let_go == 0);
  s.turns.end();
  CHECK_EQ(s.let_go.load(), 1);
}

// When no other op runs, nothing will change: once more, in any place, and it is out of memory.
TEST(turns_end_at_once_for_one_that_is_alone) {
  Others s;
  CHECK(!s.begin());
  CHECK(s.patient == 2 && s.impatient == 1);
  CHECK_EQ(s.let_go.load(), 3);
  CHECK(s.clock.now() == lms::Clock::Time(0));
}

TEST(turns_try_again_when_another_has_ended) {
  Others s;
  s.begin_another();
  s.begin_another();
  std::atomic<bool> begun{false};
  Waiter waiter(&s.clock, [&] { begun = s.begin(); });
  CHECK(!waiter.done());
  const int tries = s.patient;
  s.turns.end();
  while (s.patient == tries) std::this_thread::yield();
  CHECK(!waiter.done());
  s.room = true;
  s.turns.end();
  CHECK(waiter.done() && begun);
  s.turns.end();
}

// One that fails otherwise than for want of room is over, too.
TEST(turns_end_with_an_error) {
  Others s;
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS(s.turns.begin([](Patience) -> bool { throw std::runtime_error("a copy failed"); },
                               [] { return false; }, false),
                 std::runtime_error);
  }
  std::atomic<bool> begun{true};
  Waiter waiter(&s.clock, [&] { begun = s.begin(); });
  const bool at_once = waiter.done();  // no other runs
  s.clock.advance(Turns::kLongest);
  CHECK(waiter.done() && !begun);
  CHECK(at_once);
}

// A bad place is refused four times in a turn, and taken then.
TEST(turns_lose_patience) {
  Others s;
  for (int i = 0; i < 8; ++i) s.begin_another();
  std::atomic<bool> begun{true};
  Waiter waiter(&s.clock, [&] { begun = s.begin(); });
  for (int i = 2; i <= Turns::kPatientTries; ++i) {
    CHECK(!waiter.done());
    CHECK_EQ(s.patient.load(), i);
    CHECK_EQ(s.impatient.load(), 0);
    s.turns.end();
  }
  CHECK(!waiter.done());
  CHECK(s.patient == Turns::kPatientTries && s.impatient == 1);
  s.clock.advance(Turns::kLongest);
  CHECK(waiter.done() && !begun);
}

// Eight that were started run; one that lacks room has lost its patience.
struct Barred : Others {
  std::atomic<bool> begun{false};
  Waiter waiter{&clock, [this] {
                  they_end = true;  // if not soon
                  for (int i = 0; i < 8; ++i) turns.start(/*independent=*/true, /*may_wait=*/true);
                  begun = begin();
                }};

  Barred() {
    for (int tries = 2; tries <= Turns::kPatientTries; ++tries) {
      CHECK(!waiter.done());
      turns.end_started(/*independent=*/true);
    }
    CHECK(!waiter.done());
    CHECK(turns.barred());
  }
  ~Barred() {
    room = true;
    turns.end_started(/*independent=*/true);
    CHECK(waiter.done() && begun);
    CHECK(!turns.barred());
  }
};

// Those that run come to an end only when no others begin.
TEST(turns_bar_what_would_begin) {
  Barred s;
  s.turns.start(/*independent=*/true, /*may_wait=*/false);
  Waiter other(&s.clock, [&] { s.turns.start(/*independent=*/true, /*may_wait=*/true); });
  CHECK(!other.done());
  s.room = true;
  s.turns.end_started(/*independent=*/true);
  CHECK(s.waiter.done());  // before whom the other may look in vain
  CHECK(other.done());
}

TEST(turns_bar_nothing_for_longer_than_ten_seconds) {
  Barred s;
  Waiter other(&s.clock, [&] { s.turns.start(/*independent=*/true, /*may_wait=*/true); });
  CHECK(!other.done());
  s.clock.advance(Turns::kLongest - kMoment);
  CHECK(!other.done());
  s.clock.advance(kMoment);
  CHECK(other.done());
}

// One that runs may wait for one that would begin.
TEST(turns_do_not_bar_what_another_may_wait_for) {
  Barred s;
  Waiter other(&s.clock, [&] { s.turns.start(/*independent=*/true, /*may_wait=*/true); });
  CHECK(!other.done());
  s.turns.start(/*independent=*/false, /*may_wait=*/false);
  CHECK(other.done());
  s.turns.end_started(/*independent=*/false);
}

// Whoever would begin meanwhile waits until it is done.
TEST(turns_do_something_between_ops) {
  Turns turns([] {});
  std::atomic<bool> acting{false}, over{false}, began_meanwhile{false};
  const auto try_to = [&](Patience) {
    std::thread other([&] {
      while (!acting) std::this_thread::yield();
      turns.start(/*independent=*/true, /*may_wait=*/false);
      began_meanwhile = !over;
      turns.end_started(/*independent=*/true);
    });
    const bool done = turns.between_ops([&] {
      acting = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      over = true;
    });
    acting = true;
    other.join();
    return done;
  };
  CHECK(turns.try_again(try_to, [] { return false; }, /*fits_alone=*/false));
  turns.end();
  CHECK(over && !began_meanwhile);
}

TEST(turns_do_nothing_between_ops_while_one_runs) {
  Turns turns([] {});
  turns.start(/*independent=*/true, /*may_wait=*/false);
  bool acted = false;
  const auto try_to = [&](Patience) {
    turns.between_ops([&] { acted = true; });
    return true;
  };
  CHECK(turns.try_again(try_to, [] { return false; }, /*fits_alone=*/false));
  CHECK(!acted);
  turns.end();
  turns.end_started(/*independent=*/true);
}

// ---- what threads count for themselves

TEST(turns_count_what_threads_count_for_themselves) {
  Others s;
  Turns::Tally& mine = s.turns.open_tally();
  s.turns.start(mine, /*independent=*/true, /*may_wait=*/false);
  CHECK(s.turns.independent_run());
  CHECK(s.turns.alone(1) && !s.turns.alone(0));
  Turns::Tally& others = s.turns.open_tally();
  s.turns.start(others, /*independent=*/false, /*may_wait=*/false);
  CHECK(!s.turns.alone(1));
  s.turns.end_started(mine, /*independent=*/true);
  CHECK(!s.turns.independent_run());
  CHECK(!s.turns.alone(0));
  const std::uint64_t before = s.turns.ended();
  s.turns.end_started(others, /*independent=*/false);
  CHECK(s.turns.ended() != before);
  CHECK(s.turns.alone(0));
}

TEST(turns_tell_the_end_of_what_a_thread_counts) {
  Others s;
  Turns::Tally& mine = s.turns.open_tally();
  s.turns.start(mine, /*independent=*/true, /*may_wait=*/false);
  std::atomic<bool> begun{false};
  Waiter waiter(&s.clock, [&] { begun = s.begin(); });
  CHECK(!waiter.done());
  s.room = true;
  s.turns.end_started(mine, /*independent=*/true);
  CHECK(waiter.done() && begun);
}

TEST(turns_do_not_bar_what_another_that_counts_may_wait_for) {
  Barred s;
  Turns::Tally &mine = s.turns.open_tally(), &others = s.turns.open_tally();
  Waiter other(&s.clock, [&] { s.turns.start(others, /*independent=*/true, /*may_wait=*/true); });
  CHECK(!other.done());
  s.turns.start(mine, /*independent=*/false, /*may_wait=*/false);
  CHECK(other.done());
  s.turns.end_started(mine, /*independent=*/false);
}

TEST(turns_give_a_tally_to_one_thread_at_a_time) {
  Turns turns([] {});
  Turns::Tally &one = turns.open_tally(), &other = turns.open_tally();
  CHECK(&one != &other);
  turns.start(one, /*independent=*/true, /*may_wait=*/false);
  turns.end_started(one, /*independent=*/true);
  turns.close_tally(one);
  CHECK(&turns.open_tally() == &one);
  CHECK(&turns.open_tally() != &one);
  CHECK(turns.alone(0));
}

// One begins before the other ends, so that at any time one runs.
TEST(turns_never_miss_one_that_runs) {
  Turns turns([] {});
  for (int i = 0; i < 300; ++i) turns.open_tally();  // it takes longer to add them up
  Turns::Tally &one = turns.open_tally(), &other = turns.open_tally();
  std::atomic<bool> over{false};
  turns.start(one, /*independent=*/true, /*may_wait=*/false);
  std::thread thread([&] {
    const auto begin_then_end = [&](Turns::Tally& begins, Turns::Tally& ends) {
      turns.start(begins, /*independent=*/true, /*may_wait=*/false);
      turns.end_started(ends, /*independent=*/true);
      for (int i = 0; i < 100; ++i) (void)over.load(std::memory_order_relaxed);
    };
    while (!over) {
      begin_then_end(other, one);
      begin_then_end(one, other);
    }
  });
  int missed = 0;
  const long rounds = harness::option("rounds", 50'000);
  for (long i = 0; i < rounds; ++i) missed += turns.alone(0) ? 1 : 0;
  over = true;
  thread.join();
  CHECK_EQ(missed, 0);
}

// An op has begun before anybody can see that it has.
TEST(turns_act_between_the_ops_that_threads_count) {
  Turns turns([] {});
  std::atomic<bool> over{false}, runs{false};
  long plain = 0, ops = 0, acts = 0;
  std::thread thread([&] {
    LateStores stores;
    Turns::Tally& mine = turns.open_tally();
    for (; !over.load(std::memory_order_relaxed); ++ops) {
      stores();
      turns.start(mine, /*independent=*/true, /*may_wait=*/false);
      ++plain;
      turns.end_started(mine, /*independent=*/true);
      runs.store(true, std::memory_order_relaxed);
    }
  });
  while (!runs) std::this_thread::yield();
  const auto try_to = [&](Patience) {
    acts += turns.between_ops([&plain] { ++plain; }) ? 1 : 0;
    return true;
  };
  for (int i = 0; i < 100'000; ++i) {
    CHECK(turns.begin(try_to, [] { return true; }, /*fits_alone=*/false));
    turns.end();
    for (int pause = 0; pause < 1000; ++pause) (void)over.load(std::memory_order_relaxed);
  }
  over = true;
  thread.join();
  CHECK(acts > 0);
  CHECK_EQ(plain, ops + acts);
}

// What runs may never end: an op out of memory is one after ten seconds.
TEST(turns_end_after_ten_seconds) {
  Others s;
  s.begin_another();
  std::atomic<bool> begun{true};
  Waiter waiter(&s.clock, [&] { begun = s.begin(); });
  CHECK(!waiter.done());
  s.clock.advance(Turns::kLongest - kMoment);
  CHECK(!waiter.done());
  s.clock.advance(kMoment);
  CHECK(waiter.done() && !begun);
  CHECK_EQ(s.impatient.load(), 1);
}

// They wait for the same, and one after the other they would wait ten seconds each.
TEST(turns_end_after_ten_seconds_for_all_who_wait) {
  Others s;
  s.begin_another();
  std::atomic<int> over{0};
  std::vector<std::thread> all;
  for (int i = 0; i < 3; ++i) {
    all.emplace_back([&] {
      CHECK(!s.begin());
      ++over;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  while (over < 3) {
    s.clock.advance(Turns::kLongest / 100);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (std::thread& one : all) one.join();
  CHECK(s.clock.now() < Turns::kLongest * 2);
}

TEST(turns_wait_for_what_another_thread_holds) {
  Others s;
  s.turns.hold();
  std::atomic<bool> begun{false};
  Waiter waiter(&s.clock, [&] { begun = s.begin(); });
  CHECK(!waiter.done());
  s.room = true;
  s.turns.release();
  CHECK(waiter.done() && begun);
}

TEST(turns_do_not_wait_for_what_the_thread_holds_itself) {
  Others s;
  s.turns.hold();
  CHECK(!s.try_again(1));
  CHECK(s.clock.now() == lms::Clock::Time(0));
}

// Nor for what a try of its own has held, and let go of.
TEST(turns_do_not_take_what_a_try_held_for_another) {
  Others s;
  const auto try_to = [&s](Patience) {
    s.turns.hold();
    s.turns.withdraw();
    return false;
  };
  CHECK(!s.turns.try_again(try_to, [] { return false; }, /*fits_alone=*/false));
  CHECK(s.clock.now() == lms::Clock::Time(0));
  CHECK(!s.turns.others_hold(0));
}

// Of two that hold what the other one lacks one gives up at once, and lets go.
TEST(turns_do_not_wait_for_those_that_hold_and_wait) {
  Others s;
  s.turns.hold();
  s.turns.hold();
  std::atomic<int> gave_up{0};
  const auto begin = [&] {
    gave_up += s.try_again(1) ? 0 : 1;
    s.turns.release();
  };
  Waiter first(&s.clock, begin);
  CHECK(!first.done());
  Waiter second(&s.clock, begin);
  for (int i = 0; i < 5000 && gave_up < 2; ++i) std::this_thread::sleep_for(kMoment);
  CHECK_EQ(gave_up.load(), 2);
}

// What runs ends without the help of others, if not soon.
TEST(turns_wait_longer_for_one_that_ends) {
  Others s;
  s.they_end = true;
  s.begin_another();
  std::atomic<bool> begun{true};
  Waiter waiter(&s.clock, [&] { begun = s.begin(); });
  CHECK(!waiter.done());
  s.clock.advance(Reservations::kStuck - kMoment);
  CHECK(!waiter.done());
  s.clock.advance(kMoment);
  CHECK(waiter.done() && !begun);
}

// Others that end all the time, and never make room, do not make it try for ever.
TEST(turns_end_although_others_end) {
  Others s;
  for (int i = 0; i < 40; ++i) s.begin_another();
  std::atomic<bool> begun{true};
  Waiter waiter(&s.clock, [&] { begun = s.begin(); });
  for (int i = 0; i < 30 && !waiter.done(); ++i) {
    s.clock.advance(Turns::kLongest / 10);
    s.turns.end();
  }
  CHECK(waiter.done() && !begun);
  CHECK(s.clock.now() <= Turns::kLongest + Turns::kLongest / 5);
}

// A kernel that lacks memory, of an op in a thread of its own.
struct Lacking {
  explicit Lacking(Others* others, Lack lack = Lack::kFails)
      : waiter(&others->clock, [this, others, lack] {
          ManualClock::sleep_on(&sleep);
          others->begin_another();
          taken =
              others->turns.wait([this] { return look(); }, lack, /*own=*/1, others->fits_alone);
          ended = true;
          while (!may_end) std::this_thread::yield();
          others->turns.end();
        }) {}
  ~Lacking() {  // of a test that fails
    may_look = may_end = true;
    sleep.longer = false;
  }
  bool look() {
    const bool found = room;
    ++looks;
    while (!may_look) std::this_thread::yield();
    return found;
  }
  std::atomic<int> looks{0};
  std::atomic<bool> room{false}, taken{false}, ended{false}, may_look{true}, may_end{true};
  ManualClock::Sleep sleep;
  Waiter waiter;
};

TEST(turns_give_up_at_once_when_nothing_else_runs) {
  Others s;
  Lacking kernel(&s);
  CHECK(kernel.waiter.done() && !kernel.taken);
  CHECK(s.clock.now() == lms::Clock::Time(0));
}

TEST(turns_wait_for_memory_that_another_thread_holds) {
  Others s;
  s.turns.hold();
  Lacking kernel(&s);
  CHECK(!kernel.waiter.done());
  kernel.room = true;
  s.turns.release();
  CHECK(kernel.waiter.done() && kernel.taken);
}

TEST(turns_wait_for_memory_that_another_leaves) {
  Others s;
  s.begin_another();
  Lacking kernel(&s);
  CHECK(!kernel.waiter.done());
  kernel.room = true;
  s.turns.end();
  CHECK(kernel.waiter.done() && kernel.taken);
}

// All that run lack memory: the last one ends, and only that one.
TEST(turns_give_up_where_all_lack_memory) {
  Others s;
  s.begin_another();
  Lacking first(&s);
  CHECK(!first.waiter.done());
  Lacking second(&s);
  CHECK(!second.waiter.done());
  first.may_end = second.may_end = false;
  s.turns.end();
  while (!first.ended && !second.ended) std::this_thread::yield();
  Lacking& ends = first.ended ? first : second;
  Lacking& waits = first.ended ? second : first;
  CHECK(!waits.waiter.done() && !ends.taken);
  waits.room = true;  // before the end that makes it look
  waits.may_end = ends.may_end = true;
  while (!ends.waiter.done()) std::this_thread::yield();
  CHECK(waits.waiter.done() && waits.taken);
}

// One that still looks has not looked in vain: it may be about to find memory, and to end.
TEST(turns_do_not_give_up_while_another_looks) {
  Others s;
  s.begin_another();
  Lacking first(&s);
  CHECK(!first.waiter.done());
  first.room = true;
  first.may_look = false;
  const int looks = first.looks;
  s.turns.end();
  while (first.looks == looks) std::this_thread::yield();
  Lacking second(&s);
  CHECK(!second.waiter.done());
  first.may_end = false;
  first.may_look = true;
  while (!first.ended) std::this_thread::yield();
  CHECK(!second.waiter.done());  // nor before its op is over
  second.room = true;
  first.may_end = true;
  while (!first.waiter.done()) std::this_thread::yield();
  CHECK(second.waiter.done() && first.taken && second.taken);
}

// It sleeps while another's end leaves it room.
TEST(turns_do_not_give_up_while_another_is_to_look) {
  Others s;
  s.begin_another();
  Lacking first(&s);
  CHECK(!first.waiter.done());
  first.sleep.longer = true;
  while (!first.sleep.begun) std::this_thread::yield();
  first.room = true;
  s.turns.end();
  Lacking second(&s);
  CHECK(!second.waiter.done());
  second.room = true;
  first.sleep.longer = false;
  while (!first.waiter.done()) std::this_thread::yield();
  CHECK(second.waiter.done() && first.taken && second.taken);
}

// Who can begin anew gives up before one whose op would fail, and that before the last error.
TEST(turns_give_up_what_can_begin_anew) {
  for (const Lack lack : {Lack::kBeginsAgain, Lack::kBeginsAnew}) {
    Others s;
    s.begin_another();
    Lacking begins(&s, lack);
    CHECK(!begins.waiter.done());
    Lacking fails(&s, Lack::kFails);
    CHECK(!fails.waiter.done());
    begins.may_end = false;
    s.turns.end();
    while (!begins.ended) std::this_thread::yield();
    CHECK(!begins.taken && !fails.waiter.done());
    fails.room = true;
    begins.may_end = true;
    while (!begins.waiter.done()) std::this_thread::yield();
    CHECK(fails.waiter.done() && fails.taken);
  }
}

// Nothing comes free when a thread outside of ops gives up: then another does as well.
TEST(turns_give_up_although_a_thread_outside_of_ops_has) {
  Others s;
  std::atomic<bool> ended{false};
  Waiter outside(&s.clock, [&] {
    s.begin_another();  // its op, which waits for it
    s.turns.wait([] { return false; }, Lack::kOutsideOps, /*own=*/0, /*fits_alone=*/false);
    ended = true;
    s.turns.end();
  });
  CHECK(!outside.done());
  Lacking fails(&s);
  CHECK(!fails.waiter.done());
  CHECK(!ended && s.clock.now() == lms::Clock::Time(0));
  s.clock.advance(Turns::kLongest);
  CHECK(outside.done() && fails.waiter.done() && !fails.taken);
}

// A reference that is dropped is no op's end: what it leaves is looked for, but not for long.
TEST(turns_wait_for_references) {
  for (const bool is_dropped : {true, false}) {
    Others s;
    s.fits_alone = true;
    Lacking kernel(&s);
    CHECK(!kernel.waiter.done());
    const int looks = kernel.looks;
    s.clock.advance(Turns::kLook);
    while (kernel.looks == looks) std::this_thread::yield();
    CHECK(!kernel.waiter.done());
    kernel.room = is_dropped;
    s.clock.advance(is_dropped ? Turns::kLook : Turns::kDropTime);
    CHECK(kernel.waiter.done() && kernel.taken == is_dropped);
  }
}

// The same for the operands of an op.
TEST(turns_begin_when_references_are_dropped) {
  for (const bool is_dropped : {true, false}) {
    Others s;
    s.fits_alone = true;
    std::atomic<bool> begun{false};
    Waiter waiter(&s.clock, [&] { begun = s.begin(); });
    CHECK(!waiter.done());
    s.room = is_dropped;
    s.clock.advance(is_dropped ? Turns::kLook : Turns::kDropTime);
    CHECK(waiter.done() && begun == is_dropped);
    if (begun) s.turns.end();
  }
}

// Both, however long they have waited for the ends of others by then.
TEST(turns_wait_for_references_from_the_last_end_on) {
  Others s;
  s.fits_alone = true;
  s.begin_another();
  Lacking kernel(&s);
  CHECK(!kernel.waiter.done());
  s.clock.advance(2 * Turns::kDropTime);
  s.turns.end();
  CHECK(!kernel.waiter.done());
  kernel.room = true;
  s.clock.advance(Turns::kLook);
  CHECK(kernel.waiter.done() && kernel.taken);
}

TEST(turns_begin_when_references_are_dropped_after_the_last_end) {
  for (const bool is_dropped : {true, false}) {
    Others s;
    s.fits_alone = true;
    s.begin_another();
    std::atomic<bool> begun{false};
    Waiter waiter(&s.clock, [&] { begun = s.begin(); });
    CHECK(!waiter.done());
    s.clock.advance(2 * Turns::kDropTime);
    s.turns.end();
    CHECK(!waiter.done());
    s.room = is_dropped;
    s.clock.advance(is_dropped ? Turns::kLook : Turns::kDropTime);
    CHECK(waiter.done() && begun == is_dropped);
    if (begun) s.turns.end();
  }
}

// One that is alone knows whether it was when it began.
TEST(turns_tell_that_none_was_there) {
  Others s;
  s.begin_another();
  const auto before = s.turns.ended();
  CHECK(s.turns.alone(1) && s.turns.ended() == before);
  s.begin_another();
  CHECK(!s.turns.alone(1));
  s.turns.end();
  CHECK(s.turns.alone(1) && s.turns.ended() != before);
  s.turns.end();
}

// ---- random programs

// The pool of the random programs below: its size alone counts, room is always made.
constexpr std::int64_t kPool = 64000;
struct PoolBytes final : lms::Space {
  std::int64_t bytes() const override { return kPool; }
  std::int64_t limit() const override { return kPool; }
  bool has(std::int64_t) const override { return false; }
  bool make(std::int64_t) override { return true; }
  void evict_idle() override {}
  void* set_aside(std::int64_t) override { return nullptr; }
  void give_back(void*) override {}
};

// Memory of which each op that runs has its operands, once although several have them, and what its
// kernel took. Whatever is in no use makes way.
class Memory {
 public:
  Memory(std::int64_t bytes, std::vector<std::int64_t> sizes)
      : left_(bytes), sizes_(std::move(sizes)), users_(sizes_.size()) {}

  bool pin(const std::vector<std::size_t>& operands) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const std::size_t operand : operands) {
      if (users_[operand]++ == 0) left_ -= sizes_[operand];
    }
    if (left_ >= 0) return true;
    unpin_(operands);
    return false;
  }
  void unpin(const std::vector<std::size_t>& operands) {
    std::lock_guard<std::mutex> lock(mutex_);
    unpin_(operands);
  }
  bool take(std::int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ -= bytes;
    return left_ >= 0;
  }
  bool take_if_free(std::int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (left_ < bytes) return false;
    left_ -= bytes;
    return true;
  }
  std::int64_t size(std::size_t operand) const { return sizes_[operand]; }

 private:
  void unpin_(const std::vector<std::size_t>& operands) {
    for (const std::size_t operand : operands) {
      if (--users_[operand] == 0) left_ += sizes_[operand];
    }
  }
  std::mutex mutex_;
  std::int64_t left_;
  const std::vector<std::int64_t> sizes_;
  std::vector<int> users_;
};

// Ops of several threads, in a pool that holds few of them at once.
class Program {
 public:
  Program(std::uint64_t seed, bool all_independent)
      : seed_(seed),
        all_independent_(all_independent),
        memory_(all_independent ? kPool : 100 * kPool, sizes_(seed)) {
    admission_.set_under_pressure();
  }

  void run(std::size_t threads, long ops) {
    alarm(100);  // ops that wait for each other are killed
    std::vector<std::thread> workers;
    for (std::size_t t = 0; t < threads; ++t) {
      workers.emplace_back([this, t, ops] {
        fake::Random random(seed_ * 1000 + t);
        for (long i = 0; i < ops && failure().empty(); ++i) op_(&random, 0);
      });
    }
    for (std::thread& worker : workers) worker.join();
    CHECK_EQ(failure(), "");
    CHECK_EQ(running_, 0);
    CHECK_EQ(reserved_, 0);
  }

  std::string failure() {
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

 private:
  static constexpr std::int64_t kReservable = kPool - kPool / 8;
  static constexpr std::size_t kOperands = 24;

  static std::vector<std::int64_t> sizes_(std::uint64_t seed) {
    fake::Random random(seed);
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < kOperands; ++i) {
      sizes.push_back(1 + static_cast<std::int64_t>(random.below(kPool / 8)));
    }
    return sizes;
  }

  // One op: which one tells its operands and its demand. One that is not independent calls another
  // from within, in a thread of its own, and waits for it. Then ops may begin together that do not
  // fit, and the memory is as large as that takes.
  void op_(fake::Random* random, int depth) {
    const std::size_t id = random->below(40);
    fake::Random of_op(seed_ * 77 + id);
    std::vector<std::size_t> operands;
    Admission::Op op;
    for (std::size_t i = of_op.below(3) + 1; i-- > 0;) {
      const std::size_t operand = of_op.below(kOperands);
      if (std::find(operands.begin(), operands.end(), operand) != operands.end()) continue;
      operands.push_back(operand);
      op.operand_bytes += memory_.size(operand);
    }
    std::int64_t demand = static_cast<std::int64_t>(of_op.below(kPool / 4));
    if (op.operand_bytes < kPool / 64) demand = std::min(demand, op.operand_bytes);
    op.id = id;
    const bool calls = !all_independent_ && depth == 0 && of_op.one_in(4);
    op.independent = !calls;
    admission_.ask(&op);
    note_(op, +1);
    const bool begun = turns_.begin(
        [&](Patience) {
          if (memory_.pin(operands)) return true;
          admission_.suspend(&op);
          return false;
        },
        [&] { return admission_.others_end(); }, /*fits_alone=*/false);
    if (!begun) {
      fail_("no room for operands");
    } else {
      admission_.run(&op);
      if (!memory_.take(demand)) fail_("no room for a demand");
      if (calls) {
        std::thread other([this, id, depth] {
          fake::Random inner(seed_ * 13 + id);
          op_(&inner, depth + 1);
        });
        other.join();
      }
      for (std::size_t i = random->below(4); i-- > 0;) std::this_thread::yield();
      memory_.take(-demand);
      memory_.unpin(operands);
    }
    note_(op, -1);
    admission_.end(&op, begun ? demand : Demand::kUnknown);
    if (begun) turns_.end();
  }

  // Called when an op has its reservation, and before that ends: counts no more than are given.
  void note_(const Admission::Op& op, int sign) {
    std::lock_guard<std::mutex> lock(mutex_);
    running_ += sign;
    reserved_ += sign * op.reservation.bytes;
    if (sign < 0 || !all_independent_ || running_ == 1 || reserved_ <= kReservable) return;
    failure_ = std::to_string(running_) + " ops have reserved " + std::to_string(reserved_);
  }

  void fail_(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = what;
  }

  const std::uint64_t seed_;
  const bool all_independent_;
  Memory memory_;
  PoolBytes room_;
  ManualClock clock_;  // time stands still: nothing here may need it to go on
  Admission admission_{room_, clock_};
  Turns turns_{[] {}, clock_};
  std::mutex mutex_;
  std::string failure_;
  long running_ = 0;
  std::int64_t reserved_ = 0;
};

// Ops that run at once always fit together, and so have what they need; and all of them end.
// Options: seeds, first, ops, threads.
TEST(admission_random_programs) {
  const long first = harness::option("first", 0);
  for (long seed = first; seed < first + harness::option("seeds", 20); ++seed) {
    Program program(static_cast<std::uint64_t>(seed), /*all_independent=*/true);
    program.run(static_cast<std::size_t>(harness::option("threads", 6)),
                harness::option("ops", 200));
  }
}

// Ops that wait for ops which ask later do not keep them from beginning.
TEST(admission_random_programs_that_wait) {
  const long first = harness::option("first", 0);
  for (long seed = first; seed < first + harness::option("seeds", 10); ++seed) {
    Program program(static_cast<std::uint64_t>(seed), /*all_independent=*/false);
    program.run(static_cast<std::size_t>(harness::option("threads", 4)),
                harness::option("ops", 60));
  }
}

// Ops that began without a look at them, because there seemed to be room, and whose kernels lack
// memory together: each of them fits alone, and begins anew when it gives up.
class Lackers {
 public:
  explicit Lackers(std::uint64_t seed) : seed_(seed), memory_(kPool, sizes_(seed)) {}

  void run(std::size_t threads, long ops) {
    alarm(100);
    std::vector<std::thread> workers;
    for (std::size_t t = 0; t < threads; ++t) {
      workers.emplace_back([this, t, ops] {
        fake::Random random(seed_ * 1000 + t);
        for (long i = 0; i < ops; ++i) op_(&random);
      });
    }
    for (std::thread& worker : workers) worker.join();
    CHECK_EQ(failed_.load(), 0);
  }

 private:
  static constexpr std::size_t kOperands = 12;

  static std::vector<std::int64_t> sizes_(std::uint64_t seed) {
    fake::Random random(seed);
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < kOperands; ++i) {
      sizes.push_back(kPool / 64 + static_cast<std::int64_t>(random.below(kPool / 4)));
    }
    return sizes;
  }

  void op_(fake::Random* random) {
    const std::vector<std::size_t> operands{random->below(kOperands)};
    Admission::Op op;
    op.operand_bytes = memory_.size(operands[0]);
    const std::int64_t most = kPool - op.operand_bytes;
    const std::int64_t demand = most - static_cast<std::int64_t>(random->below(kPool / 2));
    op.independent = true;
    while (!try_(&op, operands, demand)) {
      if (op.alone && turns_.alone(0)) ++failed_;
      op.alone = true;
    }
  }

  // As the adaptor does: a first time unseen, from then on alone.
  bool try_(Admission::Op* op, const std::vector<std::size_t>& operands, std::int64_t demand) {
    if (op->alone) admission_.ask(op);
    const bool begun = turns_.begin([&](Patience) { return memory_.pin(operands); },
                                    [&] { return admission_.others_end(); }, /*fits_alone=*/false);
    bool taken = false;
    if (begun) {
      admission_.run(op);
      const Lack lack = op->alone ? Lack::kBeginsAgain : Lack::kBeginsAnew;
      taken = turns_.wait([&] { return memory_.take_if_free(demand); }, lack, /*own=*/1,
                          /*fits_alone=*/false);
      if (!taken && op->alone && turns_.alone(1)) ++failed_;
      if (taken) memory_.take(-demand);
      memory_.unpin(operands);
    }
    admission_.end(op, taken ? demand : Demand::kUnknown);
    if (begun) turns_.end();
    return taken;
  }

  const std::uint64_t seed_;
  Memory memory_;
  PoolBytes room_;
  ManualClock clock_;  // time stands still
  Admission admission_{room_, clock_};
  Turns turns_{[] {}, clock_};
  std::atomic<int> failed_{0};
};

// None fails, and all end: options as above.
TEST(turns_random_programs) {
  const long first = harness::option("first", 0);
  for (long seed = first; seed < first + harness::option("seeds", 10); ++seed) {
    Lackers lackers(static_cast<std::uint64_t>(seed));
    lackers.run(static_cast<std::size_t>(harness::option("threads", 6)),
                harness::option("ops", 60));
  }
}

}  // namespace
