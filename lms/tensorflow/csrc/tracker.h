// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_TRACKER_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_TRACKER_H_

#include <unordered_map>
#include <unordered_set>

#include "tensorflow/core/common_runtime/lms/buffer.h"
#include "tensorflow/core/common_runtime/lms/core/types.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {
namespace lms {

// Which buffers the engine knows, and what their users say of them.
class Tracker {
 public:
  // The buffer of the tensor if it is of a kind that can be moved: plain bytes, all of a chunk of a
  // pool, large enough. Whether all who refer to it are known is for the caller to say.
  static MovableBuffer* Manageable(const Tensor& tensor);
  // Whether no other tensor refers to the buffer, or to any part of it.
  static bool IsOnly(const Tensor& tensor);
  // Whether code outside of ops may come by the pointer with no call that is seen.
  static bool PointerTakenUnseen(const MovableBuffer* buffer);
  static ::lms::Stream StreamOf(const MovableBuffer* buffer);

  // Makes a buffer known to the engine, as idle. Under the engine's lock.
  void Track(MovableBuffer* buffer);
  // Whether the tensor's buffer is tracked, or could be from now on: nobody else refers to it.
  // Under the engine's lock.
  bool TrackIfAlone(const Tensor& tensor, MovableBuffer* buffer);
  // The buffer dies.
  void Forget(MovableBuffer* buffer);
  // Whether a buffer that may be dead is alive and known to the engine. Under the engine's lock.
  bool IsTracked(MovableBuffer* buffer) const { return tracked_.count(buffer) > 0; }
  // The one that holds the byte at `data`, or null. Under the engine's lock.
  MovableBuffer* Holding(const void* data) const;

  // Brings the buffer in and keeps it there, with its pointer. What an op has pinned does not move
  // before it ends, so an access within the op need not be recorded.
  void Expose(MovableBuffer* buffer);
  void ExposeUnlessPinned(MovableBuffer* buffer);
  // The same until the holder is released.
  void ExposeTo(const void* holder, MovableBuffer* buffer);
  void ReleaseHolder(const void* holder);
  // The exposure is over: the only reference left is the caller's.
  void Unexpose(MovableBuffer* buffer);

  void AddView(MovableBuffer* root, TensorBuffer* view);
  void RemoveView(MovableBuffer* root, TensorBuffer* view);

 private:
  void MakeReachable(MovableBuffer* buffer);
  void Settle(MovableBuffer* buffer);

  // Under the engine's lock.
  std::unordered_set<MovableBuffer*> tracked_;
  std::unordered_map<const void*, MovableBuffer*> holders_;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_TRACKER_H_
