// SPDX-License-Identifier: Apache-2.0
#if GOOGLE_CUDA || TENSORFLOW_USE_ROCM

#include "tensorflow/core/common_runtime/lms/gpu.h"

#include <sys/mman.h>

#include <memory>
#include <utility>

#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/stream_transport.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tensorflow {
namespace lms {

void OnGpu(const SessionOptions& options, const std::string& name, Allocator* allocator,
           se::StreamExecutor* executor, se::Stream* compute, se::Stream* host_to_device,
           se::Stream* device_to_host) {
  // Such an allocator gives a block away when the compute stream's clock says that it is free,
  // which knows nothing of copies on other streams.
  if (options.config.gpu_options().experimental().timestamped_allocator()) return;
  Runtime& runtime = Runtime::Get();
  std::unique_ptr<Transport> transport;
  if (runtime.pools.Of(allocator) == nullptr) {
    HostBytes::Pinning pinning;
    pinning.device = executor;
    pinning.pin = [](void* device, void* memory, size_t bytes) {
      // A child has no part in it: a page that it shared would be copied when either writes, and
      // then the device and the program would each have their own.
      return madvise(memory, bytes, MADV_DONTFORK) == 0 &&
             static_cast<se::StreamExecutor*>(device)->HostMemoryRegister(memory, bytes);
    };
    pinning.unpin = [](void* device, void* memory) {
      static_cast<void>(static_cast<se::StreamExecutor*>(device)->HostMemoryUnregister(memory));
    };
    const auto index = static_cast<int>(runtime.pools.end() - runtime.pools.begin());
    runtime.host_bytes.SetPinning(pinning, index, executor->GetDeviceDescription().numa_node());
    transport = NewStreamTransport(executor, compute, host_to_device, device_to_host);
  }
  runtime.OnDevice(options, name, allocator, std::move(transport));
}

}  // namespace lms
}  // namespace tensorflow

#endif  // GOOGLE_CUDA || TENSORFLOW_USE_ROCM
