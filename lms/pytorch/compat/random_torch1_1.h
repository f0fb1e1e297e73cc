// SPDX-License-Identifier: Apache-2.0
#pragma once

// The generators of PyTorch 1.1, which have a part of their state on the device. How many numbers
// were taken they tell nobody, so that no op that takes some runs again (interception_torch1_1.h)
// and nothing here is asked. Included by random.h.

#include <ATen/Context.h>

namespace torch::lms {

using CudaGenerator = at::Generator*;

inline CudaGenerator default_generator(c10::Device device) {
  return &at::globalContext().defaultGenerator(device.type());
}

inline std::mutex& mutex_of(CudaGenerator&) {
  static std::mutex mutex;
  return mutex;
}

inline uint64_t random_offset(CudaGenerator&) { return 0; }

inline void set_random_offset(CudaGenerator&, uint64_t) {}

}  // namespace torch::lms
