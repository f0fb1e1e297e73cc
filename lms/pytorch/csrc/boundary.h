// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/lms/collective.h>
#include <torch/csrc/lms/op_facts.h>
#include <torch/csrc/lms/operands.h>

#include <cstddef>
#include <memory>

// What is done at the op boundary, whichever way ops are intercepted (compat/interception.h).
namespace torch::lms {

// Bytes of tensors that one part of a foreach or fused-optimiser call may pin; 0: never split.
void set_part_bytes(size_t bytes);
size_t part_bytes() noexcept;

// Runs one call of an op with its operands pinned. `Call` is how the interception sees it:
//   const OpFacts& facts()       asked first, and only while Large Model Support is on
//   void operands(facts, out)    adds the storages of the arguments to an Operands
//   void run()                   the kernel
//   void each_result(f)          f(StorageImpl*) for each storage of the results; after `run`
//   bool in_parts(bytes, f)      of Kind::kForeach: f(Call& part) for each part of so many bytes;
//                                false, with nothing done, when the call is better left whole
//   intrusive_ptr<Work> work()   of Kind::kCollective: tells when it is done, may be null or throw
//                                c10::Error; after `run`
template <class Call>
void at_boundary(Call& call);

// ---- the implementation

template <class Call>
void run_collective(Call& call, const Operands& operands) {
  const auto held = std::make_shared<InFlight>(operands);
  call.run();
  hold_until_done(held, operands, [&call] { return call.work(); });
}

template <class Call>
void run_pinned(Call& call, const OpFacts& facts) {
  Operands operands;
  call.operands(facts, &operands);
  c10::cuda::lms::OpGuard guard;
  if (!operands.empty()) {
    guard.enter(operands.data(), operands.size());
  }
  if (C10_UNLIKELY(facts.kind == OpFacts::Kind::kCollective) && !operands.empty()) {
    run_collective(call, operands);
  } else {
    call.run();
  }
  guard.ran();
  if (facts.has_results) {
    c10::SmallVector<c10::StorageImpl*, 4> results;
    call.each_result([&](c10::StorageImpl* storage) { results.push_back(storage); });
    if (!results.empty()) {
      guard.results(results.data(), results.size());
    }
  }
}

template <class Call>
void at_boundary(Call& call) {
  if (!c10::cuda::lms::active()) {
    const c10::cuda::lms::UnpinnedOp unpinned;
    if (!c10::cuda::lms::active()) {
      call.run();
      return;
    }
  }
  const OpFacts& facts = call.facts();
  if (facts.touches_nothing()) {
    call.run();
    return;
  }
  const size_t part = facts.kind == OpFacts::Kind::kForeach ? part_bytes() : 0;
  if (part > 0 && call.in_parts(part, [&](Call& each) { run_pinned(each, facts); })) {
    return;
  }
  run_pinned(call, facts);
}

}  // namespace torch::lms
