// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels in the tables of c10's dispatcher, from PyTorch 1.3 to 1.5: in the table's entry the
// pointer to the kernel's function is another, and the kernel's own object, which comes with each
// call, tells which kernel it was. Included by the versions' headers, which say how the tables are
// reached (each_table, falls_through, DispatchKey).

#include <torch/csrc/lms/compat/interception_call.h>
#include <torch/csrc/lms/compat/interception_private.h>

#include <atomic>
#include <cstdint>
#include <unordered_map>

namespace torch::lms {

using c10::KernelFunction;
using c10::OperatorKernel;

struct Object {
  friend auto member(Object);
};
template struct Grant<Object, &KernelFunction::functor_>;

struct Unboxed {
  friend auto member(Unboxed);
};
template struct Grant<Unboxed, &KernelFunction::unboxed_kernel_func_>;

struct Boxed {
  friend auto member(Boxed);
};
template struct Grant<Boxed, &KernelFunction::boxed_kernel_func_>;

template <class Member>
struct PointedTo;
template <class T>
struct PointedTo<T * KernelFunction::*> {
  using type = T;
};

// With which a kernel is called boxed. Since PyTorch 1.5 it is told which operator it is of.
using BoxedFunction = PointedTo<decltype(member(Boxed{}))>::type;

struct KernelHook : Hook {
  BoxedFunction* boxed = nullptr;  // the kernel's own
};

// By the kernel's object. Read at each call without a lock: an entry is whole before its kernel's
// function is replaced, and stays.
class Hooks {
 public:
  const KernelHook& of(const OperatorKernel* object) const {
    size_t at = slot_of(object);
    while (slots_[at].object.load(std::memory_order_acquire) != object) {
      at = (at + 1) % kSlots;
    }
    return slots_[at].hook;
  }

  // Unless it is there. False when there is no more room: then the kernel is not intercepted.
  bool add(const OperatorKernel* object, KernelHook hook) {
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
    KernelHook hook;
  };
  std::vector<Slot> slots_{kSlots};
  size_t size_ = 0;
};

// Leaked: operators are called until the process ends.
inline Hooks& hooks() {
  static auto* hooks = new Hooks;
  return *hooks;
}

// ---- what kernels are called through

template <class Signature>
struct Through;

template <class Return, class... Args>
struct Through<Return(Args...)> {
  static Return call(OperatorKernel* object, Args... arguments) {
    return call_typed<Return, Args...>(hooks().of(object), object, arguments...);
  }
};

template <class Kernel>
void call_boxed(OperatorKernel* object, Stack* stack, const Kernel& kernel) {
  const KernelHook& hook = hooks().of(object);
  BoxedCall call(hook, [&] { kernel(*hook.boxed); }, stack);
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

inline const std::unordered_map<std::string, void*>& signatures() {
  using namespace at;  // the signatures are as upstream's headers write them
  static const auto* all = new std::unordered_map<std::string, void*>{
#define LMS_SIGNATURE(name, overload, ...) {name "." overload, through<__VA_ARGS__>()},
#define LMS_FUNCTION(schema, ...)
#include <torch/csrc/lms/signatures.inc>
#undef LMS_SIGNATURE
#undef LMS_FUNCTION
  };
  return *all;
}

// Where the kernel's function is in an entry of a table, which is the dispatcher's own.
template <class Field>
auto& field(const KernelFunction& kernel, Field tag) {
  return const_cast<KernelFunction&>(kernel).*member(tag);
}

inline bool hook_kernel(const KernelFunction* kernel, const c10::FunctionSchema& schema) {
  if (kernel == nullptr || falls_through(*kernel)) {
    return false;
  }
  const OperatorKernel* object = field(*kernel, Object{}).get();
  const auto signature = signatures().find(name_of(schema));
  if (object == nullptr) {  // made at the first call
    return false;
  }
  KernelHook hook{hook_for(schema)};
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

inline bool in_aten(const c10::FunctionSchema& schema) {
  return schema.name().rfind("aten::", 0) == 0;
}

// An operator of aten without a kernel for autograd only calls others.
template <class Table>
bool is_composite(const Table& table, const c10::FunctionSchema& schema) {
  return in_aten(schema) && table.lookup(DispatchKey::VariableTensorId) == nullptr;
}

inline bool hook_op(const c10::OperatorHandle& op) {
  const OpFacts facts = facts_of(op.schema());
  if (facts.touches_nothing()) {
    return false;
  }
  bool any = false;
  each_table(op, [&](const auto& table) {
    for (const auto key : {DispatchKey::CUDATensorId, DispatchKey::SparseCUDATensorId}) {
      any = hook_kernel(table.lookup(key), op.schema()) || any;
    }
    if (!is_composite(table, op.schema())) {
      any = hook_kernel(table.lookupCatchallKernel(), op.schema()) || any;
    }
  });
  return any;
}

}  // namespace torch::lms
