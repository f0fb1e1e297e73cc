// SPDX-License-Identifier: Apache-2.0
#if GOOGLE_CUDA || TENSORFLOW_USE_ROCM

#include "tensorflow/core/common_runtime/lms/stream_transport.h"

#include <chrono>
#include <thread>

#include "tensorflow/core/common_runtime/lms/core/host_pool.h"
#include "tensorflow/core/lib/core/status.h"

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

// CUDA refuses a copy that goes on from one registration of host memory into the next.
template <class Part>
void InParts(const void* host, size_t bytes, const Part& part) {
  const size_t segment = ::lms::HostPool::kSegmentBytes;
  ::lms::for_parts(host, bytes, segment, part);
}

class StreamTransport final : public Transport {
 public:
  StreamTransport(se::StreamExecutor* executor, se::Stream* compute, se::Stream* in,
                  se::Stream* out)
      : executor_(executor), compute_(compute), in_(in), out_(out) {}

  ::lms::Stream stream() override { return compute_; }

  ::lms::FencePtr ToHost(void* host, const void* device, size_t bytes) override {
    out_->ThenWaitFor(compute_);
    InParts(host, bytes, [&](size_t at, size_t part) {
      const se::DeviceMemoryBase from(static_cast<char*>(const_cast<void*>(device)) + at, part);
      out_->ThenMemcpy(static_cast<char*>(host) + at, from, part);
    });
    return BeforeLaterWork(out_);  // the block is reused on the compute stream
  }

  // The copy that filled `host` is over when the compute stream is: that waits for it.
  ::lms::FencePtr ToDevice(void* device, const void* host, size_t bytes) override {
    in_->ThenWaitFor(compute_);  // the block's earlier owner
    InParts(host, bytes, [&](size_t at, size_t part) {
      se::DeviceMemoryBase to(static_cast<char*>(device) + at, part);
      in_->ThenMemcpy(&to, static_cast<const char*>(host) + at, part);
    });
    return BeforeLaterWork(in_);
  }

  void Poison(void* device, size_t bytes) override {
    se::DeviceMemoryBase block(device, bytes / 4 * 4);
    compute_->ThenMemset32(&block, 0xFFFFFFFF, bytes / 4 * 4);
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

std::unique_ptr<Transport> NewStreamTransport(se::StreamExecutor* executor, se::Stream* compute,
                                              se::Stream* host_to_device,
                                              se::Stream* device_to_host) {
  return std::unique_ptr<Transport>(
      new StreamTransport(executor, compute, host_to_device, device_to_host));
}

}  // namespace lms
}  // namespace tensorflow

#endif  // GOOGLE_CUDA || TENSORFLOW_USE_ROCM
