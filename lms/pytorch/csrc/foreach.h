// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/lms/op_facts.h>

namespace torch::lms {

// Optimisers pass all parameters, gradients and moments in one call, which would pin them all.
// Runs such a call in parts of at most `part_bytes` of tensors (at least one of each list), each by
// `run`, which finds its arguments on the stack and leaves its results there. The results are as of
// one call. Returns false, with nothing done, when the call is better left whole.
bool run_in_parts(const c10::FunctionSchema& schema, size_t part_bytes, torch::jit::Stack* stack,
                  c10::function_ref<void(torch::jit::Stack*)> run);

}  // namespace torch::lms
