// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/frame.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <typeinfo>
#include <utility>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/core/placement.h"
#include "tensorflow/core/common_runtime/lms/core/turns.h"
#include "tensorflow/core/common_runtime/lms/lists.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/lib/core/errors.h"

namespace tensorflow {
namespace lms {
namespace {

using EngineLock = std::lock_guard<std::recursive_mutex>;

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

}  // namespace

OpFrame::OpFrame(OpKernel* kernel, OpKernelContext* context)
    : kernel_(kernel),
      context_(context),
      facts_(FactsOf(*kernel)),
      pool_(Runtime::Get().PoolOf(context->device()->GetAllocator(AllocatorAttributes()))) {}

OpFrame::~OpFrame() {
  for (Var* var : variables_) var->Unref();
  if (pool_ != nullptr) pool_->admission.end(&op_, ::lms::Demand::kUnknown);
}

void OpFrame::CountTaken(const Pool* pool, size_t bytes) {
  if (running != nullptr && running->pool_ == pool) running->taken_ += bytes;
}

void OpFrame::NoteShortage(Pool* pool, size_t bytes) {
  if (running == nullptr || running->pool_ != pool) return;
  running->refused_ = Runtime::Get().Shortage(pool, bytes);
}

// The kernel's own words say no more than the shape that it could not have.
void OpFrame::Explain() {
  if (refused_.empty() || !errors::IsResourceExhausted(context_->status())) return;
  // The context offers no way to say more of an error.
  errors::AppendToMessage(const_cast<Status*>(&context_->status()), refused_);
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
  pinned_ = uses.size();
  if (!uses.empty()) runtime.engine().enter(frame_, uses.data(), uses.size());
  if (pool_ != nullptr) runtime.NotePeaks(pool_);
}

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

// A kernel may be where another was, and have the name of another.
::lms::OpId OpFrame::Id() const {
  return std::hash<std::string>()(kernel_->name()) ^ std::hash<const OpKernel*>()(kernel_);
}

void OpFrame::AwaitReservation() {
  const bool nested = running != nullptr;  // part of an op that has its own
  if (pool_ == nullptr || nested || pool_->admission.begins_unseen()) return;
  op_.id = Id();
  op_.operand_bytes = OperandBytes();
  op_.gathers = facts_.gathers;
  pool_->admission.ask(&op_);
}

bool OpFrame::pin() {
  try {
    PinOperands();
    return true;
  } catch (const OutOfMemory& error) {
    shortage_ = error.what();
  }
  Leave();
  return false;
}

void OpFrame::unpin() {
  Leave();
  shortage_ = "operands of other operations are in the way";
}

Status OpFrame::Enter() {
  FindVariables();
  keeps_ = KeepsInputs();
  op_.independent = kernel_->AsAsync() == nullptr && !keeps_;
  AwaitReservation();
  ::lms::Turns& turns = Runtime::Get().turns();
  bool begun = false;
  if (pool_ == nullptr) {
    begun = turns.begin([this](::lms::Patience) { return pin(); }, [] { return false; });
  } else {
    ::lms::Placement placement(*pool_, pool_->admission, *this);
    const auto place = [&](::lms::Patience patience) {
      if (placement.place(op_, patience)) return true;
      pool_->admission.suspend(&op_);
      return false;
    };
    begun = turns.begin(place, [this] { return pool_->admission.others_end(); });
  }
  if (!begun) {
    return errors::ResourceExhausted("OOM when bringing in the inputs of ", kernel_->name(), " (",
                                     std::string(kernel_->type_string()), "): ", shortage_);
  }
  if (pool_ != nullptr) pool_->admission.run(&op_);
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
  Explain();
  NoteOutputs();
  NoteVariables();
  Leave();
  if (pool_ != nullptr) {
    pool_->admission.end(&op_, context_->status().ok() ? taken_ : ::lms::Demand::kUnknown);
  }
  Runtime::Get().turns().end();
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
  std::string shortage;
  const auto pin = [&](::lms::Patience) {
    try {
      runtime.engine().enter(*frame, &use, 1);
      return true;
    } catch (const OutOfMemory& error) {
      shortage = error.what();
    }
    runtime.engine().leave(*frame);
    return false;
  };
  const Pool* pool = runtime.PoolOf(buffer->allocator());
  if (!runtime.turns().begin(pin, [pool] { return pool->admission.others_end(); })) {
    (*done)(errors::ResourceExhausted("OOM when copying a tensor: ", shortage));
    return false;
  }
  runtime.NotePeaks(runtime.PoolOf(buffer->allocator()));
  const auto then = *done;
  *done = [frame, then](const Status& status) {
    Runtime& runtime = Runtime::Get();
    runtime.engine().leave(*frame);
    runtime.turns().end();
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
