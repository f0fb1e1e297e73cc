// SPDX-License-Identifier: Apache-2.0
#include "turns.h"

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "admission.h"

namespace lms {
namespace {

// As the kernel's <linux/membarrier.h> has them, which some machines that build this have in an
// older version.
constexpr int kExpedited = 1 << 3;
constexpr int kRegisterExpedited = 1 << 4;

// 0, or -1 with errno.
int membarrier(int command) {
#ifdef __NR_membarrier
  return static_cast<int>(syscall(__NR_membarrier, command, 0));
#else
  (void)command;
  errno = ENOSYS;
  return -1;
#endif
}

constexpr std::uint64_t kLooks = UINT64_MAX;

}  // namespace

constexpr Clock::Duration Turns::kLongest;
constexpr Clock::Duration Turns::kDropTime;
constexpr Clock::Duration Turns::kLook;
constexpr int Turns::kPatientTries;
constexpr Turns::Ops Turns::kDependent;

std::atomic<bool> detail::process_barriers{false};

bool detail::allow_process_barriers() {
  static const bool allowed = [] {
    process_barriers = membarrier(kRegisterExpedited) == 0;
    return process_barriers.load();
  }();
  return allowed;
}

void detail::pass_process_barrier() {
  if (membarrier(kExpedited) == 0) return;
  // In the child of a fork it may have to be asked for anew.
  if (membarrier(kRegisterExpedited) == 0 && membarrier(kExpedited) == 0) return;
  std::perror("Large Model Support: the system call membarrier, which was allowed before");
  std::abort();
}

// A kernel that lacks memory.
struct Turns::Lacking {
  Lacking(Lack its_lack, int its_own) : lack(its_lack), own(its_own) {}
  const Lack lack;
  const int own;
  // How many ops had ended when it last looked in vain. Until it has looked again after an end, it
  // may be about to find what that op left, and counts as one that runs.
  Ops failed_at = kLooks;
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

Turns::~Turns() {
  for (Tally* tally = tallies_; tally != nullptr;) {
    Tally* const next = tally->next_;
    delete tally;
    tally = next;
  }
}

Turns::Tally& Turns::open_tally() {
  detail::allow_process_barriers();
  for (Tally* tally = tallies_; tally != nullptr; tally = tally->next_) {
    if (!tally->taken_.exchange(true)) return *tally;
  }
  Tally* const made = new Tally;
  made->next_ = tallies_;
  while (!tallies_.compare_exchange_weak(made->next_, made)) {
  }
  return *made;
}

Turns::Count Turns::count_() const {
  if (tallies_ != nullptr) heavy_barrier();
  Count count;
  count.ended = total_(ended_, &Tally::ended_);
  // After that, so that what is found to have ended is found to have begun.
  count.begun = total_(begun_, &Tally::begun_);
  return count;
}

Turns::Ops Turns::total_(const std::atomic<Ops>& others, std::atomic<Ops> Tally::* of_tally) const {
  Ops total = others;
  for (const Tally* tally = tallies_; tally != nullptr; tally = tally->next_) {
    total += (tally->*of_tally).load(std::memory_order_acquire);
  }
  return total;
}

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
  start(/*independent=*/true, /*may_wait=*/false);
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
    const Ops before = ended();
    if (try_once_(try_to, patient ? Patience::kPatient : Patience::kImpatient)) {
      last_got_on_ = clock_.now();
      return true;
    }
    if (last) return false;
    const Ops own = before + 1;  // its own end is one of them
    const Count now = count_();
    const bool none_runs = now.running() == 0 && now.ended == own && !others_hold(0);
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

void Turns::end() { end_started(/*independent=*/true); }

void Turns::release() {
  --holds_;
  tell_end_();
  if (let_go_) let_go_();
}

// As if an op had ended: who waits looks again.
void Turns::tell_end_() {
  begun_ += op_(/*dependent=*/false);
  ended_ += op_(/*dependent=*/false);
  if (waiting_.load() > 0) tell_waiting_();
}

void Turns::tell_waiting_() {
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

void Turns::wait_at_bar_() {
  const Clock::Time deadline = clock_.now() + kLongest;
  std::unique_lock<std::mutex> lock(mutex_);
  while (barred_.load() && count_().dependent() == 0 && clock_.now() < deadline) {
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
    const Ops seen = ended();
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
  while (ended() == me->failed_at && clock_.now() < until) {
    choose_who_gives_up_();
    if (me->gives_up) {
      const bool begins_anew =
          me->lack == Lack::kBeginsAnew || (me->lack == Lack::kBeginsAgain && !alone(me->own));
      if (begins_anew || !for_drops) return false;
      until = std::min(until, now + kLook);
    }
    clock_.wait_until(changed_, *lock, until);
  }
  if (ended() != me->failed_at) me->another_ended = clock_.now();
  return clock_.now() < start + kLongest;
}

// Once nothing runs that may leave memory. Who gives up does: its op is about to end.
void Turns::choose_who_gives_up_() {
  const Count now = count_();
  Ops lacking = 0;
  Lacking* chosen = nullptr;
  for (Lacking* one : lacking_) {
    if (one->gives_up || one->failed_at != now.ended) return;
    lacking += static_cast<Ops>(one->own);
    if (chosen == nullptr || one->lack >= chosen->lack) chosen = one;
  }
  if (chosen == nullptr || now.running() > lacking || others_hold(0)) return;
  chosen->gives_up = true;
  changed_.notify_all();
}

// Whether more ops have ended than were `seen`.
bool Turns::wait_for_end_(Ops seen, Clock::Time deadline) {
  ++waiting_;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (ended() == seen && clock_.now() < deadline) {
      clock_.wait_until(changed_, lock, deadline);
    }
  }
  --waiting_;
  return ended() != seen && clock_.now() < deadline;
}

}  // namespace lms
