// SPDX-License-Identifier: Apache-2.0
#pragma once

// One call of a kernel by its own C++ signature, or with its arguments on a stack, as at_boundary
// takes it. For interception_typed.cpp.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/cuda/lms/compat/storage.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/lms/boundary.h>
#include <torch/csrc/lms/compat/interception.h>
#include <torch/csrc/lms/compat/interception_pending.h>
#include <torch/csrc/lms/compat/interception_results.h>
#include <torch/csrc/lms/storages.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace c10 {
class OperatorKernel;
}

namespace torch::lms {

using c10::cuda::lms::Access;
using torch::jit::Stack;

// ---- what is known of a kernel

struct Hook {
  OpFacts facts;
  std::vector<Access> tensors;  // of the parameters that hold tensors, as C++ has them
  size_t arguments = 0;         // of the operator's schema
  size_t results = 0;
  void* unboxed = nullptr;  // the kernel's own function
};

// With what the kernel's own caller calls from now on, unless it calls nothing.
template <class Pointer>
void replace(Pointer& pointer, Pointer with) {
  if (pointer != nullptr) {
    __atomic_store_n(&pointer, with, __ATOMIC_RELEASE);
  }
}

// ---- what an operator's schema tells

inline std::string name_of(const c10::FunctionSchema& schema) {
  return schema.name() + "." + schema.overload_name();
}

inline bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();
}

inline Hook hook_for(const c10::FunctionSchema& schema) {
  Hook hook;
  hook.facts = facts_of(schema);
  hook.arguments = schema.arguments().size();
  hook.results = schema.returns().size();
  const auto& arguments = schema.arguments();
  hook.facts.random = std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) {
    return argument.type()->str().find("Generator") != std::string::npos;
  });
  for (const bool outs : {true, false}) {  // C++ has them first
    for (const auto& tensor : hook.facts.tensors) {
      if (is_out(arguments[tensor.index]) == outs) {
        hook.tensors.push_back(tensor.access);
      }
    }
  }
  return hook;
}

// ---- one call, as at_boundary takes it

// An argument that holds tensors: one of these.
struct Holder {
  const at::Tensor* tensor;
  at::TensorList list;
  c10::StorageImpl* storage;
  Access access;
};

// Whatever the signature: at_boundary is there once.
class Call {
 public:
  explicit Call(const Hook& hook) : hook_(hook) {}

  const OpFacts& facts() {
    if (C10_UNLIKELY(pending().any())) {
      install_pending();
    }
    return hook_.facts;
  }

  void operands(const OpFacts&, Operands* out) const {
    for (const Holder& holder : holders_) {
      const AddOperand add{out, holder.access};
      if (holder.tensor != nullptr) {
        each_storage(*holder.tensor, add);
      } else if (holder.storage != nullptr && c10::cuda::lms::manageable(holder.storage)) {
        out->add(holder.storage, Access::kWrite);
      }
      for (const at::Tensor& tensor : holder.list) {
        each_storage(tensor, add);
      }
    }
  }

  template <class F>
  void each_written(const OpFacts&, const F& f) const {
    for (const Holder& holder : holders_) {
      if (holder.access != Access::kRead) {
        f(holder.tensor != nullptr ? *holder.tensor : at::Tensor());
      }
    }
  }

  CudaGenerator generator(c10::Device device) const {
    return generator_ != nullptr ? static_cast<CudaGenerator>(generator_)
                                 : default_generator(device);
  }

  virtual void run() = 0;
  // f(StorageImpl*) for each storage of the results.
  virtual void each_result(const EachStorage& f) const = 0;
  // Those of a call that uses them up.
  virtual std::vector<c10::IValue> arguments() const { return {}; }
  virtual void set_arguments(const std::vector<c10::IValue>&) {}

  // No operator takes lists element by element.
  template <class F>
  bool in_parts(size_t, const F&) const {
    return false;
  }

 protected:
  ~Call() = default;

  void note(const at::Tensor& tensor) { hold({&tensor, {}, nullptr, next_access()}); }
  void note(const at::TensorList& list) { hold({nullptr, list, nullptr, next_access()}); }
  void note(const at::Storage& storage) {
    hold({nullptr, {}, storage.unsafeGetStorageImpl(), next_access()});
  }
  void note(at::Generator* generator) { generator_ = generator; }
  template <class T>
  auto note_in(const T& reference, int) -> decltype(note(reference.tref)) {
    note(reference.tref);  // a SparseTensorRef of PyTorch 1.1
  }
  template <class T>
  void note_in(const T&, ...) {}
  template <class T>
  void note(const T& other) {
    static_assert(!std::is_pointer<T>::value, "no operator takes a pointer but to a generator");
    note_in(other, 0);
  }

  void hold(const Holder& holder) { holders_.push_back(holder); }

  const Hook& hook_;

 private:
  Access next_access() const {
    const size_t at = holders_.size();
    return at < hook_.tensors.size() ? hook_.tensors[at] : Access::kWrite;
  }

  c10::SmallVector<Holder, 6> holders_;
  at::Generator* generator_ = nullptr;
};

// With its own signature. The arguments stay the caller's, and are good for another run. `object`
// is the kernel's own, which its function takes first; null where it takes none.
template <class Return, class... Args>
class TypedCall final : public Call {
 public:
  TypedCall(const Hook& hook, c10::OperatorKernel* object, Args&... arguments)
      : Call(hook), object_(object), arguments_(arguments...) {
    (note(arguments), ...);
  }

  void run() override {
    result_.set([&]() -> Return {
      return std::apply([&](auto&... argument) -> Return { return run_with(argument...); },
                        arguments_);
    });
  }

  void each_result(const EachStorage& f) const override { result_.each(f); }

  Return take() { return result_.take(); }

 private:
  Return run_with(Args&... arguments) const {
    if (object_ != nullptr) {
      using Kernel = Return(c10::OperatorKernel*, Args...);
      return (*reinterpret_cast<Kernel*>(hook_.unboxed))(object_, arguments...);
    }
    return (*reinterpret_cast<Return (*)(Args...)>(hook_.unboxed))(arguments...);
  }

  c10::OperatorKernel* const object_;
  const std::tuple<Args&...> arguments_;
  Result<Return> result_;
};

// With its arguments on a stack.
class BoxedCall final : public Call {
 public:
  BoxedCall(const Hook& hook, std::function<void()> kernel, Stack* stack)
      : Call(hook),
        kernel_(std::move(kernel)),
        stack_(stack),
        below_(stack->size() - hook.arguments),
        kept_(arguments()) {
    for (const c10::IValue& value : kept_) {
      if (value.isTensor()) {
        tensors_.push_back(value.toTensor());
      } else if (value.isTensorList()) {
        each_element(value,
                     [this](const c10::IValue& item) { tensors_.push_back(item.toTensor()); });
      }
    }
    for (const at::Tensor& tensor : tensors_) {  // whatever it does with them
      hold({&tensor, {}, nullptr, Access::kWrite});
    }
  }

  std::vector<c10::IValue> arguments() const override {
    return {stack_->begin() + static_cast<std::ptrdiff_t>(below_), stack_->end()};
  }

  void set_arguments(const std::vector<c10::IValue>& arguments) override {
    stack_->resize(below_);
    stack_->insert(stack_->end(), arguments.begin(), arguments.end());
  }

  void run() override { kernel_(); }

  void each_result(const EachStorage& f) const override {
    for (size_t i = stack_->size() - hook_.results; i < stack_->size(); ++i) {
      each_storage((*stack_)[i], [&](const at::Tensor&, c10::StorageImpl* storage) { f(storage); });
    }
  }

 private:
  const std::function<void()> kernel_;
  Stack* const stack_;
  const size_t below_;  // values that are not the call's
  const std::vector<c10::IValue> kept_;
  std::vector<at::Tensor> tensors_;
};

// Once, for all signatures.
inline void at_boundary_of(Call& call) { at_boundary(call); }

// Once for each signature, however many operators have it.
template <class Return, class... Args>
C10_NOINLINE Return call_typed(const Hook& hook, c10::OperatorKernel* object, Args&... arguments) {
  TypedCall<Return, Args...> call(hook, object, arguments...);
  at_boundary_of(call);
  return call.take();
}

}  // namespace torch::lms
