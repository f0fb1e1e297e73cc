// SPDX-License-Identifier: Apache-2.0
#pragma once

// What c10 of PyTorch 1.2 has for CUDA, which is 10.0 there; included by cuda.h.

#include <c10/cuda/lms/compat/cuda_lacking.h>

namespace c10::cuda {

// A capture has no mode in CUDA 10.0, and is not in the way of other calls.
class CUDAStreamCaptureModeGuard {
 public:
  explicit CUDAStreamCaptureModeGuard(cudaStreamCaptureMode) {}
};

}  // namespace c10::cuda
