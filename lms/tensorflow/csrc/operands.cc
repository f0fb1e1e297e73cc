// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/operands.h"

#include <string>
#include <typeinfo>
#include <vector>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/adoption.h"
#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/lists.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/statistics.h"
#include "tensorflow/core/framework/function.h"

namespace tensorflow {
namespace lms {
namespace {

bool IsResource(const Tensor& tensor) { return tensor.dtype() == DT_RESOURCE; }

// Makes movable what only the list refers to, whose own parts nobody shares.
void NoteList(const Tensor& tensor) {
  Runtime& runtime = Runtime::Get();
  std::vector<MovableBuffer*> made;
  const auto note = [&](const Tensor& listed) {
    MovableBuffer* buffer = Tracker::Manageable(listed);
    const bool whole = DMAHelper::buffer(&listed) == buffer;
    if (buffer != nullptr && !buffer->tracked() && whole) made.push_back(buffer);
  };
  ForEachListed(tensor, note, /*nested=*/false);
  EngineLock lock(runtime.engine.mutex());
  for (MovableBuffer* buffer : made) {
    if (buffer->RefCountIsOne()) runtime.tracker.Track(buffer);
  }
}

}  // namespace

bool ReturnsToExternalCaller(OpKernelContext* context) {
  if (kPointersTakenUnseen) return true;
  CallFrameInterface* frame = context->call_frame();
  return frame != nullptr && typeid(*frame) != typeid(FunctionCallFrame);
}

Operands::Operands(OpKernel* kernel, OpKernelContext* context, Pool* pool)
    : kernel_(kernel), context_(context), facts_(FactsOf(*kernel)), pool_(pool) {
  FindVariables();
  kept_ = AreKept();
}

Operands::~Operands() {
  for (Var* var : variables_) var->Unref();
}

void Operands::NoteResults() {
  NoteOutputs();
  NoteVariables();
}

void Operands::FindVariables() {
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

bool Operands::AreKept() const {
  if (other_resources_ || (facts_.keeps_inputs && !has_variable_)) return true;
  for (const DataType type : kernel_->output_types()) {
    if (type == DT_VARIANT && !facts_.handles_lists) return true;
  }
  for (const DataType type : kernel_->input_types()) {
    if ((type == DT_VARIANT && !facts_.handles_lists) || type == DT_STRING_REF) return true;
  }
  return facts_.returns && ReturnsToExternalCaller(context_);
}

// The host reads what is there already.
::lms::Access Operands::InputAccess(const MovableBuffer* buffer) const {
  const bool in_place = facts_.on_host && Runtime::Get().pools.Of(buffer->allocator())->on_cpu;
  return in_place ? ::lms::Access::kInPlace : ::lms::Access::kRead;
}

::lms::Access Operands::VariableAccess(Var* var) const {
  if (facts_.reads_variable && !var->copy_on_read_mode.load()) return ::lms::Access::kHold;
  return facts_.reads_variables ? ::lms::Access::kRead : ::lms::Access::kWrite;
}

void Operands::Hold(MovableBuffer* buffer) {
  const ::lms::Use use{buffer, ::lms::Access::kHold, nullptr};
  Runtime::Get().engine.enter(frame_, &use, 1);
}

// Pins the variable's buffer where it is. The op is a user of the variable by now, so whoever gives
// it another buffer later pins that one as well.
void Operands::HoldVariable(Var* var, std::vector<Use>* operands) {
  Runtime& runtime = Runtime::Get();
  tf_shared_lock variable(*var->mu());
  EngineLock lock(runtime.engine.mutex());
  const Tensor& tensor = *var->tensor();
  MovableBuffer* buffer = Tracker::Manageable(tensor);
  if (buffer == nullptr) return;
  const bool tracked = buffer->tracked();
  if (!runtime.tracker.TrackIfAlone(tensor, buffer)) return;
  if (!tracked) runtime.variables.PinFor(var, buffer);
  if (Tracker::IsOnly(tensor)) runtime.tracker.Unexpose(buffer);
  Hold(buffer);
  operands->push_back({buffer, VariableAccess(var)});
}

void Operands::ForEachListedOperand(const std::function<void(const Tensor&)>& visit) const {
  if (!kept_ && !facts_.reads_lists) return;
  std::vector<Tensor> lists;
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (!context_->has_input(i) || context_->input_is_ref(i)) continue;
    if (context_->input(i).dtype() == DT_VARIANT) lists.push_back(context_->input(i));
  }
  if (!kept_ && facts_.adds_lists) return ForEachAdded(lists, visit);
  for (const Tensor& list : lists) ForEachListed(list, visit);
}

std::vector<Operands::Use> Operands::HoldVariables() {
  std::vector<Use> held;
  if (variables_.empty()) return held;
  Runtime& runtime = Runtime::Get();
  {
    EngineLock lock(runtime.engine.mutex());
    for (Var* var : variables_) runtime.variables.Add(var, this);
  }
  for (Var* var : variables_) HoldVariable(var, &held);
  return held;
}

// Of references. Their mutexes come before the engine's.
std::vector<Tensor> Operands::Referred() const {
  std::vector<Tensor> tensors;
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (!context_->has_input(i) || !context_->input_is_ref(i)) continue;
    tensors.push_back(context_->mutable_input(i, /*lock_held=*/false));
  }
  return tensors;
}

std::vector<Operands::Use> Operands::UseInputs() {
  Runtime& runtime = Runtime::Get();
  std::vector<Use> operands;
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (!context_->has_input(i) || context_->input_is_ref(i)) continue;
    const Tensor& tensor = context_->input(i);
    MovableBuffer* buffer = Tracker::Manageable(tensor);
    if (buffer == nullptr || !buffer->tracked()) continue;
    const bool unseen = IsEager(context_) && Tracker::PointerTakenUnseen(buffer);
    if (kept_) {
      runtime.tracker.Expose(buffer);
    } else if (Tracker::IsOnly(tensor) && !unseen) {
      runtime.tracker.Unexpose(buffer);
    }
    operands.push_back({buffer, InputAccess(buffer)});
  }
  ForEachListedOperand([&](const Tensor& listed) {
    MovableBuffer* buffer = Tracker::Manageable(listed);
    if (buffer == nullptr || !buffer->tracked()) return;
    if (kept_) runtime.tracker.Expose(buffer);
    operands.push_back({buffer, ::lms::Access::kRead});
  });
  return operands;
}

void Operands::Pin() {
  Runtime& runtime = Runtime::Get();
  const std::vector<Use> of_variables = HoldVariables();
  const std::vector<Tensor> referred = Referred();
  EngineLock lock(runtime.engine.mutex());
  // Others may give a reference another buffer at any time: what it refers to does not move.
  for (const Tensor& tensor : referred) {
    MovableBuffer* buffer = Tracker::Manageable(tensor);
    if (buffer != nullptr && buffer->tracked()) runtime.tracker.Expose(buffer);
  }
  std::vector<Use> operands = UseInputs();
  for (const Use& operand : of_variables) {
    // It may have died since the variable's mutex was released.
    if (runtime.tracker.IsTracked(operand.buffer)) operands.push_back(operand);
  }
  std::vector<::lms::Use> uses;
  for (const Use& operand : operands) {
    uses.push_back({operand.buffer, operand.access, Tracker::StreamOf(operand.buffer)});
  }
  pinned_ = uses.size();
  if (!uses.empty()) {
    const std::string& op = kernel_->type_string();
    runtime.engine.enter(frame_, uses.data(), uses.size(), nullptr, op.c_str());
  }
  for (const Use& operand : operands) {
    if (operand.access == ::lms::Access::kInPlace) runtime.backend.Disarm(operand.buffer);
  }
  if (pool_ != nullptr) NotePeaks(pool_);
}

size_t Operands::PinnedBytes() const { return Runtime::Get().engine.bytes_of(frame_); }

int64_t Operands::Bytes() const {
  Runtime& runtime = Runtime::Get();
  if (facts_.on_host) return 0;
  int64_t operands = 0;
  const auto add = [&](const Tensor& tensor) {
    const MovableBuffer* buffer = Tracker::Manageable(tensor);
    if (buffer != nullptr && runtime.pools.Of(buffer->allocator()) == pool_) {
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

void Operands::NoteOutputs() {
  for (int i = 0; i < context_->num_outputs(); ++i) {
    if (IsRefType(context_->expected_output_dtype(i))) continue;
    Tensor* tensor = context_->mutable_output(i);
    if (tensor != nullptr) NoteOutput(tensor);
  }
}

// An output that was given a tracked buffer has written it, in place of an input. One that holds
// the only reference to its buffer makes it movable.
void Operands::NoteOutput(Tensor* output) {
  Runtime& runtime = Runtime::Get();
  AdoptMemory(output);
  const Tensor& tensor = *output;
  const bool ok = context_->status().ok();
  const bool seen = !(kPointersTakenUnseen && IsEager(context_));
  // A list that is added to no other is passed on.
  const bool made = facts_.makes_list && (!facts_.adds_lists || context_->num_inputs() > 1);
  if (made && ok && seen) NoteList(tensor);
  MovableBuffer* buffer = Tracker::Manageable(tensor);
  if (buffer == nullptr) return;
  EngineLock lock(runtime.engine.mutex());
  const bool to_python = IsEager(context_) && Tracker::PointerTakenUnseen(buffer);
  if (buffer->tracked()) {
    const bool as_it_was = facts_.reads_variable || facts_.takes_from_list;
    if (!as_it_was) runtime.engine.written(buffer);
    if (to_python) runtime.tracker.Expose(buffer);
  } else if (ok && !to_python) {
    runtime.tracker.TrackIfAlone(tensor, buffer);
  }
}

// What a variable was given may not be of a kind that can move: it would stay for good.
void Operands::AdoptVariable(Var* var) {
  {
    tf_shared_lock variable(*var->mu());
    if (!IsOutside(*var->tensor())) return;
  }
  mutex_lock variable(*var->mu());
  AdoptMemory(var->tensor());
  if (pool_ != nullptr && pool_->on_cpu) AdoptCopy(var->tensor(), *pool_);
}

// The variables may have other buffers now. One that failed may still hold their mutexes, as XLA's
// kernels do; what it was to write counts as written since it began.
void Operands::NoteVariables() {
  if (!context_->status().ok()) return;
  Runtime& runtime = Runtime::Get();
  for (Var* var : variables_) {
    if (VariableAccess(var) != ::lms::Access::kWrite) continue;
    AdoptVariable(var);
    tf_shared_lock variable(*var->mu());
    EngineLock lock(runtime.engine.mutex());
    const Tensor& tensor = *var->tensor();
    MovableBuffer* buffer = Tracker::Manageable(tensor);
    if (buffer == nullptr || !runtime.tracker.TrackIfAlone(tensor, buffer)) continue;
    runtime.engine.written(buffer);
    runtime.variables.PinFor(var, buffer);
  }
}

void Operands::Unpin() {
  Runtime& runtime = Runtime::Get();
  EngineLock lock(runtime.engine.mutex());
  for (Var* var : variables_) runtime.variables.Remove(var, this);
  runtime.engine.leave(frame_);
}

}  // namespace lms
}  // namespace tensorflow
