// SPDX-License-Identifier: Apache-2.0
#if GOOGLE_CUDA || TENSORFLOW_USE_ROCM

#include "tensorflow/core/common_runtime/lms/gpu.h"

#include <chrono>
#include <memory>
#include <thread>

#include "tensorflow/core/common_runtime/lms/runtime.h"

namespace tensorflow {
namespace lms {
namespace {

class EventFence final : public ::lms::Fence {
 public:
  explicit EventFence(se::StreamExecutor* executor) : event(executor) {}
  // An event in error is done: nothing comes after it.
  bool done() override { return event.PollForStatus() != se::Event::Status::kPending; }
  void wait() override {
    while (!done()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  se::Event event;
};

class GpuTransport final : public Transport {
 public:
  GpuTransport(se::StreamExecutor* executor, se::Stream* compute, se::Stream* in, se::Stream* out)
      : executor_(executor), compute_(compute), in_(in), out_(out) {}

  ::lms::Stream stream() override { return compute_; }

  ::lms::FencePtr ToHost(void* host, const void* device, size_t bytes) override {
    const se::DeviceMemoryBase from(const_cast<void*>(device), bytes);
    out_->ThenWaitFor(compute_);
    out_->ThenMemcpy(host, from, bytes);
    return BeforeLaterWork(out_);  // the block is reused on the compute stream
  }

  ::lms::FencePtr ToDevice(void* device, const void* host, size_t bytes,
                           const ::lms::FencePtr& written) override {
    se::DeviceMemoryBase to(device, bytes);
    in_->ThenWaitFor(compute_);  // the block's earlier owner
    if (written) in_->ThenWaitFor(&static_cast<EventFence*>(written.get())->event);
    in_->ThenMemcpy(&to, host, bytes);
    return BeforeLaterWork(in_);
  }

  void Poison(void* device, size_t bytes) override {
    se::DeviceMemoryBase block(device, bytes / 4 * 4);
    compute_->ThenMemset32(&block, 0xA5A5A5A5, bytes / 4 * 4);
  }

 private:
  // What is queued on `copies` so far comes before what is queued on the compute stream later.
  ::lms::FencePtr BeforeLaterWork(se::Stream* copies) {
    auto fence = std::make_shared<EventFence>(executor_);
    if (!fence->event.Init()) {
      compute_->ThenWaitFor(copies);
      TF_CHECK_OK(Status(copies->BlockHostUntilDone()));
      return nullptr;
    }
    copies->ThenRecordEvent(&fence->event);
    compute_->ThenWaitFor(&fence->event);
    return fence;
  }

  se::StreamExecutor* const executor_;
  se::Stream* const compute_;
  se::Stream* const in_;
  se::Stream* const out_;
};

}  // namespace

void OnGpu(const SessionOptions& options, const std::string& name, Allocator* allocator,
           se::StreamExecutor* executor, se::Stream* compute, se::Stream* host_to_device,
           se::Stream* device_to_host) {
  Runtime& runtime = Runtime::Get();
  Transport* transport = nullptr;
  if (runtime.PoolOf(allocator) == nullptr) {
    HostBytes::Source pinned;
    pinned.device = executor;
    pinned.allocate = [](void* device, size_t bytes) {
      return static_cast<se::StreamExecutor*>(device)->HostMemoryAllocate(bytes);
    };
    pinned.release = [](void* device, void* ptr) {
      static_cast<se::StreamExecutor*>(device)->HostMemoryDeallocate(ptr);
    };
    runtime.host_bytes().SetSource(pinned);
    transport = new GpuTransport(executor, compute, host_to_device, device_to_host);
  }
  runtime.OnDevice(options, name, allocator, transport);
}

}  // namespace lms
}  // namespace tensorflow

#endif  // GOOGLE_CUDA || TENSORFLOW_USE_ROCM
