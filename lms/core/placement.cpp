// SPDX-License-Identifier: Apache-2.0
#include "placement.h"

#include <algorithm>

namespace lms {
namespace {

// What is set aside while it lives.
class Aside {
 public:
  Aside(Space& space, void* hole) : space_(space), hole_(hole) {}
  ~Aside() {
    if (hole_ != nullptr) space_.give_back(hole_);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  bool any() const { return hole_ != nullptr; }

 private:
  Space& space_;
  void* const hole_;
};

}  // namespace

// What the operands leave between them, wherever they lie: a quarter of the pool is taken to be
// this op's (the rest is in use by other ops), and so many operands cut it into one piece more. A
// demand below this needs no hole. A larger share than a quarter saves evictions and lets more
// kernels run into a pool that is cut up; a smaller one makes holes that are not needed.
std::int64_t Placement::free_between_() const {
  return space_.bytes() / (4 * (static_cast<std::int64_t>(pins_.count()) + 1));
}

Placement::Found Placement::with_hole_(const Admission::Op& op) {
  return space_.make(op.demand) ? Found::kPlace : Found::kBadPlace;
}

// First, because it moves only what is out.
Placement::Found Placement::where_they_are_(const Admission::Op& op, Patience) {
  const bool unknown = op.reserved && op.demand == Demand::kUnknown;
  if (unknown && !evicted_) space_.evict_idle();  // it may take most of the pool
  evicted_ = true;
  if (!pins_.pin()) return Found::kNoRoom;
  if (!op.reserved || unknown || op.demand < free_between_()) return Found::kPlace;
  return with_hole_(op);
}

// Then, because they may be in the way themselves: idle for a moment, they leave, and come back
// into the beginning of one hole for all that the op needs.
Placement::Found Placement::side_by_side_(const Admission::Op& op, Patience) {
  pins_.unpin();
  space_.make(op.operand_bytes + op.demand);
  if (!pins_.pin()) return Found::kNoRoom;
  return with_hole_(op);
}

// Then, where no hole is large enough for both: the operands lie anywhere but in the one for the
// demand.
Placement::Found Placement::beside_a_hole_(const Admission::Op& op, Patience) {
  pins_.unpin();
  bool hole = false, pinned = false;
  {
    const Aside aside(space_, space_.make(op.demand) ? space_.set_aside(op.demand) : nullptr);
    hole = aside.any();
    pinned = pins_.pin();
  }
  if (!pinned) return hole && pins_.pin() ? Found::kBadPlace : Found::kNoRoom;
  return hole ? Found::kPlace : Found::kBadPlace;
}

// Last, because it halves the room of the kernel. Not while others will end that are in the way.
Placement::Found Placement::anywhere_(const Admission::Op& op, Patience patience) {
  if (patience == Patience::kImpatient || !admission_.others_end()) return Found::kPlace;
  if (space_.make(op.demand)) return Found::kPlace;
  pins_.unpin();
  return Found::kNoRoom;
}

// Where they find no room: one that lies in the middle may leave another none on either side,
// though all of them would fit. What is idle leaves, they among it, and they come in one behind the
// other. Not while others will end, who may leave more.
Placement::Found Placement::in_an_empty_pool_(Patience patience) {
  if (patience == Patience::kPatient && admission_.others_end()) return Found::kNoRoom;
  space_.evict_idle();
  return pins_.pin() ? Found::kPlace : Found::kNoRoom;
}

bool Placement::place(const Admission::Op& op, Patience patience) {
  using Attempt = Found (Placement::*)(const Admission::Op&, Patience);
  const Attempt attempts[] = {&Placement::where_they_are_, &Placement::side_by_side_,
                              &Placement::beside_a_hole_, &Placement::anywhere_};
  Found found = Found::kBadPlace;
  for (const Attempt attempt : attempts) {
    found = (this->*attempt)(op, patience);
    if (found != Found::kBadPlace) break;
  }
  if (found == Found::kNoRoom) found = in_an_empty_pool_(patience);
  return found == Found::kPlace;
}

}  // namespace lms
