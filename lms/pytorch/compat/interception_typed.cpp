// SPDX-License-Identifier: Apache-2.0
#if !__has_include(<torch/library.h>)  // before PyTorch 1.6: all of the file

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/cuda/lms/compat/storage.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/lms/boundary.h>
#include <torch/csrc/lms/compat/interception.h>
#include <torch/csrc/lms/compat/interception_pending.h>
#include <torch/csrc/lms/storages.h>
#if __has_include(<c10/core/TensorTypeId.h>)
#include <torch/csrc/lms/compat/interception_torch1_4.h>
#else
#include <torch/csrc/lms/compat/interception_torch1_5.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

// By the kernels. Before PyTorch 1.6 no key is in every thread's set but autograd's, and most
// kernels of aten can only be called with their own C++ signature, not boxed. So the kernels in an
// operator's table are called through functions of the same signature, one template for all; which
// signature an operator has, upstream's own headers tell (signatures.py). What they have no
// operator for, other libraries' operators, is called boxed.
//
// Nothing is registered: in the table's entry the pointer to the function is another, and the
// kernel's own object, which comes with each call, tells which kernel it was.
namespace torch::lms {
namespace {

using c10::KernelFunction;
using c10::OperatorKernel;
using c10::cuda::lms::Access;
using torch::jit::Stack;

PendingOps& pending = *new PendingOps;  // leaked: more may be registered at the very end

// ---- what is known of a kernel

struct Hook {
  OpFacts facts;
  std::vector<Access> tensors;  // of the parameters that hold tensors, as C++ has them
  size_t arguments = 0;         // of the operator's schema
  size_t results = 0;
  void* unboxed = nullptr;  // the kernel's own functions
  BoxedFunction* boxed = nullptr;
};

// By the kernel's object. Read at each call without a lock: an entry is whole before its kernel's
// function is replaced, and stays.
class Hooks {
 public:
  const Hook& of(const OperatorKernel* object) const {
    size_t at = slot_of(object);
    while (slots_[at].object.load(std::memory_order_acquire) != object) {
      at = (at + 1) % kSlots;
    }
    return slots_[at].hook;
  }

  // Unless it is there. False when there is no more room: then the kernel is not intercepted.
  bool add(const OperatorKernel* object, Hook hook) {
    size_t at = slot_of(object);
    while (const OperatorKernel* other = slots_[at].object.load(std::memory_order_relaxed)) {
      if (other == object) {
        return true;
      }
      at = (at + 1) % kSlots;
    }
    if (2 * size_ >= kSlots) {
      return false;
    }
    slots_[at].hook = std::move(hook);
    slots_[at].object.store(object, std::memory_order_release);
    ++size_;
    return true;
  }

 private:
  // PyTorch 1.5 has about 2000 such kernels, and half of the places stay free. More trades memory
  // for fewer steps of a search that every operator makes.
  static constexpr size_t kSlots = size_t{1} << 14;

  static size_t slot_of(const OperatorKernel* object) {
    const auto address = reinterpret_cast<uintptr_t>(object);
    return (address >> 4 ^ address >> 16) % kSlots;
  }

  struct Slot {
    std::atomic<const OperatorKernel*> object{nullptr};
    Hook hook;
  };
  std::vector<Slot> slots_{kSlots};
  size_t size_ = 0;
};

// Leaked: operators are called until the process ends.
Hooks& hooks() {
  static auto* hooks = new Hooks;
  return *hooks;
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
    if (C10_UNLIKELY(pending.any())) {
      install_pending();
    }
    return hook_.facts;
  }

  void operands(const OpFacts&, Operands* out) const {
    for (const Holder& holder : holders_) {
      const auto add = [&](const at::Tensor& tensor, c10::StorageImpl* storage) {
        out->add(storage, access_to(tensor, holder.access));
      };
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

  bool results_are_blank(const OpFacts& facts) const {
    bool blank = true;
    each_written(facts, [&](const at::Tensor& tensor) {
      blank = blank && tensor.defined() && tensor.layout() == at::kStrided && tensor.dim() == 1 &&
              tensor.numel() == 0 && c10::cuda::lms::nbytes_of(*storage_of(tensor)) == 0;
    });
    return blank;
  }

  Generator generator(c10::Device device) const {
    at::Generator* given = generator_;
    return static_cast<Generator>(given ? given : &at::globalContext().defaultGenerator(device));
  }

  virtual void run() = 0;
  // f(StorageImpl*) for each storage of the results.
  virtual void each_result(c10::function_ref<void(c10::StorageImpl*)> f) const = 0;
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
  void note(const T&) {}

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

using EachStorage = c10::function_ref<void(c10::StorageImpl*)>;

void each_made(const at::Tensor& made, EachStorage f) {
  each_storage(made, [&](const at::Tensor&, c10::StorageImpl* storage) { f(storage); });
}

void each_made(const std::vector<at::Tensor>& made, EachStorage f) {
  for (const at::Tensor& tensor : made) {
    each_made(tensor, f);
  }
}

template <class T>
void each_made(const T&, EachStorage) {}

template <class... Ts>
void each_made(const std::tuple<Ts...>& made, EachStorage f) {
  std::apply([&](const auto&... each) { (each_made(each, f), ...); }, made);
}

// What a kernel returned: a value, what is somebody else's, or nothing.
template <class T>
struct Result {
  std::optional<T> value;

  template <class Make>
  void set(const Make& make) {
    value.emplace(make());
  }
  T take() { return std::move(*value); }
  void each(EachStorage f) const { each_made(*value, f); }
};

template <class T>
struct Result<T&> {
  T* value = nullptr;

  template <class Make>
  void set(const Make& make) {
    value = &make();
  }
  T& take() { return *value; }
  void each(EachStorage) const {}
};

template <>
struct Result<void> {
  template <class Make>
  void set(const Make& make) {
    make();
  }
  void take() {}
  void each(EachStorage) const {}
};

// With its own signature. The arguments stay the caller's, and are good for another run.
template <class Return, class... Args>
class TypedCall final : public Call {
 public:
  TypedCall(const Hook& hook, OperatorKernel* object, Args&... arguments)
      : Call(hook), object_(object), arguments_(arguments...) {
    (note(arguments), ...);
  }

  void run() override {
    using Kernel = Return(OperatorKernel*, Args...);
    auto* kernel = reinterpret_cast<Kernel*>(hook_.unboxed);
    result_.set([&]() -> Return {
      return std::apply(
          [&](auto&... argument) -> Return { return (*kernel)(object_, argument...); }, arguments_);
    });
  }

  void each_result(EachStorage f) const override { result_.each(f); }

  Return take() { return result_.take(); }

 private:
  OperatorKernel* const object_;
  const std::tuple<Args&...> arguments_;
  Result<Return> result_;
};

// With its arguments on a stack.
class BoxedCall final : public Call {
 public:
  BoxedCall(const Hook& hook, c10::function_ref<void(BoxedFunction&)> kernel, Stack* stack)
      : Call(hook),
        kernel_(kernel),
        stack_(stack),
        below_(stack->size() - hook.arguments),
        kept_(arguments()) {
    for (const c10::IValue& value : kept_) {
      if (value.isTensor()) {
        tensors_.push_back(value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) {
          tensors_.push_back(tensor);
        }
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

  void run() override { kernel_(*hook_.boxed); }

  void each_result(EachStorage f) const override {
    for (size_t i = stack_->size() - hook_.results; i < stack_->size(); ++i) {
      each_storage((*stack_)[i], [&](const at::Tensor&, c10::StorageImpl* storage) { f(storage); });
    }
  }

 private:
  const c10::function_ref<void(BoxedFunction&)> kernel_;
  Stack* const stack_;
  const size_t below_;  // values that are not the call's
  const std::vector<c10::IValue> kept_;
  std::vector<at::Tensor> tensors_;
};

// Once, for all signatures.
void at_boundary_of(Call& call) { at_boundary(call); }

// ---- what kernels are called through

template <class Signature>
struct Through;

template <class Return, class... Args>
struct Through<Return(Args...)> {
  static Return call(OperatorKernel* object, Args... arguments) {
    TypedCall<Return, Args...> call(hooks().of(object), object, arguments...);
    at_boundary_of(call);
    return call.take();
  }
};

template <class Kernel>
void call_boxed(OperatorKernel* object, Stack* stack, const Kernel& kernel) {
  BoxedCall call(hooks().of(object), kernel, stack);
  at_boundary_of(call);
}

// Templates both: only the one that is used is compiled.
template <class Function, class = void>
struct ThroughBoxed;
template <class Unused>
struct ThroughBoxed<void(OperatorKernel*, Stack*), Unused> {
  static void call(OperatorKernel* object, Stack* stack) {
    call_boxed(object, stack, [&](auto& kernel) { kernel(object, stack); });
  }
};
template <class Operator>
struct ThroughBoxed<void(OperatorKernel*, Operator, Stack*)> {
  static void call(OperatorKernel* object, Operator op, Stack* stack) {
    call_boxed(object, stack, [&](auto& kernel) { kernel(object, op, stack); });
  }
};

// The function of each operator of aten, by its name with its overload's.
template <class Signature>
void* through() {
  return reinterpret_cast<void*>(&Through<Signature>::call);
}

using namespace at;  // the signatures are as upstream's headers write them

const std::unordered_map<std::string, void*>& signatures() {
  static const auto* all = new std::unordered_map<std::string, void*>{
#define LMS_SIGNATURE(name, overload, ...) {name "." overload, through<__VA_ARGS__>()},
#include <torch/csrc/lms/signatures.inc>
#undef LMS_SIGNATURE
  };
  return *all;
}

// ---- installing

std::string name_of(const c10::FunctionSchema& schema) {
  return schema.name() + "." + schema.overload_name();
}

bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();
}

Hook hook_for(const c10::FunctionSchema& schema) {
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

// Where the kernel's function is in an entry of a table, which is the dispatcher's own.
template <class Field>
auto& field(const KernelFunction& kernel, Field tag) {
  return const_cast<KernelFunction&>(kernel).*member(tag);
}

template <class Pointer>
void replace(Pointer& pointer, Pointer with) {
  if (pointer != nullptr) {
    __atomic_store_n(&pointer, with, __ATOMIC_RELEASE);
  }
}

bool hook_kernel(const KernelFunction* kernel, const c10::FunctionSchema& schema) {
  if (kernel == nullptr || falls_through(*kernel)) {
    return false;
  }
  const OperatorKernel* object = field(*kernel, Object{}).get();
  const auto signature = signatures().find(name_of(schema));
  if (object == nullptr) {  // made at the first call
    return false;
  }
  Hook hook = hook_for(schema);
  hook.unboxed = field(*kernel, Unboxed{});
  hook.boxed = field(*kernel, Boxed{});
  if (!hooks().add(object, std::move(hook))) {
    return false;
  }
  if (signature != signatures().end()) {
    replace(field(*kernel, Unboxed{}), signature->second);
  }
  replace(field(*kernel, Boxed{}), &ThroughBoxed<BoxedFunction>::call);
  return true;
}

bool in_aten(const c10::FunctionSchema& schema) { return schema.name().rfind("aten::", 0) == 0; }

// An operator of aten without a kernel for autograd only calls others.
bool is_composite(const c10::DispatchTable& table, const c10::FunctionSchema& schema) {
  return in_aten(schema) && table.lookup(DispatchKey::VariableTensorId) == nullptr;
}

bool hook_op(const c10::OperatorHandle& op) {
  const OpFacts facts = facts_of(op.schema());
  if (facts.touches_nothing()) {
    return false;
  }
  bool any = false;
  each_table(op, [&](const c10::DispatchTable& table) {
    for (const auto key : {DispatchKey::CUDATensorId, DispatchKey::SparseCUDATensorId}) {
      any = hook_kernel(table.lookup(key), op.schema()) || any;
    }
    if (!is_composite(table, op.schema())) {
      any = hook_kernel(table.lookupCatchallKernel(), op.schema()) || any;
    }
  });
  return any;
}

bool hook_named(const c10::OperatorName& name) {
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  return op && hook_op(*op);
}

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    pending.add(op.schema().operator_name());
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

}  // namespace

size_t install() {
  return pending.install(
      [] { c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()); },
      hook_named);
}

size_t install_pending() { return pending.install_pending(hook_named); }

}  // namespace torch::lms

#endif
