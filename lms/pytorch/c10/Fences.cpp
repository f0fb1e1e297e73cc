// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/Fences.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace c10::cuda::lms {
namespace {

struct DeviceState {
  std::vector<cudaEvent_t> events;
  cudaStream_t out = nullptr;
  cudaStream_t in = nullptr;
};

// Leaked: fences may outlive static destructors.
struct State {
  std::mutex mutex;
  std::vector<DeviceState> devices;

  DeviceState& of(DeviceIndex device) {
    const auto index = static_cast<size_t>(device);
    if (devices.size() <= index) {
      devices.resize(index + 1);
    }
    return devices[index];
  }
};

State& state() {
  static auto* state = new State;
  return *state;
}

cudaEvent_t take_event(DeviceIndex device) {
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    auto& events = state().of(device).events;
    if (!events.empty()) {
      cudaEvent_t event = events.back();
      events.pop_back();
      return event;
    }
  }
  CUDAGuard guard(device);
  cudaEvent_t event = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void give_event(DeviceIndex device, cudaEvent_t event) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().of(device).events.push_back(event);
}

// After an error of the context nothing runs on it any more, so the work of every fence is over;
// the error is told by whatever asks for more. Fences are asked in deleters, which must not throw.
//
// Never part of a graph, so that it may be asked for while one is captured.
class EventFence final : public ::lms::Fence {
 public:
  EventFence(DeviceIndex device, cudaStream_t stream)
      : device_(device), event_(take_event(device)) {
    CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaEventRecord(event_, stream));
  }
  ~EventFence() override { give_event(device_, event_); }
  bool done() override {
    if (!done_) {
      const CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
      const cudaError_t err = C10_CUDA_ERROR_HANDLED(cudaEventQuery(event_));
      if (err == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
      }
      if (err != cudaSuccess) {
        (void)cudaGetLastError();
      }
      done_ = true;
    }
    return true;
  }
  void wait() override {
    if (!done_) {
      const CUDAStreamCaptureModeGuard outside(cudaStreamCaptureModeRelaxed);
      C10_CUDA_IGNORE_ERROR(cudaEventSynchronize(event_));
      done_ = true;
    }
  }
  cudaEvent_t event() const { return event_; }

 private:
  const DeviceIndex device_;
  const cudaEvent_t event_;
  std::atomic<bool> done_{false};
};

cudaStream_t copy_stream(DeviceIndex device, cudaStream_t DeviceState::* which) {
  std::lock_guard<std::mutex> lock(state().mutex);
  cudaStream_t& stream = state().of(device).*which;
  if (stream == nullptr) {
    CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  return stream;
}

}  // namespace

::lms::FencePtr record_fence(DeviceIndex device, cudaStream_t stream) {
  return std::make_shared<EventFence>(device, stream);
}

void wait_fence(cudaStream_t stream, const ::lms::FencePtr& fence) {
  C10_CUDA_CHECK(cudaStreamWaitEvent(stream, static_cast<const EventFence&>(*fence).event(), 0));
}

void order(DeviceIndex device, cudaStream_t after, cudaStream_t before) {
  if (after != before) {
    wait_fence(after, record_fence(device, before));
  }
}

bool capturing(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t err = C10_CUDA_ERROR_HANDLED(cudaStreamIsCapturing(stream, &status));
  if (err != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

cudaStream_t out_stream(DeviceIndex device) { return copy_stream(device, &DeviceState::out); }

cudaStream_t in_stream(DeviceIndex device) { return copy_stream(device, &DeviceState::in); }

}  // namespace c10::cuda::lms
