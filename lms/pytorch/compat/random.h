// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <c10/cuda/lms/compat/implementations.h>

#include <cstdint>
#include <mutex>

// Seam: generators of a CUDA device, which an implementation names `CudaGenerator`, and how many
// random numbers were taken from one. With its mutex held.
#include LMS_RANDOM

namespace torch::lms {

std::mutex& mutex_of(CudaGenerator& generator);
uint64_t random_offset(CudaGenerator& generator);
void set_random_offset(CudaGenerator& generator, uint64_t offset);

}  // namespace torch::lms
