// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/lms/collective.h>
#include <torch/csrc/lms/foreach.h>
#include <torch/csrc/lms/op_facts.h>
#include <torch/csrc/lms/operands.h>

#include <cstddef>
#include <memory>

// What is done at the op boundary, whichever way ops are intercepted (compat/interception.h).
namespace torch::lms {

// Bytes of tensors that one part of a foreach or fused-optimiser call may pin, where the device has
// not less room by then; 0: never split. Parts are not made smaller than kLeastPart for want of it.
constexpr size_t kLeastPart = size_t{1} << 20;
void set_part_bytes(size_t bytes);
size_t part_bytes() noexcept;

// Runs one call of an op with its operands pinned. `Call` is how the interception sees it:
//   const OpFacts& facts()       asked first, and only while Large Model Support is on
//   void operands(facts, out)    adds the storages of the arguments to an Operands
//   void run()                   the kernel
//   void each_result(f)          f(StorageImpl*) for each storage of the results; after `run`
//   bool in_parts(bytes, f)      of Kind::kForeach: f(Call& part, Room) for each part of so many
//                                bytes, and smaller ones when that returns false; false, with
//                                nothing done, when the call is better left whole
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

// False, with nothing done, when its operands found no room together, unless that is to be told.
template <class Call>
bool run_pinned(Call& call, const OpFacts& facts, Room room = Room::kThrow) {
  Operands operands;
  call.operands(facts, &operands);
  c10::cuda::lms::OpGuard guard;
  try {
    if (!operands.empty()) {
      guard.enter(operands.data(), operands.size());
    }
  } catch (const c10::OutOfMemoryError&) {
    if (room == Room::kThrow) {
      throw;
    }
    return false;
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
  return true;
}

// In parts that fit, of the usual size or, when another process has taken memory since that was
// found, of less.
template <class Call>
void run_foreach(Call& call, const OpFacts& facts, size_t part) {
  const auto run = [&facts](Call& each, Room room) { return run_pinned(each, facts, room); };
  if (part == 0) {
    run_pinned(call, facts);
    return;
  }
  if (call.in_parts(part, run) || run(call, Room::kTell)) {
    return;
  }
  while (part > kLeastPart) {
    part /= 2;
    if (call.in_parts(part, run)) {
      return;
    }
  }
  run_pinned(call, facts);  // it is short of memory, and says so
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
  if (facts.kind == OpFacts::Kind::kForeach) {
    run_foreach(call, facts, part_bytes());
  } else {
    run_pinned(call, facts);
  }
}

}  // namespace torch::lms
