// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <c10/cuda/lms/compat/implementations.h>

#include <cstdint>

// Seam: how many random numbers were taken from a generator of a CUDA device. With its mutex held.
namespace torch::lms {

uint64_t random_offset(at::Generator* generator);
void set_random_offset(at::Generator* generator, uint64_t offset);

}  // namespace torch::lms

#include LMS_RANDOM
