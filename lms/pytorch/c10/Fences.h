// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/lms/core/ready.h>
#include <c10/cuda/lms/core/types.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

// The engine's events. They are pooled; whoever asks for one that is done, waits for nothing.
namespace c10::cuda::lms {

using ::lms::Mark;
using ::lms::MarkPtr;
using ::lms::Ready;

// ---- streams that the program has made (torch.cuda.ExternalStream), and destroys unseen

namespace detail {
extern std::atomic<bool> external_streams;  // whether there ever was one
void know_stream(const CUDAStream& stream);
}  // namespace detail

// PyTorch gives them their handle for a name.
inline bool is_external(const CUDAStream& stream, cudaStream_t handle) {
  return handle != nullptr && handle == reinterpret_cast<cudaStream_t>(stream.id());
}
inline bool is_external(const CUDAStream& stream) { return is_external(stream, stream.stream()); }

// To be called with the streams that storages are used on. The handle of an external one is used by
// the thread alone that has it for its current stream; for others its work ends at its last mark.
// Returns the handle.
inline cudaStream_t know_stream(const CUDAStream& stream) {
  const cudaStream_t handle = stream.stream();
  if (C10_UNLIKELY(is_external(stream, handle) || detail::external_streams)) {
    detail::know_stream(stream);
  }
  return handle;
}

// The same of a stream of the program's that was used while nothing here knew of streams, and whose
// work is over before anything moves.
void know_earlier_stream(DeviceIndex device, cudaStream_t handle);

// Whether the program has made the stream, and may have destroyed it by now.
bool program_owns(DeviceIndex device, cudaStream_t stream);
// Whether this thread may use the handle.
bool usable(DeviceIndex device, cudaStream_t stream);

// Sets a mark on each external stream that is this thread's current one.
void mark_external_streams() noexcept;

// ---- marks

// After all work queued so far on `stream`, which is not being captured. Of a stream that is not
// usable, the last one.
MarkPtr set_mark(DeviceIndex device, cudaStream_t stream);
// `mark` becomes the one after the op that has just used `bytes` there; ops that use little share
// one, after the last of them. Null where it would have to be set while the stream is captured.
void mark_after(DeviceIndex device, cudaStream_t stream, size_t bytes, MarkPtr* mark);
// The mark that comes next there: it will be after all work queued so far. Set by whoever sets the
// next one or, before that, waits for it.
MarkPtr next_mark(DeviceIndex device, cudaStream_t stream);
// Sets one that may still be the next.
void set_now(const MarkPtr& mark);

// Makes later work on `stream`, of `device`, wait for `fence`, which must be a mark of these.
void wait_fence(DeviceIndex device, cudaStream_t stream, const ::lms::FencePtr& fence);
// The same for a stream that may not be usable: then this thread waits.
void wait_fence_at(DeviceIndex device, cudaStream_t stream, const ::lms::FencePtr& fence);
// What is after all that memory of the pool of `home` owes.
std::vector<MarkPtr> ends_of(DeviceIndex device, cudaStream_t home, const Ready& ready);

// ---- how long streams wait, while measure_waits is on

enum class Wait : uint8_t {
  kOperands,   // of an op's stream, for what the op uses to come in
  kMemory,     // of an op's stream, for what was in its memory to go out
  kCopiesIn,   // of copies in, for what was in their memory to go out
  kCopiesOut,  // of copies out, for the last uses
};
constexpr size_t kWaits = 4;

// Microseconds that streams of the device have waited, by Wait, as far as that is over.
std::array<int64_t, kWaits> waited(DeviceIndex device);
void reset_waited(DeviceIndex device);

// Lives while `stream`, of `device`, is made to wait. What cannot be measured is left out.
class MeasuredWait {
 public:
  MeasuredWait(DeviceIndex device, cudaStream_t stream, Wait what) noexcept;
  ~MeasuredWait();
  MeasuredWait(const MeasuredWait&) = delete;
  MeasuredWait& operator=(const MeasuredWait&) = delete;

 private:
  const DeviceIndex device_;
  const cudaStream_t stream_;
  const Wait what_;
  cudaEvent_t before_ = nullptr;
};

// The device of the stream that a mark of these is set on.
DeviceIndex device_of(const ::lms::FencePtr& fence);

// The streams of the engine's own copies, several for each way, are made on first use.
enum class Way : uint8_t { kIn, kOut };

// When a copy can begin: with the mark of this number of a stream.
struct Begin {
  DeviceIndex device = -1;
  ::lms::Stream stream = nullptr;
  std::uint64_t number = UINT64_MAX;  // not known, or later than another stream's mark

  bool known() const { return number != UINT64_MAX; }
  // Marks of several streams tell nothing of each other.
  bool comparable(const Begin& other) const {
    return known() && other.known() && device == other.device && stream == other.stream;
  }
  // Whether both wait for one stream, or nobody knows for which.
  bool alike(const Begin& other) const { return comparable(other) || !(known() || other.known()); }
  bool no_later_than(const Begin& other) const {
    return comparable(other) && number <= other.number;
  }
};

// A copy into a device or out of it, after these marks: on that of the way's streams where it waits
// least for copies that begin later. It comes after what was asked for before and can begin no
// later, on whichever of them: that is needed sooner, and they share the link.
class QueuedCopy {
 public:
  QueuedCopy(DeviceIndex device, Way way, std::vector<MarkPtr> ends);
  // As far as is known it can begin then, whatever else is among `ends`.
  QueuedCopy(DeviceIndex device, Way way, std::vector<MarkPtr> ends, const Begin& begin);
  cudaStream_t stream() const { return stream_; }
  // It is queued there: sets the mark after it.
  MarkPtr end();

 private:
  const DeviceIndex device_;
  const Way way_;
  const std::vector<MarkPtr> ends_;
  const Begin begin_;
  cudaStream_t stream_;
};

// The host waits for all that is queued on them.
void finish_copy_streams();

}  // namespace c10::cuda::lms
