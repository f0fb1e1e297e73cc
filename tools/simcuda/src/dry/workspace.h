// SPDX-License-Identifier: Apache-2.0
// The memory that libraries take beside an operator's results, from torch's own allocator. cuBLAS's
// is torch's: it makes one for each thread and stream that multiplies, of a size of its own, and
// keeps it; from 2.15 on one for each product. That, a convolution's, which is the profile's, and a
// sort's, which follows from its rows, go when the operator is issued.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>

#include "cost.h"

namespace simcuda::dry {

class Workspaces {
 public:
  Workspaces(const c10::FunctionSchema& schema, const Cost& cost);

  // On the current stream of the current device, for a call with these arguments.
  c10::DataPtr take(const c10::IValue* values) const;

 private:
  size_t bytes_of(const c10::IValue* values) const;

  bool product_, convolution_, sort_;
  size_t dim_ = 0;  // the argument that says what is sorted along
};

// What cub and torch take to sort `x` along `dim`, beside the result.
size_t bytes_to_sort(const at::Tensor& x, int64_t dim);

}  // namespace simcuda::dry
