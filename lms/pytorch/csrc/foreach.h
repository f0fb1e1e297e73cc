// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <torch/csrc/lms/compat/tensors.h>
#include <torch/csrc/lms/op_facts.h>

#include <cstdint>
#include <functional>

namespace torch::lms {

// Of the device that an item of a list has. Of what is expanded more than its storage has: a result
// will have as many.
size_t bytes_of_unusual_item(const at::Tensor& tensor);
inline size_t bytes_of_item(const at::Tensor& tensor) {
  return C10_LIKELY(is_plain(tensor)) ? tensor.nbytes() : bytes_of_unusual_item(tensor);
}

// What a call does when its operands find no room together: it tells, once all that is idle has
// left or, sparing that, before; or it throws.
enum class Room : uint8_t { kSpare, kTell, kThrow };

// Optimisers pass all parameters, gradients and moments in one call, which would pin them all.
// Runs such a call in parts of at most `part_bytes` of tensors (at least one of each list), each by
// `run`, which finds its arguments on the stack and leaves its results there. When it returns false
// the part is made smaller; one that cannot be is to throw. The results are as of one call. Returns
// false, with nothing done, when the call is better left whole.
bool run_in_parts(const c10::FunctionSchema& schema, size_t part_bytes, torch::jit::Stack* stack,
                  const std::function<bool(torch::jit::Stack*, Room)>& run);

}  // namespace torch::lms
