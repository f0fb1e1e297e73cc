// SPDX-License-Identifier: Apache-2.0
#pragma once

// A call with its arguments on a stack, as the dispatcher boxes them. For
// interception_dispatcher.cpp.

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/lms/boundary.h>
#include <torch/csrc/lms/compat/interception.h>
#include <torch/csrc/lms/compat/interception_pending.h>
#include <torch/csrc/lms/foreach.h>
#include <torch/csrc/lms/storages.h>

#include <cstddef>

namespace torch::lms {

using c10::DispatchKeySet;
using torch::jit::Stack;

// One call, as at_boundary takes it.
class BoxedCall {
 public:
  using Arguments = c10::SmallVector<c10::IValue, 8>;  // mostly there are fewer

  BoxedCall(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack, const OpFacts& facts)
      : op_(op),
        keys_(keys),
        stack_(stack),
        below_(stack->size() - op.schema().arguments().size()),
        facts_(facts) {}

  const OpFacts& facts() {
    if (C10_UNLIKELY(pending().any())) {
      install_pending();
    }
    return facts_;
  }

  void operands(const OpFacts& facts, Operands* out) const {
    const size_t count = op_.schema().arguments().size();
    const c10::IValue* arguments = stack_->data() + (stack_->size() - count);
    for (const auto& argument : facts.tensors) {
      each_storage(arguments[argument.index], AddOperand{out, argument.access});
    }
  }

  Arguments arguments() const {
    const auto count = static_cast<std::ptrdiff_t>(op_.schema().arguments().size());
    return Arguments(stack_->end() - count, stack_->end());
  }

  void set_arguments(const Arguments& arguments) {
    stack_->resize(below_);
    stack_->insert(stack_->end(), arguments.begin(), arguments.end());
  }

  template <class F>
  void each_written(const OpFacts& facts, const F& f) const {
    for (const auto& argument : facts.tensors) {
      if (argument.access != c10::cuda::lms::Access::kRead) {
        const c10::IValue& value = (*stack_)[below_ + argument.index];
        f(value.isTensor() ? value.toTensor() : at::Tensor());
      }
    }
  }

  CudaGenerator generator(c10::Device device) const {
    for (size_t i = below_; i < stack_->size(); ++i) {
      if ((*stack_)[i].isGenerator()) {
        return (*stack_)[i].toGenerator();
      }
    }
    return at::globalContext().defaultGenerator(device);
  }

  void run() { op_.redispatchBoxed(keys_, stack_); }

  template <class F>
  void each_result(const F& f) const {
    for (size_t i = first_result(); i < stack_->size(); ++i) {
      each_storage((*stack_)[i], [&](const at::Tensor&, c10::StorageImpl* storage) { f(storage); });
    }
  }

  template <class F>
  bool in_parts(size_t bytes, const F& f) const {
    return run_in_parts(op_.schema(), bytes, stack_, [&](Stack* arguments, Room room) {
      BoxedCall part(op_, keys_, arguments, facts_);
      return f(part, room);
    });
  }

  Work work() const {
    for (size_t i = first_result(); i < stack_->size(); ++i) {
      if ((*stack_)[i].isCustomClass()) {
        return (*stack_)[i].toCustomClass<c10d::Work>();
      }
    }
    return {};
  }

 private:
  size_t first_result() const { return stack_->size() - op_.schema().returns().size(); }

  const c10::OperatorHandle& op_;
  const DispatchKeySet keys_;
  Stack* const stack_;
  const size_t below_;  // values that are not the call's
  const OpFacts& facts_;
};

}  // namespace torch::lms
