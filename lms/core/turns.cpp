// SPDX-License-Identifier: Apache-2.0
#include "turns.h"

#include "admission.h"

namespace lms {

constexpr Clock::Duration Turns::kLongest;
constexpr int Turns::kPatientTries;

bool Turns::try_once_(const std::function<bool(Patience)>& try_to, Patience patience) {
  ++begun_;
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
                  const std::function<bool()>& others_end) {
  if (try_once_(try_to, Patience::kPatient)) return true;
  std::lock_guard<std::mutex> turn(turn_);
  const Clock::Time start = clock_.now();
  Clock::Duration longest = kLongest;
  bool last = false;
  for (int tries = 1;; ++tries) {
    const bool patient = !last && tries < kPatientTries;
    const std::int64_t before = ended_.load();
    if (try_once_(try_to, patient ? Patience::kPatient : Patience::kImpatient)) return true;
    if (last) return false;
    const std::int64_t own = before + 1;  // its own end is one of them
    const bool alone = begun_.load() == 0 && ended_.load() == own;
    if (others_end()) longest = Reservations::kStuck;
    last = alone || !wait_for_end_(own, start + longest);
  }
}

void Turns::end() {
  --begun_;
  ++ended_;
  if (waiting_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }
  let_go_();
}

bool Turns::wait(const std::function<bool()>& take, int own) {
  const Clock::Time deadline = clock_.now() + kLongest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lacking_ += own;
  }
  bool taken = false;
  for (bool last = false;;) {
    const std::int64_t seen = ended_.load();
    taken = take();
    if (!taken && !last && gives_up_(seen, own)) return false;
    if (taken || last) break;
    last = !wait_for_end_(seen, deadline);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  lacking_ -= own;
  return taken;
}

// Whether nothing runs that may leave memory. One that gives up does: it is about to end.
bool Turns::gives_up_(std::int64_t seen, int own) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (begun_.load() > lacking_ || ended_.load() != seen) return false;
  lacking_ -= own;
  return true;
}

// Whether more ops have ended than were `seen`.
bool Turns::wait_for_end_(std::int64_t seen, Clock::Time deadline) {
  ++waiting_;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (ended_.load() == seen && clock_.now() < deadline) {
      clock_.wait_until(changed_, lock, deadline);
    }
  }
  --waiting_;
  return ended_.load() != seen && clock_.now() < deadline;
}

}  // namespace lms
