// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/lms/core/types.h>
#include <cuda_runtime_api.h>

namespace c10::cuda::lms {

// Recorded after all work queued so far on `stream` of the current device. Events are pooled.
::lms::FencePtr record_fence(DeviceIndex device, cudaStream_t stream);
// Makes later work on `stream` wait for `fence`, which must come from record_fence.
void wait_fence(cudaStream_t stream, const ::lms::FencePtr& fence);
// Makes later work on `after` wait for all work queued so far on `before`.
void order(DeviceIndex device, cudaStream_t after, cudaStream_t before);

// Whether what is queued on `stream` goes into a graph instead of running.
bool capturing(cudaStream_t stream) noexcept;

// The streams of the engine's own copies, one for each way and device, made on first use.
cudaStream_t out_stream(DeviceIndex device);
cudaStream_t in_stream(DeviceIndex device);

}  // namespace c10::cuda::lms
