// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <memory>

#include "tensorflow/core/common_runtime/lms/transport.h"

namespace tensorflow {
namespace lms {
namespace {

class CpuTransport final : public Transport {
 public:
  ::lms::Stream stream() override { return nullptr; }
  ::lms::FencePtr ToHost(void* host, const void* device, size_t bytes) override {
    std::memcpy(host, device, bytes);
    return nullptr;
  }
  ::lms::FencePtr ToDevice(void* device, const void* host, size_t bytes) override {
    std::memcpy(device, host, bytes);
    return nullptr;
  }
  void Poison(void* device, size_t bytes) override { std::memset(device, 0xFF, bytes); }
};

}  // namespace

std::unique_ptr<Transport> NewCpuTransport() {
  return std::unique_ptr<Transport>(new CpuTransport);
}

}  // namespace lms
}  // namespace tensorflow
