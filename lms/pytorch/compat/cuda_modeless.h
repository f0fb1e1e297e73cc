// SPDX-License-Identifier: Apache-2.0
#pragma once

// Before CUDA 10.1 a capture has no mode, and is not in the way of other calls. Included by the
// implementations of cuda.h.

#include <cuda_runtime_api.h>

namespace c10::cuda::lms {

#if CUDART_VERSION < 10010
class OutsideCapture {
 public:
  OutsideCapture() noexcept {}
};
#endif

}  // namespace c10::cuda::lms
