// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "values.h"

namespace simcuda {

// Computes the one kernel of TensorFlow's that makes shapes on the device (DynamicStitch of whole
// numbers, in the gradients of sums and means), which would all be 0 otherwise. False: another one.
bool compute_shape(const char* kernel, void** arguments, Values& values);

}  // namespace simcuda
