// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tables of operators in PyTorch 1.1. Those of aten are virtual functions: each backend has one
// object with all of them, which autograd and the functions of aten call. It gets another table of
// them, with functions of ours, which take the object first as a member function does. The
// dispatcher has the operators of other libraries, as in 1.2. Included by interception_typed.cpp.

#include <ATen/TypeDefault.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/jit/script/function_schema_parser.h>
#include <torch/csrc/lms/compat/interception_call.h>
#include <torch/csrc/lms/compat/interception_grant.h>
#include <torch/csrc/lms/compat/interception_through.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace torch::lms {

struct Entry {
  friend auto member(Entry);
};
template struct Grant<Entry, &c10::OperatorHandle::operatorDefIterator_>;

struct Kernels {
  friend auto member(Kernels);
};
template struct Grant<Kernels, &c10::DispatchTable::kernels_>;

struct Fallback {
  friend auto member(Fallback);
};
template struct Grant<Fallback, &c10::DispatchTable::fallback_kernel_>;

struct ByKey {
  friend auto member(ByKey);
};
template struct Grant<ByKey, &c10::detail::ThreadsafeOperatorTable_::map_>;

inline bool hook_op(const c10::OperatorHandle& op) {
  const auto hook = std::make_shared<const Hook>(hook_for(op.schema()));
  if (hook->facts.touches_nothing()) {
    return false;
  }
  bool any = false;
  c10::DispatchTable& table = (op.*member(Entry{}))->dispatchTable;
  (table.*member(Kernels{}).*member(ByKey{})).write([&](auto& kernels) {  // each of two copies
    for (auto& entry : kernels) {
      hook_kernel(entry.second, hook);
      any = true;
    }
  });
  if (auto& fallback = table.*member(Fallback{})) {
    hook_kernel(*fallback, hook);
    any = true;
  }
  return any;
}

inline auto find_op(const c10::OperatorName& name) {
  return c10::Dispatcher::singleton().findSchema(name.name.c_str(), name.overload_name.c_str());
}

// ---- virtual functions

// The backends with an object that may be given a tensor of the device: the CPU's is chosen where a
// number in a tensor comes first, or what is copied to.
constexpr std::array<at::Backend, 3> kPlaces = {at::Backend::CUDA, at::Backend::SparseCUDA,
                                                at::Backend::CPU};

template <class Signature, size_t kOperator, size_t kPlace>
struct InPlace;

template <class Return, class... Args, size_t kOperator, size_t kPlace>
struct InPlace<Return(Args...), kOperator, kPlace> {
  static inline const Hook* hook = nullptr;  // before the function is called

  static Return call(const at::Type* self, Args... arguments) {
    // Only given back to the kernel, as what its function takes first.
    auto* object = reinterpret_cast<c10::OperatorKernel*>(const_cast<at::Type*>(self));
    return call_typed<Return, Args...>(*hook, object, arguments...);
  }
};

struct Place {
  void* function;
  const Hook** hook;
};

struct Method {
  const char* schema;
  size_t index;  // in the table of virtual functions
  std::array<Place, kPlaces.size()> places;
};

// A pointer to a virtual function of C++'s usual binary interface on x86-64: its offset, and 1.
template <class Pointer>
size_t index_of(Pointer method) {
  std::ptrdiff_t offset;
  static_assert(sizeof(method) == 2 * sizeof(offset), "a pointer and what to add to the object");
  std::memcpy(&offset, &method, sizeof(offset));
  return static_cast<size_t>(offset - 1) / sizeof(void*);
}

template <class Class, class Signature>
struct As;

template <class Class, class Return, class... Args>
struct As<Class, Return(Args...)> {
  using Pointer = Return (Class::*)(Args...) const;
};

template <class Class, class Signature, size_t kOperator>
Method method(const char* schema, typename As<Class, Signature>::Pointer pointer) {
  const auto place = [](auto in) {
    using In = decltype(in);
    return Place{reinterpret_cast<void*>(&In::call), &In::hook};
  };
  return {schema,
          index_of(pointer),
          {place(InPlace<Signature, kOperator, 0>()), place(InPlace<Signature, kOperator, 1>()),
           place(InPlace<Signature, kOperator, 2>())}};
}

inline std::vector<Method> all_methods() {
  using namespace at;  // the signatures are as upstream's headers write them
  return {
#define LMS_METHOD(in, name, schema, ...) \
  method<at::in, __VA_ARGS__, __COUNTER__>(schema, &at::in::name),
#include <torch/csrc/lms/signatures.inc>
#undef LMS_METHOD
  };
}

// Its first function stands behind all that an object of a backend has for others.
struct Behind : at::TypeDefault {
  virtual void first() const;
};

// Those that there is an object for: the device's is made when the device is first used.
inline size_t hook_more() {
  const size_t above = 2;  // words of a table before its first function
  const auto methods = all_methods();
  const size_t size = index_of(&Behind::first);
  size_t hooked = 0;
  for (size_t place = 0; place < kPlaces.size(); ++place) {
    auto* type = at::globalLegacyTypeDispatch().getNonVariableTypeOpt(kPlaces[place], at::kFloat);
    if (type == nullptr) {
      continue;
    }
    auto*** table = reinterpret_cast<void***>(type);
    auto** own = new void*[above + size];  // leaked: it is called until the process ends
    std::copy(*table - above, *table + size, own);
    for (const Method& method : methods) {
      auto hook = std::make_unique<Hook>(hook_for(torch::jit::parseSchema(method.schema)));
      if (hook->facts.touches_nothing()) {
        continue;
      }
      if (hook->facts.random) {  // nobody tells how many numbers were taken
        hook->facts.repeatable = hook->facts.fills = false;
      }
      void*& function = own[above + method.index];
      hook->unboxed = function;
      *method.places[place].hook = hook.release();
      function = method.places[place].function;
      ++hooked;
    }
    replace(*table, own + above);
  }
  return hooked;
}

}  // namespace torch::lms
