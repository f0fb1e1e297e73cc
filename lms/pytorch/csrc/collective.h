// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/lms/operands.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace torch::lms {

// Keeps the storages of a collective on the device until it is done, in whatever thread that is.
class InFlight {
 public:
  explicit InFlight(const Operands& operands);
  ~InFlight();
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Notes the current streams, which come after the collective, as users.
  void follow() const;

 private:
  InFlight() = default;
  void pin_last();

  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages_;
};

// A collective may run on when its operator has returned, on streams unknown here: what it uses
// stays until its work is done, or for good when that cannot be known. `work` may give null.
void hold_until_done(const std::shared_ptr<InFlight>& held, const Operands& operands,
                     c10::function_ref<c10::intrusive_ptr<c10d::Work>()> work);

}  // namespace torch::lms
