// SPDX-License-Identifier: Apache-2.0
// Capture: graphs are not simulated, so nothing is ever captured.
#include <utility>

#include "state.h"

namespace simcuda {

cudaError_t capture_info(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                         cudaGraph_t* graph) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  if (graph) *graph = nullptr;
  return cudaSuccess;
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_CUDA cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                               cudaStreamCaptureStatus* status) {
  return capture_info(stream, status, nullptr, nullptr);
}

SIMCUDA_CUDA cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(*mode, current);
  return cudaSuccess;
}
