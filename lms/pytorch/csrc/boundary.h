// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <c10/cuda/lms/compat/storage.h>
#include <c10/cuda/lms/core/crowd.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/lms/compat/collectives.h>
#include <torch/csrc/lms/compat/random.h>
#include <torch/csrc/lms/foreach.h>
#include <torch/csrc/lms/op_facts.h>
#include <torch/csrc/lms/operands.h>
#include <torch/csrc/lms/storages.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

// What is done at the op boundary, whichever way ops are intercepted (compat/interception.h).
namespace torch::lms {

// Bytes of tensors that one part of a foreach or fused-optimiser call may pin, where the device has
// not less room by then; 0: never split. Parts are not made smaller than kLeastPart for want of it:
// smaller ones take more launches for little room, larger ones make the call fail where there is
// less.
constexpr size_t kLeastPart = size_t{1} << 20;
void set_part_bytes(size_t bytes);
size_t part_bytes() noexcept;

// Runs one call of an op with its operands pinned. `Call` is how the interception sees it:
//   const OpFacts& facts()       asked before all that takes them
//   void operands(facts, out)    adds the storages of the arguments to an Operands
//   void run()                   the kernel
//   Arguments arguments()        a copy of them: `run` uses them up
//   void set_arguments(a)        for it to run once more
//   void each_written(facts, f)  f(Tensor) for each argument that is written; an undefined one for
//                                what is no tensor
//   CudaGenerator generator(d)   that random numbers are taken from on device `d`
//   void each_result(f)          f(StorageImpl*) for each storage of the results; after `run`
//   bool in_parts(bytes, f)      of Kind::kForeach: f(Call& part, Room) for each part of so many
//                                bytes, and smaller ones when that returns false; false, with
//                                nothing done, when the call is better left whole
//   Work work()                  of Kind::kCollective: tells when it is done, may be null; after
//                                `run`
template <class Call>
void at_boundary(Call& call);

// What `make` makes on the device, known from then on or, while it is off, from when it is on
// again. It runs again when it finds no room.
template <class Make>
at::Tensor make_known(const Make& make);

// ---- the implementation

using c10::cuda::lms::detail::Thread;

template <class Call>
C10_ALWAYS_INLINE Operands operands_of(const Call& call, const OpFacts& facts) {
  Operands operands;
  call.operands(facts, &operands);
  return operands;
}

// Runs `step`. False when it found no room, if that is to be told.
template <class Step>
C10_ALWAYS_INLINE bool finds_room(Thread& mine, Room room, const Step& step) {
  if (C10_UNLIKELY(room == Room::kThrow)) {
    step();
    return true;
  }
  const c10::cuda::lms::ShortageScope scope(/*sparing=*/room == Room::kSpare, mine);
  try {
    step();
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
  return true;
}

// Runs `attempt(Room)`, which tells whether it found room, until it does: at first as said, then in
// its turn, and at last so that it says what is missing. Only once where what it is part of runs
// again.
template <class Attempt>
C10_ALWAYS_INLINE void run_until_room(Thread& mine, Room first, const Attempt& attempt) {
  const auto again = [&attempt] { return attempt(Room::kTell); };
  if (C10_UNLIKELY(c10::cuda::lms::ShortageScope::active(mine) ||
                   !(attempt(first) || c10::cuda::lms::try_again(again)))) {
    attempt(Room::kThrow);
  }
}

// Pins the operands while it lives.
class Entered {
 public:
  explicit Entered(Thread& mine) : mine_(mine) {}

  C10_ALWAYS_INLINE bool enter(const OpFacts& facts, Operands& operands, Room room) {
    guard_.emplace(facts.independent, mine_);
    const bool entered = operands.empty() || finds_room(mine_, room, [&] {
                           guard_->enter(operands.data(), operands.size(), facts.name.c_str(),
                                         operands.one_device());
                         });
    if (!entered) {
      guard_.reset();
    }
    return entered;
  }

  template <class Call>
  void run(Call& call, const OpFacts& facts, const Operands& operands) {
    if (C10_UNLIKELY(facts.kind == OpFacts::Kind::kCollective) && !operands.empty()) {
      run_collective(call, operands);
    } else {
      call.run();
    }
    guard_->ran();
    if (facts.has_results) {
      results_.clear();
      call.each_result([this](c10::StorageImpl* storage) {
        results_.push_back({storage, c10::cuda::lms::Access::kWrite, nullptr});
      });
      if (!results_.empty()) {
        guard_->results(results_.data(), results_.size());
      }
    }
  }

 private:
  Thread& mine_;
  c10::SmallVector<c10::cuda::lms::Use, 4> results_;
  std::optional<c10::cuda::lms::OpGuard> guard_;  // ends before what it is given
};

// The sizes of what a call is given for its results, or to be resized. A kernel that finds no
// memory for them has changed them by then: they say more than is there.
class ResultSizes {
 public:
  template <class Call>
  ResultSizes(const Call& call, const OpFacts& facts) {
    if (facts.resizes) {
      kept_ = std::make_unique<std::vector<Kept>>();
      call.each_written(facts, [this](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.layout() == at::kStrided) {
          const auto sizes = tensor.sizes(), strides = tensor.strides();
          kept_->push_back(
              {tensor, {sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}});
        }
      });
    }
  }

  void put_back() const {
    if (kept_ == nullptr) {
      return;
    }
    for (const Kept& kept : *kept_) {
      if (!kept.tensor.sizes().equals(kept.sizes) || !kept.tensor.strides().equals(kept.strides)) {
        kept.tensor.unsafeGetTensorImpl()->set_sizes_and_strides(kept.sizes, kept.strides);
      }
    }
  }

 private:
  struct Kept {
    at::Tensor tensor;
    c10::SmallVector<int64_t, 6> sizes, strides;
  };
  std::unique_ptr<std::vector<Kept>> kept_;  // of most ops null
};

// c10 counts a storage that it copies on a write as one less that shares the bytes, also where it
// then finds no room for the copy. Another try would take the bytes for the storage's own.
inline void check_runs_again(const Operands& operands) {
  for (const auto& use : operands) {
    const bool may_be_miscounted =
        use.access != c10::cuda::lms::Access::kRead &&
        c10::cuda::lms::shares_bytes(c10::cuda::lms::glance(*storage_of(use)).pointer());
    TORCH_CHECK_WITH(OutOfMemoryError, !may_be_miscounted,
                     "CUDA out of memory in an operator that writes to a lazy clone. ",
                     c10::cuda::lms::describe(operands.device().index()));
  }
}

// False when it found no room: for its operands, or in its kernel where that is to be told, too.
template <class Call>
bool run_pinned(Thread& mine, Call& call, const OpFacts& facts, Operands& operands, Room room,
                Room kernel) {
  Entered entered(mine);
  if (!entered.enter(facts, operands, room)) {
    return false;
  }
  if (finds_room(mine, kernel, [&] { entered.run(call, facts, operands); })) {
    return true;
  }
  check_runs_again(operands);
  return false;
}

// Whether what the call is given for its results (out=) is `empty(0)`.
template <class Call>
bool results_are_blank(const Call& call, const OpFacts& facts) {
  bool blank = true;
  call.each_written(facts, [&](const at::Tensor& tensor) {
    blank = blank && tensor.defined() && tensor.layout() == at::kStrided && tensor.dim() == 1 &&
            tensor.numel() == 0 && c10::cuda::lms::nbytes_of(*storage_of(tensor)) == 0;
  });
  return blank;
}

// Whether the kernel can run again when it has found no room, and may come to that. A graph would
// have captured the first run, too, and what is captured elsewhere may take from the generator.
template <class Call>
bool repeatable(const Call& call, const OpFacts& facts, const Operands& operands) {
  const bool can =
      facts.repeatable ? may_lack_room(operands) : facts.fills && results_are_blank(call, facts);
  return can && !operands.empty() && !c10::cuda::lms::in_capture() &&
         !(facts.random && c10::cuda::lms::capture_underway());
}

// The ops that take random numbers.
inline ::lms::Crowd& random_ops() {
  static auto* ops = new ::lms::Crowd;  // leaked, as the engine is
  return *ops;
}

using RandomOp = ::lms::Crowd::Member;

// How many random numbers were taken from the generator of the call; 0 when it takes none.
template <class Call>
uint64_t numbers_taken(const Call& call, const OpFacts& facts, c10::Device device) {
  if (!facts.random) {
    return 0;
  }
  CudaGenerator generator = call.generator(device);
  const std::lock_guard<std::mutex> lock(mutex_of(generator));
  return random_offset(generator);
}

// Puts back what the call has taken since. False when that may be another op's.
template <class Call>
bool put_back(const Call& call, const RandomOp& random, c10::Device device, uint64_t taken) {
  CudaGenerator generator = call.generator(device);
  const std::lock_guard<std::mutex> lock(mutex_of(generator));
  if (random_offset(generator) == taken) {
    return true;
  }
  return random.if_alone([&] { set_random_offset(generator, taken); });
}

// One that may be run again is, when it found no room: without the pins of other threads' ops and
// with its operands side by side, because all that was idle has left before they come in.
template <class Call>
void run_repeatable(Thread& mine, Call& call, const OpFacts& facts, Operands& operands,
                    const ResultSizes& sizes) {
  const auto arguments = call.arguments();
  const RandomOp random(facts.random ? &random_ops() : nullptr);
  const uint64_t taken = numbers_taken(call, facts, operands.device());
  const auto rewind = [&] {
    call.set_arguments(arguments);
    sizes.put_back();
    TORCH_CHECK_WITH(OutOfMemoryError,
                     !facts.random || put_back(call, random, operands.device(), taken),
                     "CUDA out of memory in an operator that has taken random numbers, as others "
                     "have meanwhile. ",
                     c10::cuda::lms::describe(operands.device().index()));
  };
  const auto run = [&](Room room) { return run_pinned(mine, call, facts, operands, room, room); };
  // What takes random numbers may not run again when others have as well.
  if (run(facts.random ? Room::kTell : Room::kSpare)) {
    return;
  }
  const bool done = c10::cuda::lms::try_again([&] {
    rewind();
    return run(Room::kTell);
  });
  if (!done) {
    rewind();
    run(Room::kThrow);  // which says what is missing
  }
}

// Of one that may not, only the entry is tried again.
template <class Call>
void run_once(Thread& mine, Call& call, const OpFacts& facts, Operands& operands) {
  const RandomOp random(facts.random ? &random_ops() : nullptr);
  Entered entered(mine);
  run_until_room(mine, Room::kSpare,
                 [&](Room room) { return entered.enter(facts, operands, room); });
  entered.run(call, facts, operands);
}

template <class Call>
C10_ALWAYS_INLINE void run_whole(Call& call, const OpFacts& facts) {
  Thread& mine = c10::cuda::lms::detail::this_thread();
  Operands operands = operands_of(call, facts);
  const ResultSizes sizes(call, facts);
  try {
    if (C10_UNLIKELY(
            c10::cuda::lms::ShortageScope::active(mine))) {  // what it is part of runs again
      run_pinned(mine, call, facts, operands, Room::kThrow, Room::kThrow);
    } else if (repeatable(call, facts, operands)) {
      run_repeatable(mine, call, facts, operands, sizes);
    } else {
      run_once(mine, call, facts, operands);
    }
  } catch (const c10::OutOfMemoryError&) {
    sizes.put_back();
    throw;
  }
}

// In parts that fit, of the usual size or, when another process has taken memory since that was
// found, of less.
template <class Call>
void run_foreach(Call& call, const OpFacts& facts, size_t part) {
  const auto run = [&facts](auto& each, Room room) {
    if (room == Room::kTell) {
      const Room kernel = facts.repeatable ? room : Room::kThrow;
      Operands operands = operands_of(each, facts);
      return run_pinned(c10::cuda::lms::detail::this_thread(), each, facts, operands, room, kernel);
    }
    run_whole(each, facts);
    return true;
  };
  if (part == 0) {
    run_whole(call, facts);
    return;
  }
  if (call.in_parts(part, run)) {
    return;
  }
  const auto arguments = call.arguments();
  if (run(call, Room::kTell)) {
    return;
  }
  call.set_arguments(arguments);
  while (part > kLeastPart) {
    part /= 2;
    if (call.in_parts(part, run)) {
      return;
    }
  }
  run_whole(call, facts);
}

// Of what was made without pins, within an UnpinnedOp.
inline void note_made(c10::StorageImpl* storage) {
  if (C10_LIKELY(c10::cuda::lms::nbytes_of(*storage) < c10::cuda::lms::least_noted())) {
    return;
  }
  if (!c10::cuda::lms::active()) {
    c10::cuda::lms::note_later(storage);
  } else {  // meanwhile it was turned on
    c10::cuda::lms::note(storage);
  }
}

template <class Make>
at::Tensor make_known(const Make& make) {
  at::Tensor made;
  if (!c10::cuda::lms::active()) {
    made = make();
    const c10::cuda::lms::UnpinnedOp unpinned;
    each_storage(made, [](const at::Tensor&, c10::StorageImpl* storage) { note_made(storage); });
    return made;
  }
  Thread& mine = c10::cuda::lms::detail::this_thread();
  run_until_room(mine, Room::kTell, [&](Room room) {
    const c10::cuda::lms::MakingScope making;
    if (!finds_room(mine, room, [&] { made = make(); })) {
      return false;
    }
    each_storage(
        made, [](const at::Tensor&, c10::StorageImpl* storage) { c10::cuda::lms::note(storage); });
    return true;
  });
  return made;
}

template <class Call>
void at_boundary(Call& call) {
  if (C10_UNLIKELY(!c10::cuda::lms::active())) {
    const c10::cuda::lms::UnpinnedOp unpinned;
    if (!c10::cuda::lms::active()) {
      call.run();
      if (call.facts().has_results) {
        call.each_result(&note_made);
      }
      return;
    }
  }
  const OpFacts& facts = call.facts();
  if (C10_UNLIKELY(facts.touches_nothing())) {
    call.run();
    return;
  }
  if (facts.kind == OpFacts::Kind::kForeach) {
    run_foreach(call, facts, part_bytes());
  } else {
    run_whole(call, facts);
  }
}

}  // namespace torch::lms
