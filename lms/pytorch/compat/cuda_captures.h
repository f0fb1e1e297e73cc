// SPDX-License-Identifier: Apache-2.0
#pragma once

// Captures, which CUDA has since 10.0. Included by the implementations of cuda.h.

#include <cuda_runtime_api.h>

namespace c10::cuda::lms {

inline bool capturing(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace c10::cuda::lms
