// SPDX-License-Identifier: Apache-2.0
#include "turns.h"

#include "admission.h"

namespace lms {

constexpr Clock::Duration Turns::kLongest;
constexpr int Turns::kPatientTries;

bool Turns::try_once_(const std::function<bool(Patience)>& try_to, Patience patience) {
  ++begun_;
  if (try_to(patience)) return true;
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
