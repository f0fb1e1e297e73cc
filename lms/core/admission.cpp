// SPDX-License-Identifier: Apache-2.0
#include "admission.h"

#include <algorithm>

namespace lms {
namespace {

// While one half of the pool is free in one piece, no op is expected to need more. A larger part
// costs the look at more ops; a smaller one finds the first that lacks room when its operands
// cannot move any more.
constexpr std::int64_t kRoomyPart = 2;

// An eighth of the pool is not reserved: it is in holes too small to be of use. A larger part lets
// fewer ops run at once; a smaller one lets more of them find no room after they began.
constexpr std::int64_t kFragmentedPart = 8;

}  // namespace

constexpr Clock::Duration Reservations::kStuck;

void Reservations::acquire(const Reservation& wanted, std::int64_t room) {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::int64_t ticket = asked_++;
  std::int64_t seen = changes_;
  Clock::Time deadline = clock_.now() + kStuck;
  while (ticket != served_ || (given_ > 0 && given_ + wanted.bytes > room && independent_ > 0)) {
    const bool stuck = seen == changes_ && clock_.now() >= deadline;
    if (stuck && ticket == served_) break;
    if (stuck || seen != changes_) deadline = clock_.now() + kStuck;
    seen = changes_;
    clock_.wait_until(changed_, lock, deadline);
  }
  ++served_;
  given_ += wanted.bytes;
  if (wanted.independent) ++independent_;
  change_();
}

void Reservations::release(const Reservation& given) {
  std::lock_guard<std::mutex> lock(mutex_);
  given_ -= given.bytes;
  if (given.independent) --independent_;
  change_();
}

void Reservations::set_independent_(Reservation* given, bool independent) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (given->independent == independent) return;
  independent_ += independent ? 1 : -1;
  given->independent = independent;
  change_();
}

void Reservations::change_() {
  ++changes_;
  changed_.notify_all();
}

bool Admission::is_roomy_() const { return space_.has(space_.bytes() / kRoomyPart); }

std::int64_t Admission::reservable_() const {
  return space_.limit() - space_.limit() / kFragmentedPart;
}

// What an op lacks is known only when its operands cannot move any more, so the first that will
// lack room is found before it begins.
Admission::Need Admission::need_of_(const Op& op) const {
  if (op.alone || under_pressure()) return Need::kRoom;
  const std::int64_t demand = op.gathers ? op.operand_bytes : op.demand;
  if (demand == Demand::kUnknown) {
    const bool known = is_small(op.operand_bytes) || demand_.tried(op.id, op.operand_bytes);
    return known ? Need::kNothing : Need::kToBeLearnt;
  }
  return space_.has(demand) ? Need::kNothing : Need::kRoom;
}

void Admission::ask(Op* op) {
  op->demand = op->alone ? Demand::kUnknown : demand_.of(op->id, op->operand_bytes);
  switch (need_of_(*op)) {
    case Need::kNothing:
      return;
    case Need::kToBeLearnt:
      demand_.mark_tried(op->id, op->operand_bytes);
      break;
    case Need::kRoom:
      set_under_pressure();
      break;
  }
  if (op->demand == Demand::kUnknown && !op->alone && is_small(op->operand_bytes)) {
    op->demand = op->operand_bytes;
  }
  const std::int64_t room = reservable_();
  const bool unknown = op->demand == Demand::kUnknown;
  // One that may wait for others cannot be alone.
  const std::int64_t alone = op->independent ? room : op->operand_bytes;
  op->reservation.bytes = op->operand_bytes + (unknown ? alone : op->demand);
  op->reservation.independent = op->independent;
  if (!unknown) {
    op->demand = std::min(op->demand, std::max<std::int64_t>(room - op->operand_bytes, 0));
  }
  reservations_.acquire(op->reservation, room);
  op->reserved = true;
}

void Admission::suspend(Op* op) {
  if (op->reserved) reservations_.suspend(&op->reservation);
}

void Admission::run(Op* op) {
  if (!op->independent) return;
  op->running = true;
  ++running_;
  if (op->reserved) reservations_.resume(&op->reservation);
}

void Admission::end(Op* op, std::int64_t taken) {
  if (op->reserved) {
    const bool as_assumed = is_small(op->operand_bytes) && taken <= op->operand_bytes;
    if (taken != Demand::kUnknown && !as_assumed) demand_.note(op->id, op->operand_bytes, taken);
    reservations_.release(op->reservation);
    op->reserved = false;
  }
  if (op->running) --running_;
  op->running = false;
}

}  // namespace lms
