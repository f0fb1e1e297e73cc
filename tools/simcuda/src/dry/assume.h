// SPDX-License-Identifier: Apache-2.0
// Operators whose result has a size that depends on data, which there is none of: they take a size
// that the program's user declares, or are refused by name.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <string>

namespace simcuda::dry {

// What is declared for `nonzero`, `unique`, `bincount` or `repeat_interleave`; see docs/simcuda.md.
void assume(const std::string& what, double value);

// Whether this call's result depends on data. Then `stack`, with arguments without memory, holds
// the results that were declared; throws if nothing was.
bool infer_assumed(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

// Whether the size of what it makes does, whatever its overload.
bool depends_on_data(const c10::FunctionSchema& schema);

// Gives indices that are masks the size that was declared for `nonzero`.
void assume_masks(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

}  // namespace simcuda::dry
