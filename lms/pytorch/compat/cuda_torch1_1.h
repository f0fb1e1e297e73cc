// SPDX-License-Identifier: Apache-2.0
#pragma once

// What c10 of PyTorch 1.1 has for CUDA, which is 9.0 there and captures nothing; included by
// cuda.h.

#include <c10/cuda/lms/compat/cuda_lacking.h>
#include <c10/cuda/lms/compat/cuda_modeless.h>

namespace c10::cuda::lms {

inline bool capturing(cudaStream_t) noexcept { return false; }

}  // namespace c10::cuda::lms
