// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/function_schema.h>
#include <c10/cuda/lms/Lms.h>

#include <cstdint>
#include <string>
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
    // kWrite, too, where it is unknown whether it is written. kOverwrite holds only for a tensor
    // that covers its storage: see access_to (operands.h).
    c10::cuda::lms::Access access;
  };

  std::string name;  // with its namespace
  Kind kind = Kind::kNormal;
  bool has_results = false;             // may return new storages
  bool independent = false;             // ends without the help of another thread
  bool repeatable = false;              // a call that found no room has changed no argument
  bool fills = false;                   // writes nothing but what is given for its results (out=)
  bool resizes = false;                 // may give what it writes other sizes
  bool random = false;                  // takes numbers from a generator
  std::vector<TensorArgument> tensors;  // arguments that can hold a tensor

  // Whether a call need not pin anything.
  bool touches_nothing() const {
    return kind == Kind::kNoAccess || (tensors.empty() && !has_results);
  }
};

OpFacts facts_of(const c10::FunctionSchema& schema);

}  // namespace torch::lms
