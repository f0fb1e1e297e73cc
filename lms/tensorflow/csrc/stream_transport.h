// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_STREAM_TRANSPORT_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_STREAM_TRANSPORT_H_

#include <memory>

#include "tensorflow/core/common_runtime/lms/transport.h"
#include "tensorflow/core/platform/stream_executor.h"

namespace tensorflow {
namespace lms {

// Copies on two streams of a device, ordered with its compute stream by events; the host never
// waits for them. The streams outlive the transport.
std::unique_ptr<Transport> NewStreamTransport(se::StreamExecutor* executor, se::Stream* compute,
                                              se::Stream* host_to_device,
                                              se::Stream* device_to_host);

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_STREAM_TRANSPORT_H_
