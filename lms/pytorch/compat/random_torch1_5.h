// SPDX-License-Identifier: Apache-2.0
#pragma once

// The generators of PyTorch 1.5, which are no values: a call has a pointer. Included by random.h.

#include <ATen/CUDAGenerator.h>

namespace torch::lms {

using Generator = at::CUDAGenerator*;

inline std::mutex& mutex_of(Generator& generator) { return generator->mutex_; }

inline uint64_t random_offset(Generator& generator) {
  return generator->philox_offset_per_thread();
}

inline void set_random_offset(Generator& generator, uint64_t offset) {
  generator->set_philox_offset_per_thread(offset);
}

}  // namespace torch::lms
