// SPDX-License-Identifier: Apache-2.0
#pragma once

// Captures, which CUDA has since 10.0. Included by the implementations of cuda.h.

#include <cuda_runtime_api.h>

namespace c10::cuda::lms {

inline bool capturing(cudaStream_t stream) noexcept {
#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM  // with it, null is a stream of the thread's
  if (stream == nullptr) {  // the legacy one never is, and most are it: to ask takes long
    return false;
  }
#endif
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

#if CUDART_VERSION >= 10010
class OutsideCapture {
 public:
  OutsideCapture() noexcept : outside_(exchange_()) {}
  ~OutsideCapture() {
    if (outside_) {
      exchange_();
    }
  }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  // Not where the call repeats an earlier error of the context: nothing may be thrown here.
  bool exchange_() noexcept {
    const bool done = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess;
    if (!done) {
      (void)cudaGetLastError();
    }
    return done;
  }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  const bool outside_;
};
#endif

}  // namespace c10::cuda::lms
