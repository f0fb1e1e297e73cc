// SPDX-License-Identifier: Apache-2.0
#include "turns.h"

#include <algorithm>

#include "admission.h"

namespace lms {
namespace {

constexpr std::uint64_t kLooks = UINT64_MAX;

}  // namespace

constexpr Clock::Duration Turns::kLongest;
constexpr Clock::Duration Turns::kDropTime;
constexpr Clock::Duration Turns::kLook;
constexpr int Turns::kPatientTries;
constexpr int Turns::kBits;
constexpr Turns::Count Turns::kBegun;
constexpr Turns::Count Turns::kDependent;
constexpr Turns::Count Turns::kEnded;

// A kernel that lacks memory.
struct Turns::Lacking {
  Lacking(Lack its_lack, int its_own) : lack(its_lack), own(its_own) {}
  const Lack lack;
  const int own;
  // How many ops had ended when it last looked in vain. Until it has looked again after an end, it
  // may be about to find what that op left, and counts as one that runs.
  Count failed_at = kLooks;
  Clock::Time another_ended{};  // or it began to lack memory
  bool gives_up = false;
};

// What a thread holds while it lacks room itself. Those that wait for it look again: it may be all.
class Turns::Waits {
 public:
  Waits(Turns& turns, int holds) : turns_(turns), holds_(holds) {
    turns_.waiting_holds_ += holds_;
    if (holds_ > 0) turns_.tell_end_();
  }
  ~Waits() { turns_.waiting_holds_ -= holds_; }
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

 private:
  Turns& turns_;
  const int holds_;
};

bool Turns::between_ops(const std::function<void()>& act) {
  std::lock_guard<std::mutex> lock(between_);
  struct Over {
    std::atomic<bool>& between_ops;
    ~Over() { between_ops.store(false); }
  } over{between_ops_};
  between_ops_.store(true);
  const bool between = alone(1);
  if (between) act();
  return between;
}

bool Turns::try_once_(const std::function<bool(Patience)>& try_to, Patience patience) {
  one_begins_();
  try {
    if (try_to(patience)) return true;
  } catch (...) {
    end();  // else it would count as one that runs, for ever
    throw;
  }
  end();
  return false;
}

bool Turns::begin(const std::function<bool(Patience)>& try_to,
                  const std::function<bool()>& others_end, bool fits_alone) {
  return try_once_(try_to, Patience::kPatient) || try_again(try_to, others_end, fits_alone);
}

bool Turns::try_again(const std::function<bool(Patience)>& try_to,
                      const std::function<bool()>& others_end, bool fits_alone, int holds) {
  const Clock::Time asked = clock_.now();
  Waits waits(*this, holds);
  std::lock_guard<std::mutex> turn(turn_);
  struct Unbar {
    Turns& turns;
    ~Unbar() { turns.unbar_(); }
  } unbar{*this};
  // Whoever has waited while others had their turns in vain has waited for the same.
  const Clock::Time start = std::max(asked, last_got_on_);
  Clock::Time another_ended = clock_.now();
  Clock::Duration longest = kLongest;
  bool last = false;
  for (int tries = 1;; ++tries) {
    const bool patient = !last && tries < kPatientTries;
    if (!patient) bar_();
    const Count before = ended_(count_.load());
    if (try_once_(try_to, patient ? Patience::kPatient : Patience::kImpatient)) {
      last_got_on_ = clock_.now();
      return true;
    }
    if (last) return false;
    const Count own = before + 1;  // its own end is one of them
    const Count now = count_.load();
    const bool none_runs = begun_(now) == 0 && ended_(now) == own && !others_hold(0);
    if (others_end()) longest = Reservations::kStuck;
    const Clock::Time drops_until = std::min(another_ended, start + longest) + kDropTime;
    if (none_runs && clock_.now() < drops_until && fits_alone) {
      wait_for_end_(own, clock_.now() + kLook);
    } else {
      last = none_runs || !wait_for_end_(own, start + longest);
      another_ended = clock_.now();
    }
  }
}

void Turns::end() { one_ends_(); }

void Turns::release() {
  --holds_;
  tell_end_();
  if (let_go_) let_go_();
}

// As if an op had ended: who waits looks again.
void Turns::tell_end_() {
  count_ += kEnded;
  if (waiting_.load() > 0) tell_waiting_();
}

void Turns::tell_waiting_() {
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

void Turns::wait_at_bar_() {
  const Clock::Time deadline = clock_.now() + kLongest;
  std::unique_lock<std::mutex> lock(mutex_);
  while (barred_.load() && dependent_(count_.load()) == 0 && clock_.now() < deadline) {
    clock_.wait_until(changed_, lock, deadline);
  }
}

// One has begun that they need not wait for: who waits at the bar, or comes there, sees it.
void Turns::tell_bar_() {
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

void Turns::bar_() {
  std::lock_guard<std::mutex> lock(mutex_);
  barred_.store(true);
}

void Turns::unbar_() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (barred_.exchange(false)) changed_.notify_all();
}

bool Turns::wait(const std::function<bool()>& take, Lack lack, int own, bool fits_alone,
                 int holds) {
  const Clock::Time start = clock_.now();
  Waits waits(*this, holds);
  Lacking me(lack, own);
  me.another_ended = start;
  std::unique_lock<std::mutex> lock(mutex_);
  lacking_.push_back(&me);
  ++waiting_;
  bool taken = false;
  for (bool again = true; again;) {
    const Count seen = ended_(count_.load());
    lock.unlock();
    taken = take();
    lock.lock();
    if (taken) break;
    me.failed_at = seen;
    again = wait_to_look_(&me, start, fits_alone, &lock);
    me.failed_at = kLooks;
    me.gives_up = false;
  }
  lacking_.erase(std::find(lacking_.begin(), lacking_.end(), &me));
  --waiting_;
  changed_.notify_all();  // those that are left may be all that lack memory
  return taken;
}

// Waits until there may be memory. False when it is time to give up.
bool Turns::wait_to_look_(Lacking* me, Clock::Time start, bool fits_alone,
                          std::unique_lock<std::mutex>* lock) {
  const Clock::Time now = clock_.now();
  const Clock::Time since = alone(me->own) ? me->another_ended : start;
  const bool for_drops = fits_alone && now < since + kDropTime;
  Clock::Time until = std::min(start + kLongest, now + kDropTime);
  while (ended_(count_.load()) == me->failed_at && clock_.now() < until) {
    choose_who_gives_up_();
    if (me->gives_up) {
      const bool begins_anew =
          me->lack == Lack::kBeginsAnew || (me->lack == Lack::kBeginsAgain && !alone(me->own));
      if (begins_anew || !for_drops) return false;
      until = std::min(until, now + kLook);
    }
    clock_.wait_until(changed_, *lock, until);
  }
  if (ended_(count_.load()) != me->failed_at) me->another_ended = clock_.now();
  return clock_.now() < start + kLongest;
}

// Once nothing runs that may leave memory. Who gives up does: its op is about to end.
void Turns::choose_who_gives_up_() {
  const Count count = count_.load();
  const Count ended = ended_(count);
  Count lacking = 0;
  Lacking* chosen = nullptr;
  for (Lacking* one : lacking_) {
    if (one->gives_up || one->failed_at != ended) return;
    lacking += static_cast<Count>(one->own);
    if (chosen == nullptr || one->lack >= chosen->lack) chosen = one;
  }
  if (chosen == nullptr || begun_(count) > lacking || others_hold(0)) return;
  chosen->gives_up = true;
  changed_.notify_all();
}

// Whether more ops have ended than were `seen`.
bool Turns::wait_for_end_(Count seen, Clock::Time deadline) {
  ++waiting_;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (ended_(count_.load()) == seen && clock_.now() < deadline) {
      clock_.wait_until(changed_, lock, deadline);
    }
  }
  --waiting_;
  return ended_(count_.load()) != seen && clock_.now() < deadline;
}

}  // namespace lms
