// SPDX-License-Identifier: Apache-2.0
#pragma once

// What c10 of PyTorch 1.3 to 1.5 has for CUDA; included by cuda.h.

#include <c10/cuda/lms/compat/cuda_captures.h>
#include <c10/cuda/lms/compat/cuda_lacking.h>

namespace c10::cuda {

// PyTorch 1.5 captures no graph, but an extension may.
class CUDAStreamCaptureModeGuard {
 public:
  explicit CUDAStreamCaptureModeGuard(cudaStreamCaptureMode mode) : before_(mode) {
    C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&before_));
  }
  ~CUDAStreamCaptureModeGuard() {
    C10_CUDA_IGNORE_ERROR(cudaThreadExchangeStreamCaptureMode(&before_));
  }
  CUDAStreamCaptureModeGuard(const CUDAStreamCaptureModeGuard&) = delete;
  CUDAStreamCaptureModeGuard& operator=(const CUDAStreamCaptureModeGuard&) = delete;

 private:
  cudaStreamCaptureMode before_;
};

}  // namespace c10::cuda
