// SPDX-License-Identifier: Apache-2.0
#pragma once

// How operators come to be in PyTorch 1.1, whose dispatcher takes none that returns nothing: as
// those of TorchScript. Included by definitions.h.

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/csrc/jit/operator.h>
#include <torch/csrc/lms/compat/definitions_address.h>

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

}  // namespace torch::lms
