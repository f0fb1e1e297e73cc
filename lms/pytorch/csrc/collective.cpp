// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/storage.h>
#include <torch/csrc/lms/collective.h>

namespace torch::lms {

// By way of another constructor, so that the destructor undoes what was done when a pin throws.
InFlight::InFlight(const Operands& operands) : InFlight() {
  storages_.reserve(operands.size());
  for (const auto& use : operands) {
    storages_.push_back(c10::cuda::lms::reference_to(use.storage));
    pin_last();
  }
}

InFlight::~InFlight() {
  for (const auto& storage : storages_) {
    c10::cuda::lms::unpin(storage.get());
  }
}

void InFlight::follow() const {
  for (const auto& storage : storages_) {
    c10::cuda::lms::pin(storage.get());
    c10::cuda::lms::unpin(storage.get());
  }
}

void InFlight::pin_last() {
  try {
    c10::cuda::lms::pin(storages_.back().get());
  } catch (...) {
    storages_.pop_back();
    throw;
  }
}

void hold_until_done(const std::shared_ptr<InFlight>& held, const Operands& operands,
                     c10::function_ref<c10::intrusive_ptr<c10d::Work>()> work) {
  try {
    if (const auto running = work()) {
      running->getFuture()->addCallback([held](c10::ivalue::Future&) { held->follow(); });
      return;
    }
  } catch (const c10::Error&) {  // this backend has no futures
  }
  for (const auto& use : operands) {
    c10::cuda::lms::expose(use.storage);
  }
}

}  // namespace torch::lms
