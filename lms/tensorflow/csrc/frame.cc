// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/frame.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <typeinfo>
#include <utility>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/lists.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/lib/strings/strcat.h"

namespace tensorflow {
namespace lms {
namespace {

using EngineLock = std::lock_guard<std::recursive_mutex>;

// For ops that may never end: as long as BFCAllocator itself waits for memory that another may
// free.
constexpr int64_t kWaitMs = 10000;

// How often an op waits for another one's end rather than begin in a bad place.
constexpr int kPatientTries = 4;

// The part of a pool from which on operands are large: of a kernel with large ones, which may take
// many times as much, nothing is assumed before it has run.
constexpr int64_t kLarge = 64;

// Of a pool, the part that others leave is taken to be one of as many.
constexpr int64_t kUsed = 4;

thread_local OpFrame* running = nullptr;  // the frame of the kernel that this thread runs

bool IsResource(const Tensor& tensor) { return tensor.dtype() == DT_RESOURCE; }

// Whether a function's result goes to code that is not known to pin it: tf.data's threads read
// what their functions return.
bool ReturnsToStranger(OpKernelContext* context) {
  if (kPointersTakenUnseen) return true;
  CallFrameInterface* frame = context->call_frame();
  return frame != nullptr && typeid(*frame) != typeid(FunctionCallFrame);
}

// Makes movable what only the list refers to, whose own parts nobody shares.
void NoteList(const Tensor& tensor) {
  Runtime& runtime = Runtime::Get();
  std::vector<MovableBuffer*> made;
  const auto note = [&](const Tensor& listed) {
    MovableBuffer* buffer = runtime.Manageable(listed);
    const bool whole = DMAHelper::buffer(&listed) == buffer;
    if (buffer != nullptr && !buffer->tracked() && whole) made.push_back(buffer);
  };
  ForEachListed(tensor, note, /*nested=*/false);
  EngineLock lock(runtime.engine().mutex());
  for (MovableBuffer* buffer : made) {
    if (buffer->RefCountIsOne()) runtime.Track(buffer);
  }
}

// Calls `pin`, and `leave` when it finds no room, which lets go of what was pinned.
template <typename Pin, typename Leave>
bool TryPin(const Pin& pin, const Leave& leave, bool patient, std::string* shortage) {
  Runtime& runtime = Runtime::Get();
  ++runtime.busy;
  try {
    pin(patient);
    return true;
  } catch (const OutOfMemory& error) {
    *shortage = error.what();
  }
  leave();
  --runtime.busy;
  runtime.OnLeave();
  return false;
}

// Calls `pin` until it finds room, and counts its owner as busy then. Others may hold what is in
// the way: waits for their end, as long as there are any. The first times `pin` is told to be
// patient: to take a bad place for none.
template <typename Pin, typename Leave, typename Title>
Status WithRoom(const Pool* pool, const Pin& pin, const Leave& leave, const Title& title) {
  Runtime& runtime = Runtime::Get();
  std::string shortage;
  if (TryPin(pin, leave, /*patient=*/true, &shortage)) return Ok();
  mutex_lock turn(runtime.turn());
  const auto start = std::chrono::steady_clock::now();
  int64_t most = kWaitMs;
  bool last = false;
  for (int tries = 1;; ++tries) {
    const int64_t before = runtime.leaves();
    if (TryPin(pin, leave, /*patient=*/!last && tries < kPatientTries, &shortage)) return Ok();
    if (last) return errors::ResourceExhausted("OOM when ", title(), ": ", shortage);
    const int64_t seen = before + 1;  // it left itself
    const bool alone = runtime.busy.load() == 0 && runtime.leaves() == seen;
    if (pool != nullptr && pool->computing.load() > 0) most = Promises::kStuckMs;
    const auto time = std::chrono::steady_clock::now() - start;
    const int64_t left = most - std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
    last = alone || left <= 0 || !runtime.WaitForLeave(seen, left);
  }
}

}  // namespace

OpFrame::OpFrame(OpKernel* kernel, OpKernelContext* context)
    : kernel_(kernel),
      context_(context),
      facts_(FactsOf(*kernel)),
      pool_(Runtime::Get().PoolOf(context->device()->GetAllocator(AllocatorAttributes()))) {}

OpFrame::~OpFrame() {
  for (Var* var : variables_) var->Unref();
  TakePromiseBack();
}

void OpFrame::TakePromiseBack() {
  if (promised_) pool_->promises.TakeBack(promise_);
  promised_ = false;
}

void OpFrame::CountTaken(const Pool* pool, size_t bytes) {
  if (running != nullptr && running->pool_ == pool) running->taken_ += bytes;
}

void OpFrame::Run(const std::function<void()>& kernel) {
  OpFrame* const outer = running;
  running = this;
  kernel();
  running = outer;
}

void OpFrame::FindVariables() {
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (!context_->has_input(i) || context_->input_is_ref(i) || !IsResource(context_->input(i))) {
      continue;
    }
    const auto handles = context_->input(i).flat<ResourceHandle>();
    for (int64_t j = 0; j < handles.size(); ++j) {
      if (handles(j).hash_code() != VarTypeHash()) {
        other_resources_ = true;
        continue;
      }
      has_variable_ = true;
      Var* var = FindVar(context_, handles(j));
      if (var != nullptr) variables_.push_back(var);
    }
  }
}

bool OpFrame::KeepsInputs() const {
  if (other_resources_ || (facts_.keeps_inputs && !has_variable_)) return true;
  for (const DataType type : kernel_->output_types()) {
    if (type == DT_VARIANT && !facts_.handles_lists) return true;
  }
  for (const DataType type : kernel_->input_types()) {
    if ((type == DT_VARIANT && !facts_.handles_lists) || type == DT_STRING_REF) return true;
  }
  return facts_.returns && ReturnsToStranger(context_);
}

::lms::Access OpFrame::VariableAccess(Var* var) const {
  if (facts_.reads_variable && !var->copy_on_read_mode.load()) return ::lms::Access::kHold;
  return facts_.reads_variables ? ::lms::Access::kRead : ::lms::Access::kWrite;
}

void OpFrame::Hold(MovableBuffer* buffer) {
  const ::lms::Engine::Use use{buffer, ::lms::Access::kHold, 0, nullptr};
  Runtime::Get().engine().enter(frame_, &use, 1);
}

// Pins the variable's buffer where it is. The op is a user of the variable by now, so whoever gives
// it another buffer later pins that one as well.
void OpFrame::HoldVariable(Var* var, std::vector<Operand>* operands) {
  Runtime& runtime = Runtime::Get();
  tf_shared_lock variable(*var->mu());
  EngineLock lock(runtime.engine().mutex());
  const Tensor& tensor = *var->tensor();
  MovableBuffer* buffer = runtime.Manageable(tensor);
  if (buffer == nullptr) return;
  const bool tracked = buffer->tracked();
  if (!runtime.TrackIfAlone(tensor, buffer)) return;
  if (!tracked) runtime.PinForUsers(var, buffer);
  if (runtime.IsOnly(tensor)) runtime.TakeBack(buffer);
  Hold(buffer);
  operands->push_back({buffer, VariableAccess(var)});
}

void OpFrame::ForEachListedOperand(const std::function<void(const Tensor&)>& visit) const {
  if (!keeps_ && !facts_.reads_lists) return;
  std::vector<Tensor> lists;
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (!context_->has_input(i) || context_->input_is_ref(i)) continue;
    if (context_->input(i).dtype() == DT_VARIANT) lists.push_back(context_->input(i));
  }
  if (!keeps_ && facts_.adds_lists) return ForEachAdded(lists, visit);
  for (const Tensor& list : lists) ForEachListed(list, visit);
}

void OpFrame::PinOperands() {
  Runtime& runtime = Runtime::Get();
  std::vector<Operand> operands, of_variables;
  if (!variables_.empty()) {
    EngineLock lock(runtime.engine().mutex());
    for (Var* var : variables_) runtime.AddUser(var, this);
  }
  for (Var* var : variables_) HoldVariable(var, &of_variables);

  // A reference's mutex comes before the engine's. Others may give it another buffer at any time:
  // what it refers to does not move.
  std::vector<Tensor> references;
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (!context_->has_input(i) || !context_->input_is_ref(i)) continue;
    references.push_back(context_->mutable_input(i, /*lock_held=*/false));
  }
  EngineLock lock(runtime.engine().mutex());
  for (const Tensor& tensor : references) {
    MovableBuffer* buffer = runtime.Manageable(tensor);
    if (buffer != nullptr && buffer->tracked()) runtime.HandOut(buffer, false);
  }
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (!context_->has_input(i) || context_->input_is_ref(i)) continue;
    const Tensor& tensor = context_->input(i);
    MovableBuffer* buffer = runtime.Manageable(tensor);
    if (buffer == nullptr || !buffer->tracked()) continue;
    if (keeps_) {
      runtime.HandOut(buffer, false);
    } else if (runtime.IsOnly(tensor) &&
               !(IsEager(context_) && runtime.PointerTakenUnseen(buffer))) {
      runtime.TakeBack(buffer);
    }
    operands.push_back({buffer, ::lms::Access::kRead});
  }
  ForEachListedOperand([&](const Tensor& listed) {
    MovableBuffer* buffer = runtime.Manageable(listed);
    if (buffer == nullptr || !buffer->tracked()) return;
    if (keeps_) runtime.HandOut(buffer, false);
    operands.push_back({buffer, ::lms::Access::kRead});
  });
  for (const Operand& operand : of_variables) {
    // It may have died since the variable's mutex was released.
    if (runtime.IsTracked(operand.buffer)) operands.push_back(operand);
  }
  std::vector<::lms::Engine::Use> uses;
  for (const Operand& operand : operands) {
    uses.push_back({operand.buffer, operand.access, 0, runtime.StreamOf(operand.buffer)});
  }
  parts_ = static_cast<int64_t>(uses.size()) + 1;
  if (!uses.empty()) runtime.engine().enter(frame_, uses.data(), uses.size());
}

int64_t OpFrame::RoomBetween() const { return pool_->bytes / (kUsed * parts_); }

int64_t OpFrame::OperandBytes() const {
  Runtime& runtime = Runtime::Get();
  int64_t operands = 0;
  const auto add = [&](const Tensor& tensor) {
    const MovableBuffer* buffer = runtime.Manageable(tensor);
    if (buffer != nullptr && runtime.PoolOf(buffer->allocator()) == pool_) {
      operands += static_cast<int64_t>(buffer->size());
    }
  };
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (!context_->has_input(i) || context_->input_is_ref(i)) continue;
    add(context_->input(i));
  }
  ForEachListedOperand(add);
  for (Var* var : variables_) {
    tf_shared_lock variable(*var->mu());
    add(*var->tensor());
  }
  return operands;
}

// As long as nothing had to make way, an op has room. But what it does not have is known only when
// its operands cannot move any more, so the first that lacks it must be found before.
bool OpFrame::HasRoom() {
  if (pool_->tight.load(std::memory_order_relaxed)) return false;
  if (Runtime::HasPlenty(pool_)) return true;
  Footprints& footprints = Runtime::Get().footprints();
  operands_ = OperandBytes();
  const int64_t expected = facts_.gathers ? operands_ : footprints.Expect(*kernel_, operands_);
  if (expected == Footprints::kUnknown) {
    return operands_ < pool_->bytes / kLarge || !footprints.IsFirst(*kernel_, operands_);
  }
  const size_t wanted = BfcAccess::RoundedBytes(static_cast<size_t>(expected));
  if (BfcAccess::CanTake(pool_->allocator, wanted)) return true;
  pool_->tight = true;
  return false;
}

void OpFrame::AwaitPromise() {
  if (pool_ == nullptr || running != nullptr || HasRoom()) return;  // or part of an op that runs
  Runtime& runtime = Runtime::Get();
  operands_ = OperandBytes();
  expected_ = runtime.footprints().Expect(*kernel_, operands_);
  if (expected_ == Footprints::kUnknown && operands_ < pool_->bytes / kLarge) expected_ = operands_;
  const int64_t room = runtime.Promisable(pool_);
  const int64_t taken = expected_ != Footprints::kUnknown ? expected_
                        : computes_                       ? room
                                                          : operands_;
  expected_ = std::min(expected_, std::max<int64_t>(room - operands_, 0));
  promise_ = {operands_ + taken, computes_};
  pool_->promises.Give(promise_, room);
  promised_ = true;
}

// Pins the operands anywhere but where the kernel's room is, which is held meanwhile.
void OpFrame::PinBeside() {
  Runtime& runtime = Runtime::Get();
  void* const room = runtime.MakeHole(pool_, expected_) ? runtime.Hold(pool_, expected_) : nullptr;
  try {
    PinOperands();
    runtime.Release(pool_, room);
  } catch (const OutOfMemory&) {
    Leave();
    runtime.Release(pool_, room);
    PinOperands();
  }
}

// Pins the operands where they leave room for what the kernel will take. It cannot give them up
// once it runs, so one that lies in the middle of the pool halves the largest request that can be
// met.
void OpFrame::PinWithHole(bool patient) {
  Runtime& runtime = Runtime::Get();
  const bool unknown = promised_ && expected_ == Footprints::kUnknown;
  if (unknown && !evicted_) runtime.EvictIdle(pool_);  // it may take most of the pool
  evicted_ = true;
  PinOperands();
  if (!promised_ || unknown || expected_ < RoomBetween() || runtime.MakeHole(pool_, expected_)) {
    return;
  }
  Leave();
  runtime.MakeHole(pool_, operands_ + expected_);  // they may be in the way themselves
  PinOperands();
  if (runtime.MakeHole(pool_, expected_)) return;
  Leave();
  PinBeside();
  if (patient && pool_->computing.load() > 0 && !runtime.MakeHole(pool_, expected_)) {
    throw OutOfMemory("operands of other operations are in the way");
  }
}

Status OpFrame::Enter() {
  FindVariables();
  keeps_ = KeepsInputs();
  computes_ = kernel_->AsAsync() == nullptr && !keeps_;
  AwaitPromise();
  const auto leave = [this] {
    Leave();
    if (promised_) pool_->promises.SetComputes(&promise_, false);
  };
  const auto title = [this] {
    return strings::StrCat("bringing in the inputs of ", kernel_->name(), " (",
                           std::string(kernel_->type_string()), ")");
  };
  TF_RETURN_IF_ERROR(WithRoom(pool_, [this](bool patient) { PinWithHole(patient); }, leave, title));
  if (computes_ && pool_ != nullptr) {
    ++pool_->computing;
    if (promised_ && !promise_.computes) pool_->promises.SetComputes(&promise_, true);
  }
  return Ok();
}

// An output that was given a tracked buffer has written it, in place of an input. One that holds
// the only reference to its buffer makes it movable.
void OpFrame::NoteOutputs() {
  Runtime& runtime = Runtime::Get();
  const bool ok = context_->status().ok();
  for (int i = 0; i < context_->num_outputs(); ++i) {
    if (IsRefType(context_->expected_output_dtype(i))) continue;
    Tensor* tensor = context_->mutable_output(i);
    if (tensor == nullptr) continue;
    const bool seen = !(kPointersTakenUnseen && IsEager(context_));
    // A list that is added to no other is passed on.
    const bool made = facts_.makes_list && (!facts_.adds_lists || context_->num_inputs() > 1);
    if (made && ok && seen) NoteList(*tensor);
    MovableBuffer* buffer = runtime.Manageable(*tensor);
    if (buffer == nullptr) continue;
    EngineLock lock(runtime.engine().mutex());
    const bool to_python = IsEager(context_) && runtime.PointerTakenUnseen(buffer);
    if (buffer->tracked()) {
      const bool as_it_was = facts_.reads_variable || facts_.takes_from_list;
      if (!as_it_was) runtime.engine().written(buffer);
      if (to_python) runtime.HandOut(buffer, /*unless_pinned=*/false);
    } else if (to_python) {
      continue;
    } else if (ok) {
      runtime.TrackIfAlone(*tensor, buffer);
    }
  }
}

// The variables may have other buffers now.
void OpFrame::NoteVariables() {
  Runtime& runtime = Runtime::Get();
  for (Var* var : variables_) {
    if (VariableAccess(var) != ::lms::Access::kWrite) continue;
    tf_shared_lock variable(*var->mu());
    EngineLock lock(runtime.engine().mutex());
    const Tensor& tensor = *var->tensor();
    MovableBuffer* buffer = runtime.Manageable(tensor);
    if (buffer == nullptr || !runtime.TrackIfAlone(tensor, buffer)) continue;
    runtime.engine().written(buffer);
    runtime.PinForUsers(var, buffer);
  }
}

void OpFrame::Leave() {
  Runtime& runtime = Runtime::Get();
  EngineLock lock(runtime.engine().mutex());
  for (Var* var : variables_) runtime.RemoveUser(var, this);
  runtime.engine().leave(frame_);
}

void OpFrame::Exit() {
  NoteOutputs();
  NoteVariables();
  Leave();
  Runtime& runtime = Runtime::Get();
  // Of what is small enough, Expect knows no less.
  const bool small = promised_ && taken_ <= operands_ && operands_ < pool_->bytes / kLarge;
  if (promised_ && !small && context_->status().ok()) {
    runtime.footprints().Note(*kernel_, operands_, taken_);
  }
  TakePromiseBack();
  if (computes_ && pool_ != nullptr) --pool_->computing;
  --runtime.busy;
  runtime.OnLeave();
}

void Compute(OpKernel* kernel, OpKernelContext* context, const std::function<void()>& run) {
  if (!Runtime::Active()) {
    auto* counter = Runtime::BeginUnpinned();
    if (!Runtime::Active()) {  // still: enabling waits for this op now
      run();
      Runtime::EndUnpinned(counter);
      return;
    }
    Runtime::EndUnpinned(counter);
  }
  if (OpFrame::IsTransparent(*kernel, context)) {
    run();
    return;
  }
  OpFrame frame(kernel, context);
  const Status status = frame.Enter();
  if (!status.ok()) {
    context->SetStatus(status);
    return;
  }
  frame.Run(run);
  frame.Exit();
}

void Compute(OpKernel* kernel, OpKernelContext* context) {
  Compute(kernel, context, [kernel, context] { kernel->Compute(context); });
}

void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done,
                  const std::function<void(AsyncOpKernel::DoneCallback)>& run) {
  // Not counted before the first enable: such an op may wait for others for ever, and holds
  // references to its inputs, which keeps them from becoming movable.
  if (!Runtime::EverActive() || OpFrame::IsTransparent(*kernel, context)) {
    run(std::move(done));
    return;
  }
  auto* frame = new OpFrame(kernel, context);
  const Status status = frame->Enter();
  if (!status.ok()) {
    delete frame;
    context->SetStatus(status);
    done();
    return;
  }
  run([frame, done]() {
    frame->Exit();
    delete frame;
    done();
  });
}

void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context,
                  AsyncOpKernel::DoneCallback done) {
  ComputeAsync(kernel, context, std::move(done), [kernel, context](AsyncOpKernel::DoneCallback d) {
    kernel->ComputeAsync(context, std::move(d));
  });
}

bool PinForCopy(const Tensor& tensor, std::function<void(const Status&)>* done) {
  if (!Runtime::Active()) return true;
  Runtime& runtime = Runtime::Get();
  MovableBuffer* buffer = runtime.Manageable(tensor);
  if (buffer == nullptr || !buffer->tracked()) return true;
  auto frame = std::make_shared<::lms::Engine::Frame>();
  const ::lms::Engine::Use use{buffer, ::lms::Access::kRead, 0, runtime.StreamOf(buffer)};
  const Status status = WithRoom(
      runtime.PoolOf(buffer->allocator()), [&](bool) { runtime.engine().enter(*frame, &use, 1); },
      [&] { runtime.engine().leave(*frame); }, [] { return "copying a tensor"; });
  if (!status.ok()) {
    (*done)(status);
    return false;
  }
  const auto then = *done;
  *done = [frame, then](const Status& status) {
    Runtime& runtime = Runtime::Get();
    runtime.engine().leave(*frame);
    --runtime.busy;
    runtime.OnLeave();
    then(status);
  };
  return true;
}

void NoteConstant(const Tensor& tensor) {
  if (!Runtime::Active()) return;
  Runtime& runtime = Runtime::Get();
  MovableBuffer* buffer = runtime.Manageable(tensor);
  if (buffer == nullptr) return;
  EngineLock lock(runtime.engine().mutex());
  runtime.Track(buffer);
}

bool OpFrame::IsTransparent(const OpKernel& kernel, OpKernelContext* context) {
  const OpFacts& facts = FactsOf(kernel);
  if (facts.returns) return !ReturnsToStranger(context);
  if (facts.sends) return SendsWithinProcess(kernel);
  if (!facts.by_reference) return false;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->has_input(i) && context->input_is_ref(i)) return false;
  }
  return true;
}

}  // namespace lms
}  // namespace tensorflow
