// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_GPU_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_GPU_H_

#include <string>

#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/platform/stream_executor.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorflow {
namespace lms {

// Called by each GPU device that is made. Copies run on its two copy streams, ordered with its
// compute stream by events; the host never waits for them.
void OnGpu(const SessionOptions& options, const std::string& name, Allocator* allocator,
           se::StreamExecutor* executor, se::Stream* compute, se::Stream* host_to_device,
           se::Stream* device_to_host);

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_GPU_H_
