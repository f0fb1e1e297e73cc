// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "values.h"

namespace simcuda {

// Computes the two kernels of TensorFlow's whose results its CPU goes by: one that makes shapes
// (DynamicStitch of whole numbers, in the gradients of sums and means), which would all be 0
// otherwise, and a negation, by which 2.1 and 2.2 see that a variable is new. False: another one.
bool compute_known(const char* kernel, void** arguments, Values& values);

}  // namespace simcuda
