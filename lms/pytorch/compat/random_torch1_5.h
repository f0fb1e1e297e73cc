// SPDX-License-Identifier: Apache-2.0
#pragma once

// The generators of PyTorch 1.5, which are no values: a call has a pointer. Included by random.h.

#include <ATen/CUDAGenerator.h>
#include <ATen/Context.h>

namespace torch::lms {

using CudaGenerator = at::CUDAGenerator*;

inline CudaGenerator default_generator(c10::Device device) {
  return static_cast<CudaGenerator>(&at::globalContext().defaultGenerator(device));
}

inline std::mutex& mutex_of(CudaGenerator& generator) { return generator->mutex_; }

inline uint64_t random_offset(CudaGenerator& generator) {
  return generator->philox_offset_per_thread();
}

inline void set_random_offset(CudaGenerator& generator, uint64_t offset) {
  generator->set_philox_offset_per_thread(offset);
}

}  // namespace torch::lms
