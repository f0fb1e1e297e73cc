// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BUFFER_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BUFFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {
namespace lms {

// Buffers below this size never move: what the framework reads on the host outside of ops (shapes,
// predicates, handles) is far smaller. With a larger one more stays on the device; with a smaller
// one the framework reads what may be out.
constexpr size_t kSmallestMovable = 4096;

struct HostCopy;
class Backend;
class Pool;
class Tracker;

// Moves a buffer's pointer. TensorBuffer names it a friend.
class BufferAccess {
 public:
  static void Rebind(TensorBuffer* buffer, void* data) { buffer->data_ = data; }
};

// A root buffer whose bytes an allocator gave, and may take elsewhere: the base of the buffers that
// tensor.cc makes. Their classes are private to that file, so their layout is nobody else's affair.
//
// Where the bytes are is told by `host_`; it changes under the engine's lock only, together with
// the pointer. A tracked buffer is known to the engine, by its address, until it dies.
class MovableBuffer : public TensorBuffer {
 public:
  MovableBuffer(Allocator* allocator, void* data) : TensorBuffer(data), alloc_(allocator) {}

  TensorBuffer* root_buffer() override { return this; }

  Allocator* allocator() const { return alloc_; }
  bool tracked() const { return tracked_.load(std::memory_order_acquire); }

  // Where `buffer` is a view of a buffer of ours, that one; null for any other.
  static MovableBuffer* Of(TensorBuffer* buffer) {
    return buffer == nullptr ? nullptr : dynamic_cast<MovableBuffer*>(buffer->root_buffer());
  }
  static MovableBuffer* Of(const Tensor& tensor);

 protected:
  // Comes first in the destructor of the class that frees the memory: afterwards the buffer is out
  // of the engine's hands, and its pointer is null when the bytes were in host memory.
  void Retire() {
    if (tracked()) Forget();
  }

  Allocator* const alloc_;

 private:
  friend class Backend;
  friend class Tracker;

  void Forget();

  std::atomic<bool> tracked_{false};
  Pool* pool_ = nullptr;
  HostCopy* host_ = nullptr;
  int64_t candidate_bytes_ = 0;  // what it adds to the pool's
  int holders_ = 0;              // that its pointer is exposed to
  bool kept_ = false;            // its pointer is exposed otherwise
  bool stays_out_ = false;       // its host pointer was exposed, for want of room on the device
  std::vector<TensorBuffer*> views_;  // sub-buffers: they have a pointer of their own
};

// What tensor.cc calls for a sub-buffer of `root`, as the last thing of its constructor and the
// first of its destructor. The root is pinned, or not tracked, when a sub-buffer is made.
void AddView(TensorBuffer* root, TensorBuffer* view);
void RemoveView(TensorBuffer* root, TensorBuffer* view);

// What gives a pointer away, or reads the bytes, outside of an op calls this first: brings the
// buffer in and keeps it there, until an op finds itself with the only reference to it. Does
// nothing for buffers that an op has pinned.
void Expose(const TensorBuffer* buffer);
// The same, pinned or not, for a caller that keeps the pointer until `holder`, which holds a
// reference to the buffer, is released.
void ExposeTo(const void* holder, const TensorBuffer* buffer);
void ReleaseHolder(const void* holder);

// Memory of the CPU for tensors that are made outside of ops, where nobody looks whether there was
// room: not of a pool under Large Model Support.
Allocator* AllocatorOutsideOps();

// A buffer with a copy of what comes from outside of TensorFlow, which can move from the first on:
// with a reference for the caller. Not of a pool when that is full. Null when the caller's own will
// do.
TensorBuffer* CopyOutsideOps(DataType type, const void* data, size_t bytes);

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BUFFER_H_
