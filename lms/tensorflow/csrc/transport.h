// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_TRANSPORT_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_TRANSPORT_H_

#include <cstddef>
#include <memory>

#include "tensorflow/core/common_runtime/lms/core/types.h"

namespace tensorflow {
namespace lms {

// How bytes travel between a pool and host memory. Copies are ordered after all earlier work on the
// pool and before all later work; a null fence means that the copy is done.
class Transport {
 public:
  virtual ~Transport() = default;
  // What the pool's ops run on; null on the CPU.
  virtual ::lms::Stream stream() = 0;
  virtual ::lms::FencePtr ToHost(void* host, const void* device, size_t bytes) = 0;
  virtual ::lms::FencePtr ToDevice(void* device, const void* host, size_t bytes) = 0;
  // Fills device memory; debugging only.
  virtual void Poison(void* device, size_t bytes) = 0;
};

// Copies at once, in the calling thread.
std::unique_ptr<Transport> NewCpuTransport();

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_TRANSPORT_H_
