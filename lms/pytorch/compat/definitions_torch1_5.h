// SPDX-License-Identifier: Apache-2.0
#pragma once

// How operators come to be in PyTorch 1.5; included by definitions.h.

#include <ATen/core/op_registration/op_registration.h>
#include <torch/csrc/lms/compat/definitions_address.h>

#include <string>
#include <type_traits>
#include <utility>

namespace torch::lms {

class Definitions {
 public:
  template <class Function>
  void def(const char* schema, Function&& function) {
    const std::string qualified = std::string("lms::") + schema;
    std::move(registered_).op(qualified, std::forward<Function>(function));  // gives itself back
  }

 private:
  c10::RegisterOperators registered_;
};

using Counts = c10::Dict<std::string, int64_t>;

}  // namespace torch::lms
