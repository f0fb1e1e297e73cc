// SPDX-License-Identifier: Apache-2.0
// The memory that libraries take beside an operator's results, from torch's own allocator. cuBLAS's
// is torch's: it makes one for each thread and stream that multiplies, of a size of its own, and
// keeps it; from 2.15 on one for each product, until it is issued. A convolution's is the
// profile's, until it is issued.
#pragma once

#include <c10/core/Allocator.h>

#include "cost.h"

namespace simcuda::dry {

class Workspace {
 public:
  // On the current stream of the current device.
  explicit Workspace(const Cost& of);

 private:
  c10::DataPtr memory_;
};

}  // namespace simcuda::dry
