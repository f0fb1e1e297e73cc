// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "admission.h"
#include "turns.h"

namespace lms {

// The operands of one op, as placement sees them.
class Pins {
 public:
  virtual ~Pins() = default;
  // Pins all of them, and brings in those that are out. False when there is no room for that; then
  // none is pinned.
  virtual bool pin() = 0;
  virtual void unpin() = 0;
  // How many are pinned.
  virtual std::size_t count() const = 0;
};

// Pins the operands of one op where they leave its kernel room in one piece. They cannot move any
// more once the kernel runs, and one that lies in the middle of the pool halves the largest request
// that can be met.
class Placement {
 public:
  Placement(Space& space, Admission& admission, Pins& pins)
      : space_(space), admission_(admission), pins_(pins) {}

  // False, with nothing pinned, when there is no room; or, for one that is patient, when operands
  // of others, which will end, are where its demand should be.
  bool place(const Admission::Op& op, Patience patience);

 private:
  enum class Found : std::uint8_t { kPlace, kBadPlace, kNoRoom };
  // The attempts. All but the first find what the one before it has pinned at a bad place.
  Found where_they_are_(const Admission::Op& op, Patience patience);
  Found side_by_side_(const Admission::Op& op, Patience patience);
  Found beside_a_hole_(const Admission::Op& op, Patience patience);
  Found anywhere_(const Admission::Op& op, Patience patience);
  // The last resort of those that found no room: none is pinned.
  Found in_an_empty_pool_(Patience patience);
  std::int64_t free_between_() const;
  Found with_hole_(const Admission::Op& op);

  Space& space_;
  Admission& admission_;
  Pins& pins_;
  bool evicted_ = false;
};

}  // namespace lms
