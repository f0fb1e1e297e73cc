// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <vector>

namespace torch::lms {

// What the boundary must know of an operator, from its schema and a short list of exceptions.
struct OpFacts {
  enum class Kind : uint8_t {
    kNormal,
    kNoAccess,    // makes views or reads metadata only
    kForeach,     // lists of tensors, element by element: may be run in parts
    kCollective,  // may still be running, on streams unknown here, when it returns
  };

  struct TensorArgument {
    uint32_t index;
    bool written;
    bool overwritten;  // if the tensor covers its storage
  };

  Kind kind = Kind::kNormal;
  bool has_results = false;             // may return new storages
  std::vector<TensorArgument> tensors;  // arguments that can hold a tensor
};

OpFacts facts_of(const c10::FunctionSchema& schema);

}  // namespace torch::lms
