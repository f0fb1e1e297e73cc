// SPDX-License-Identifier: Apache-2.0
#pragma once

// How operators come to be in PyTorch 1.1, whose dispatcher takes none that returns nothing: as
// those of TorchScript. Included by definitions.h. No argument of one can be a storage, so that
// Python gives its address.

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/jit/operator.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::lms {

class Counts {
 public:
  void insert(const std::string& name, int64_t count) { counts_.emplace(name, count); }
  operator c10::IValue() && { return std::move(counts_); }

 private:
  c10::ivalue::UnorderedMap counts_;
};

class Definitions {
 public:
  template <class Function>
  void def(const char* schema, Function&& function) {
    define(std::string("lms::") + schema, +function);
  }

 private:
  template <class Return, class... Args>
  static void define(const std::string& schema, Return (*function)(Args...)) {
    torch::jit::registerOperator(torch::jit::Operator(schema, [function](torch::jit::Stack& stack) {
      call(function, &stack, std::index_sequence_for<Args...>());
      return 0;  // go on
    }));
  }

  template <class Return, class... Args, size_t... kAt>
  static void call(Return (*function)(Args...), torch::jit::Stack* stack,
                   std::index_sequence<kAt...>) {
    const auto arguments = torch::jit::pop(*stack, sizeof...(Args));
    if constexpr (std::is_void<Return>::value) {
      function(arguments[kAt].template to<std::decay_t<Args>>()...);
    } else {
      stack->emplace_back(function(arguments[kAt].template to<std::decay_t<Args>>()...));
    }
  }
};

using StorageArgument = int64_t;

inline c10::StorageImpl* storage_in(StorageArgument storage) {
  return reinterpret_cast<c10::StorageImpl*>(storage);
}

inline bool define(void (*all)(Definitions&)) {
  Definitions definitions;
  all(definitions);
  return true;
}

}  // namespace torch::lms

#define LMS_STORAGE_SCHEMA "int"
#define LMS_DEFINITIONS(definitions)                               \
  static void lms_define(torch::lms::Definitions&);                \
  static const bool lms_defined = torch::lms::define(&lms_define); \
  static void lms_define(torch::lms::Definitions& definitions)
