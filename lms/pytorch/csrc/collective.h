// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/lms/compat/definitions.h>
#include <torch/csrc/lms/operands.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

// A collective may run on when its operator has returned, on streams unknown here: what it uses
// stays until its work is done.
namespace torch::lms {

using Work = c10::intrusive_ptr<c10d::Work>;

// Keeps the storages of a collective on the device until it is done, in whatever thread that is.
class InFlight {
 public:
  explicit InFlight(const Operands& operands);
  ~InFlight();
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Notes the current streams, which come after the collective, as users.
  void follow() const;
  // They stay for good.
  void expose() const;

 private:
  InFlight() = default;
  void pin_last();

  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages_;
};

// Until the future of `work` is done or, where it has none, somebody has waited for it. For good
// when nobody can: it was dropped, or `work` gives null and this is not part of a group.
void hold_until_done(const std::shared_ptr<InFlight>& held, c10::function_ref<Work()> work);

// What this thread's collectives begin between the two is launched, as a group, before the end, and
// done with the work of the group, whatever their own work says. Groups within one are launched
// with it. Its work is null when it has nothing of its own: what they use stays for good.
void begin_group();
void end_group(const Work& work);
// The group could not be launched: nothing is known of it.
void abandon_group();

// The current streams come after `work` from now on.
void waited_for(const Work& work);

template <class Call>
void run_collective(Call& call, const Operands& operands) {
  const auto held = std::make_shared<InFlight>(operands);
  call.run();
  hold_until_done(held, [&call] { return call.work(); });
}

// The operators that torch/cuda/lms tells of them by.
void define_collectives(Definitions& definitions);

}  // namespace torch::lms
